"""Bottleneck of a step, in one record and one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.sim.steps import ReplayReport, StepPrediction
from wirewise.sim.stragglers import (
    Straggler,
    compute_seconds,
    find_slow_host,
    find_straggler,
    find_uneven,
    processor_seconds,
)
from wirewise.sim.usage import unrecorded_share
from wirewise.trace.records import Trace

__all__ = [
    "BALANCED",
    "DATA_READY",
    "NO_COMMUNICATION",
    "NO_LATENCY",
    "Diagnosis",
    "describe_change",
    "diagnose",
    "remove_straggler",
    "seconds_words",
]

BALANCED = "balanced"
NO_COMMUNICATION = "no_communication"
NO_LATENCY = "latency=0"
DATA_READY = "scale=data:x0"
_UNREAL = (NO_COMMUNICATION, NO_LATENCY, "bandwidth=*:x4")
"""Changes that show how far things could go; no one is told to do them."""

_LEAST_SHARE = 0.15
_LEAST_GAIN = 0.01
_LARGE_ERROR = 0.1
_PREEMPTED_SHARE = 0.1
_MOST_NAMED = 4


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Bottleneck of a step."""

    bound: str
    """Kind of bottleneck: "network", "latency", "straggler", "imbalance", "data", or what fills most of the step:
    "compute", "wait" (communication and waiting), "unknown" (nothing recorded)."""
    share: float
    """Fraction of a step saved without the bottleneck; for the last three kinds their fraction of the step."""
    best_change: str
    """Best feasible change, in the format of `whatif.parse`; empty if none saves 1 %."""
    gain_s: float
    """Seconds per step that it saves."""
    straggler_rank: int | None
    straggler_cause: str | None
    """Cause of the straggler (`Straggler.cause`)."""
    uneven: list[tuple[int, int]]
    """(rank, number of steps in which it computes longest) if the slowest rank alternates; else empty."""
    preempted_share: float | None
    """Fraction of a step in which the script was runnable without a CPU, mean over ranks. None if not recorded."""
    slow_link_host: str | None
    """Host with a slow link. None if there is none, or the trace does not show it."""
    sentence: str


def remove_straggler(straggler: Straggler) -> str:
    """Change that makes a straggler as fast as the median of the others."""
    return f"straggler={straggler.rank}:x{1 / straggler.factor:.4g}"


def diagnose(
    trace: Trace,
    report: ReplayReport,
    what_ifs: Mapping[str, StepPrediction],
    compute_s: NDArray[np.float64] | None = None,
) -> Diagnosis:
    """Name the bottleneck of a step, from its gain without each candidate.

    The bottleneck is the candidate whose removal shortens the step most, if by at least 15 %, else whatever takes
    most of it.

    Args:
        trace: Trace on aligned clocks.
        report: Replay of the trace.
        what_ifs: Predictions by change; NO_COMMUNICATION, NO_LATENCY, DATA_READY and `remove_straggler` identify
            bottlenecks, the others remedies. A bottleneck without its change is not considered.
        compute_s: Result of `stragglers.compute_seconds` for the trace, if known.
    """
    seconds = compute_seconds(trace) if compute_s is None else compute_s
    straggler, host, uneven = find_straggler(trace, seconds), find_slow_host(trace), find_uneven(seconds)
    base = report.predicted_step_s
    gains = {change: base - found.predicted_step_s for change, found in what_ifs.items()}
    bound, share = _bound(report, gains, straggler, unrecorded_share(trace))
    best = max((c for c in gains if c not in _UNREAL), key=gains.__getitem__, default="")
    if not best or gains[best] < _LEAST_GAIN * base:
        best = ""
    said = [_bound_words(bound, share, base, straggler, uneven)]
    known = {
        "data": DATA_READY,
        "imbalance": BALANCED,
        "straggler": straggler and remove_straggler(straggler),
    }
    if best and best == known.get(bound):
        said.append("No other change tried gives more.")
    else:
        said.append(_change_words(best, base - gains[best], base) if best else _nothing_words(gains))
    if straggler and bound != "straggler":
        said.append(f"Rank {straggler.rank} {_slower_words(straggler)}.")
    if host is not None:
        said.append(f"The slowest link is that of host {host}.")
    preempted = _preempted_share(trace)
    if (
        preempted is not None
        and preempted >= _PREEMPTED_SHARE
        and not (straggler and straggler.cause == "preempted")
    ):
        said.append(f"Ranks wait {100 * preempted:.0f} % of it for a processor, which others use.")
    if abs(report.error) > _LARGE_ERROR:
        said.append(f"The replay is off by {100 * report.error:+.0f} %, so take what changes give with care.")
    return Diagnosis(
        bound=bound,
        share=share,
        best_change=best,
        gain_s=gains.get(best, 0.0),
        straggler_rank=straggler.rank if straggler else None,
        straggler_cause=straggler.cause if straggler else None,
        uneven=uneven,
        preempted_share=preempted,
        slow_link_host=host,
        sentence=" ".join(said),
    )


def describe_change(change: str) -> str:
    """Describe a change of `whatif.parse` in words."""
    word, _, value = change.partition("=")
    target, _, amount = value.rpartition(":")
    whose = "links" if target in ("", "*") else f"the link of host {target}"
    plain = {
        NO_COMMUNICATION: "communication that takes no time",
        NO_LATENCY: "no latency",
        DATA_READY: "data that is ready in time",
        BALANCED: "compute that is even among ranks",
        "bandwidth": f"{whose} at {amount.removeprefix('x')} times the rate"
        if amount.startswith("x")
        else "",
        "bucket_mb": f"gradient buckets of {value} MiB",
        "straggler": f"rank {target} as fast as the others",
    }
    return plain.get(change) or plain.get(word) or change


def _bound(
    report: ReplayReport, gains: Mapping[str, float], straggler: Straggler | None, unknown: float
) -> tuple[str, float]:
    base = report.predicted_step_s
    network, latency = gains.get(NO_COMMUNICATION, 0.0), gains.get(NO_LATENCY, 0.0)
    shares = {
        "latency" if 2 * latency > network else "network": max(network, latency) / base,
        "data": gains.get(DATA_READY, 0.0) / base,
        "straggler": gains.get(remove_straggler(straggler), 0.0) / base if straggler else 0.0,
        "imbalance": 0.0 if straggler else gains.get(BALANCED, 0.0) / base,
    }
    worst = max(shares, key=shares.__getitem__)
    if shares[worst] >= _LEAST_SHARE:
        return worst, shares[worst]
    compute = report.breakdown.compute_s / base
    fills = {"compute": compute, "unknown": unknown, "wait": 1.0 - compute - unknown}
    most = max(fills, key=fills.__getitem__)
    return most, fills[most]


def _preempted_share(trace: Trace) -> float | None:
    spent = processor_seconds(trace)
    steps = [op.end_s - op.start_s for rank in trace.ranks for op in rank.ops if op.kind == "step"]
    return None if spent is None else min(float(spent[1].mean() / np.mean(steps)), 1.0)


def _slower_words(straggler: Straggler) -> str:
    """How much longer a rank takes than the others, and why."""
    longer = f"{straggler.factor:.3g} times as long as the others"
    if straggler.cause == "preempted":
        return (
            f"takes {longer} though it computes no more: it waits {seconds_words(straggler.preempted_s)} of a step "
            "for a processor, which others on its machine use"
        )
    if straggler.cause == "blocked":
        return f"takes {longer} though it computes no more: its script sleeps, reads or waits for a lock"
    return f"computes {longer}"


def _turns_words(uneven: Sequence[tuple[int, int]]) -> str:
    steps = sum(count for _, count in uneven)
    named = ", ".join(f"rank {rank} in {count}" for rank, count in uneven[:_MOST_NAMED])
    more = f" and {len(uneven) - _MOST_NAMED} more" if len(uneven) > _MOST_NAMED else ""
    return f"ranks compute longest in turns ({named}{more} of {steps} steps)"


def _bound_words(
    bound: str, share: float, base: float, straggler: Straggler | None, uneven: Sequence[tuple[int, int]] = ()
) -> str:
    less = f"{seconds_words(base * (1 - share))} instead of {seconds_words(base)} ({100 * share:.0f} % less)"
    fills = {
        "compute": "Compute bounds the step: it fills",
        "wait": "Communication and waiting bound the step: without compute beside them they fill",
        "unknown": "Nothing recorded fills",
    }
    if bound in fills:
        return f"{fills[bound]} {100 * share:.0f} % of {seconds_words(base)}."
    if bound == "straggler" and straggler:
        return (
            f"Rank {straggler.rank} bounds the step: it {_slower_words(straggler)}, and if it were as fast as they are "
            f"a step would take {less}."
        )
    if bound == "imbalance":
        return (
            f"Imbalance bounds the step: {_turns_words(uneven)}, and if all computed as long as their mean, it would "
            f"take {less}."
        )
    what = {
        "network": ("The network bounds the step", "if communication took no time"),
        "latency": ("Latency bounds the step", "if communication took no time"),
        "data": ("Loading data bounds the step", "if data were always ready"),
    }[bound]
    return f"{what[0]}: {what[1]}, it would take {less}."


def _change_words(change: str, after: float, base: float) -> str:
    less = f"{100 * (1 - after / base):.0f} % less"
    return f"The best change tried is {describe_change(change)}: {seconds_words(after)} a step, {less}."


def _nothing_words(gains: Mapping[str, float]) -> str:
    return "No change tried makes it 1 % shorter." if gains else "No change was tried."


def seconds_words(value: float) -> str:
    """Format seconds or milliseconds with three digits."""
    amount, unit = (1e3 * value, "ms") if value < 0.1 else (value, "s")
    return f"{f'{amount:#.3g}'.removesuffix('.')} {unit}"
