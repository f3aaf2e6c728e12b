"""A result in one sentence, and as the object that `--json` writes."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from wirewise import units
from wirewise.report import figures
from wirewise_papers.adaqp.pairs import ModePair, accuracy_of, focus_name, reference_name
from wirewise_papers.adaqp.records import ModeResult, RunResult

__all__ = ["network_words", "summary_sentence", "to_json_object"]

_ALIKE = 0.02
"""Times that differ by less than this share are called the same: single runs repeat no better."""


def summary_sentence(result: RunResult) -> str:
    """Summarise the run in one sentence."""
    reference, name = reference_name(result), focus_name(result)
    place = f"{result.dataset} on {figures.count(result.workers, 'worker')} {network_words(result)}"
    if not result.modes:
        return f"No mode was trained: {place}."
    if name is None:
        mode = result.modes[reference]
        return f"{place}: {reference} took {figures.seconds(mode.epoch_s)} an epoch{_alone(mode)}."
    both = ModePair.of(result, name)
    said = [
        _run_words(name, reference, both, result.epochs),
        _bytes_words(both),
        _loss_words(reference, both),
        _accuracy_words(both),
    ]
    clauses = [words for words in said if words]
    text = (
        f"{place}: {', '.join(clauses[:-1])}, and {clauses[-1]}" if clauses[1:] else f"{place}: {clauses[0]}"
    )
    if result.network == "loopback":
        text += "; no link was limited, so these times say little about a real network"
    return text + "."


def network_words(result: RunResult) -> str:
    """Description of the network of the ranks."""
    if result.network != "lab":
        hosts = f"on {figures.count(result.hosts, 'host')} of Slurm"
        return "over loopback" if result.network == "loopback" else hosts
    rate = (
        "" if result.link_bytes_per_s is None else f" with {units.format_rate(result.link_bytes_per_s)} links"
    )
    return f"in a lab of {figures.count(result.hosts, 'host')}{rate}"


def to_json_object(result: RunResult) -> dict[str, Any]:
    """Convert to JSON values; speed-ups are those of adaqp, else of the first mode after the reference.

    What is undefined or not finite is None. `accuracy` is a fraction, `accuracy_delta_points` in points.
    """
    name = focus_name(result)
    both = None if name is None else ModePair.of(result, name)
    return {
        **_finite(msgspec.to_builtins(msgspec.structs.replace(result, modes={}))),
        "modes": {key: _mode_object(mode) for key, mode in result.modes.items()},
        "speedup_run": both and both.speedup_run,
        "speedup_epoch": both and both.speedup_epoch,
        "speedup_time_to_loss": both and both.speedup_time_to_loss,
        "accuracy_delta_points": both and both.accuracy_delta_points,
        "bytes_ratio": both and both.bytes_ratio,
        "interface_bytes_ratio": both and both.interface_bytes_ratio,
        "compared_mode": name,
        "reference": reference_name(result),
        "summary": summary_sentence(result),
    }


def _mode_object(mode: ModeResult) -> dict[str, Any]:
    """All figures of a mode but those of single epochs."""
    found = msgspec.to_builtins(msgspec.structs.replace(mode, epochs=[]))
    del found["epochs"]
    return {**_finite(found), "accuracy": accuracy_of(mode)}


def _finite(value: Any) -> Any:
    """The value with None in place of numbers that are not finite, also inside of it."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return figures.finite(value) if isinstance(value, float) else value


def _alone(mode: ModeResult) -> str:
    accuracy = accuracy_of(mode)
    reached = "" if accuracy is None else f" and reached {figures.percent(accuracy)} test accuracy"
    lost = "" if math.isfinite(mode.final_loss) else ", but its loss is no number any more"
    return f"{reached}{lost}; no other mode was trained, so there is nothing to compare"


def _run_words(name: str, reference: str, both: ModePair, epochs: int) -> str:
    """The time of the whole run, and of an epoch after the warm-up where that says something else."""
    mine, other = figures.seconds(both.mode.run_s), figures.seconds(both.reference.run_s)
    speedup, by_epoch = both.speedup_run, both.speedup_epoch
    if speedup is None:
        return f"{name} could not be compared with {reference} in time"
    took = f"{mine} instead of {other} for {figures.count(epochs, 'epoch')}"
    if by_epoch is not None and abs(by_epoch / speedup - 1) >= _ALIKE:
        took += f", warm-up and choosing bits included; {figures.factor(by_epoch)} an epoch after that"
    if abs(speedup - 1) < _ALIKE:
        return f"{name} trained as fast as {reference} ({took})"
    if speedup > 1:
        return f"{name} trained {figures.factor(speedup)} as fast as {reference} ({took})"
    return f"{name} was slower than {reference}, at {figures.factor(1 / speedup)} the time ({took})"


def _bytes_words(both: ModePair) -> str:
    """Bytes on the interfaces, probes and headers among them, where they were counted; else payload."""
    payload, counted = both.bytes_ratio, both.interface_bytes_ratio
    if payload is None:
        return ""
    if counted is None:
        return _ratio_words(payload, "bytes of payload")
    said = _ratio_words(counted, "bytes over the links")
    return said if abs(payload / counted - 1) < _ALIKE else f"{said} ({figures.factor(payload)} in payload)"


def _ratio_words(quotient: float, what: str) -> str:
    if abs(quotient - 1) < 0.005:
        return f"sent as many {what}"
    if quotient > 1:
        return f"sent {figures.factor(quotient)} fewer {what}"
    return f"sent {figures.factor(1 / quotient)} the {what}"


def _loss_words(reference: str, both: ModePair) -> str:
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


def _accuracy_words(both: ModePair) -> str:
    delta = both.accuracy_delta_points
    if delta is None:
        return "test accuracy was not compared"
    mine, other = accuracy_of(both.mode), accuracy_of(both.reference)
    detail = f"({figures.percent(mine)} against {figures.percent(other)})"
    if abs(delta) < 0.005:
        return f"reached the same test accuracy ({figures.percent(mine)})"
    more = "higher" if delta > 0 else "lower"
    return f"its test accuracy is {abs(delta):.2f} points {more} {detail}"
