"""Sensitivity of a step to faster ops and links, and its range, by repeated simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wirewise.sim.step_replay import StepReplay, is_compute, replay

__all__ = ["LinkSensitivity", "OpSensitivity", "link_sensitivity", "op_sensitivity"]

_STEP = 1e-4
_TOLERANCE = 1e-6
_HALVINGS = 20
_FASTEST = 64.0


@dataclass(frozen=True)
class OpSensitivity:
    """Gain of the step if one op takes less time."""

    op: int
    name: str
    rank: int
    s_per_s: float
    """Derivative d(step) / d(duration) for a shorter duration."""
    kink_s: float
    """Duration of the op at which the critical path or the derivative changes, in seconds; 0 if it never does."""


@dataclass(frozen=True)
class LinkSensitivity:
    """Gain of the step if the interface of a host gets faster."""

    host: int
    """Index of the host, or -1 for all hosts together."""
    s_per_byte_per_s: float
    """Derivative d(step) / d(rate) at the current rate, zero or below."""
    s_for_twice_the_rate: float
    """Saving per step at twice the rate, in seconds."""
    kink_factor: float
    """Factor of the rate up to which step = a + b / rate holds; infinite if beyond 64."""


def op_sensitivity(result: StepReplay, *, maximum: int = 20) -> list[OpSensitivity]:
    """Longest compute ops on the critical path, by the gain of the step.

    Args:
        result: Replay, simulated again about 20 times for each op.
        maximum: Maximum number of ops.
    """
    flow = result.dataflow
    path = result.critical_path().ops
    path = path[is_compute(flow)[path]]
    longest = path[np.argsort(-flow.duration_s[path], kind="stable")][:maximum]
    found = []
    for op in longest.tolist():
        seconds = float(flow.duration_s[op])
        if seconds <= 0:
            continue

        def step(share: float, op: int = op, seconds: float = seconds) -> float:
            durations = flow.duration_s.copy()
            durations[op] = seconds * (1.0 - share)
            slower = replace(flow, duration_s=durations)
            return replay(slower, result.links, begin_s=result.begin_s).step_s

        slope, kink = _line(step, 1.0, result.step_s)
        found.append(
            OpSensitivity(op, flow.names[op], int(flow.rank[op]), -slope / seconds, seconds * (1.0 - kink))
        )
    return sorted(found, key=lambda item: -item.s_per_s * float(flow.duration_s[item.op]))


def link_sensitivity(result: StepReplay) -> list[LinkSensitivity]:
    """Gains of faster interfaces: all hosts together first, then each host, in both directions."""
    found = []
    for host in (-1, *range(result.dataflow.host_count)):

        def step(share: float, host: int = host) -> float:
            faster = result.links.scaled(1.0 / (1.0 - share), None if host < 0 else host)
            return replay(result.dataflow, faster, begin_s=result.begin_s).step_s

        end = 1.0 - 1.0 / _FASTEST
        slope, kink = _line(step, end, result.step_s)
        rates = result.links.bandwidth_out_bytes_per_s
        rate = float(rates.mean() if host < 0 else rates[host])
        found.append(
            LinkSensitivity(
                host, slope / rate, result.step_s - step(0.5), np.inf if kink >= end else 1.0 / (1.0 - kink)
            )
        )
    return found


def _line(step: Callable[[float], float], end: float, base: float) -> tuple[float, float]:
    """Slope of step(share) at 0 and the largest share in [0, end] up to which the line holds."""
    slope = (step(_STEP * end) - base) / (_STEP * end)

    def holds(share: float) -> bool:
        return abs(step(share) - base - slope * share) <= _TOLERANCE * base

    if holds(end):
        return slope, end
    low, high = _STEP * end, end
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return slope, low
