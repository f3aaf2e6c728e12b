"""A result in one sentence, and as the object that `--json` writes."""

from __future__ import annotations

import math
from typing import Any

from wirewise import units
from wirewise.report import figures
from wirewise.report.figures import Comparison
from wirewise.results import ModeResult, RunResult

__all__ = ["network_words", "summary_sentence", "to_json_object"]

_ALIKE = 0.02
"""Times that differ by less than this share are called the same: single runs repeat no better."""


def summary_sentence(result: RunResult) -> str:
    """What the run found, in plain words that are true of any result."""
    reference, name = figures.reference_name(result), figures.focus_name(result)
    place = f"{result.dataset} on {_count(result.workers, 'worker')} {network_words(result)}"
    if not result.modes:
        return f"No mode was trained: {place}."
    if name is None:
        mode = result.modes[reference]
        return f"{place}: {reference} took {figures.seconds(mode.epoch_s)} an epoch{_alone(mode)}."
    both = Comparison.of(result, name)
    said = [
        _epoch_words(name, reference, both),
        _bytes_words(both),
        _loss_words(reference, both),
        _accuracy_words(both),
    ]
    clauses = [words for words in said if words]
    text = (
        f"{place}: {', '.join(clauses[:-1])}, and {clauses[-1]}" if clauses[1:] else f"{place}: {clauses[0]}"
    )
    if result.network != "lab":
        text += "; no link was limited, so these times say little about a real network"
    return text + "."


def network_words(result: RunResult) -> str:
    """The network that the ranks used."""
    if result.network != "lab":
        return "over loopback" if result.network == "loopback" else f"over {result.network}"
    rate = (
        "" if result.link_bytes_per_s is None else f" with {units.format_rate(result.link_bytes_per_s)} links"
    )
    return f"in a lab of {_count(result.hosts, 'host')}{rate}"


def to_json_object(result: RunResult) -> dict[str, Any]:
    """The result as JSON values; speed-ups are those of adaqp, else of the first mode but the reference.

    What is undefined or not finite is None. `accuracy` is a fraction, `accuracy_delta_points` in points.
    """
    name = figures.focus_name(result)
    both = None if name is None else Comparison.of(result, name)
    return {
        "dataset": result.dataset,
        "workers": result.workers,
        "network": result.network,
        "link_bytes_per_s": result.link_bytes_per_s,
        "epochs": result.epochs,
        "modes": {key: _mode_object(mode) for key, mode in result.modes.items()},
        "speedup_epoch": both and both.speedup_epoch,
        "speedup_time_to_loss": both and both.speedup_time_to_loss,
        "accuracy_delta_points": both and both.accuracy_delta_points,
        "bytes_ratio": both and both.bytes_ratio,
        "compared_mode": name,
        "reference": figures.reference_name(result),
        "hosts": result.hosts,
        "model": result.model,
        "hidden": result.hidden,
        "layers": result.layers,
        "seed": result.seed,
        "graph": {key: figures.finite(value) for key, value in result.graph.items()},
        "environment": dict(result.environment),
        "notes": list(result.notes),
        "summary": summary_sentence(result),
    }


def _mode_object(mode: ModeResult) -> dict[str, Any]:
    return {
        "epoch_s": figures.finite(mode.epoch_s),
        "epoch_s_quartiles": [figures.finite(value) for value in mode.epoch_s_quartiles],
        "time_to_reference_loss_s": figures.finite(mode.time_to_reference_loss_s),
        "final_loss": figures.finite(mode.final_loss),
        "accuracy": figures.accuracy_of(mode),
        "bytes_sent": mode.bytes_sent,
        "kernel_bytes_sent": mode.kernel_bytes_sent,
        "mean_bits": figures.finite(mode.mean_bits),
        "peak_memory_bytes": list(mode.peak_memory_bytes),
        "memory_model_bytes": list(mode.memory_model_bytes),
    }


def _alone(mode: ModeResult) -> str:
    accuracy = figures.accuracy_of(mode)
    reached = "" if accuracy is None else f" and reached {figures.percent(accuracy)} test accuracy"
    lost = "" if math.isfinite(mode.final_loss) else ", but its loss is no number any more"
    return f"{reached}{lost}; no other mode was trained, so there is nothing to compare"


def _epoch_words(name: str, reference: str, both: Comparison) -> str:
    mine, other = figures.seconds(both.mode.epoch_s), figures.seconds(both.reference.epoch_s)
    speedup = both.speedup_epoch
    if speedup is None:
        return f"{name} could not be compared with {reference} in time per epoch"
    if abs(speedup - 1) < _ALIKE:
        return f"{name} trained as fast as {reference} ({mine} an epoch, {reference} {other})"
    if speedup > 1:
        words = f"{name} trained {figures.factor(speedup)} as fast as {reference}"
        return f"{words} ({mine} an epoch instead of {other})"
    slower = figures.factor(1 / speedup)
    return f"{name} was slower than {reference}, at {slower} the time per epoch ({mine} instead of {other})"


def _bytes_words(both: Comparison) -> str:
    quotient = both.bytes_ratio
    if quotient is None:
        return ""
    if abs(quotient - 1) < 0.005:
        return "sent as many bytes"
    if quotient > 1:
        return f"sent {figures.factor(quotient)} fewer bytes"
    return f"sent {figures.factor(1 / quotient)} the bytes"


def _loss_words(reference: str, both: Comparison) -> str:
    if not math.isfinite(both.mode.final_loss):
        return "diverged (its loss is no number any more)"
    if both.reference.time_to_reference_loss_s is None:
        return ""
    mine, other = both.mode.time_to_reference_loss_s, both.reference.time_to_reference_loss_s
    if mine is None:
        return f"did not come within 1 % of the final loss of {reference}"
    times = f"{figures.seconds(mine)} instead of {figures.seconds(other)}"
    speedup = both.speedup_time_to_loss
    gained = "" if speedup is None or abs(speedup - 1) < _ALIKE else f" ({figures.factor(speedup)})"
    return f"came within 1 % of the final loss of {reference} after {times}{gained}"


def _accuracy_words(both: Comparison) -> str:
    delta = both.accuracy_delta_points
    if delta is None:
        return "test accuracy was not compared"
    mine, other = figures.accuracy_of(both.mode), figures.accuracy_of(both.reference)
    detail = f"({figures.percent(mine)} against {figures.percent(other)})"
    if abs(delta) < 0.005:
        return f"reached the same test accuracy ({figures.percent(mine)})"
    more = "higher" if delta > 0 else "lower"
    return f"its test accuracy is {abs(delta):.2f} points {more} {detail}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
