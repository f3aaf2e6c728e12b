"""What a replay says that a step would gain without its stalls, to be put next to measured ones."""

from __future__ import annotations

from wirewise.cost.stalls import Amount
from wirewise.sim.steps import StepPrediction, replay_changed, replay_steps
from wirewise.sim.traces import record
from wirewise.sim.whatif import parse
from wirewise.trace import Trace

__all__ = ["counterfactuals"]

_CHANGES = {"no_communication": "no_communication", "instant_data": "scale=data:x0"}


def counterfactuals(trace: Trace) -> dict[str, Amount]:
    """Seconds by which a step gets shorter without communication, and with data that is always ready.

    Args:
        trace: On aligned clocks, of the same command on the same machines.

    Raises:
        InputError: As `sim.replay_trace`.
    """
    found = record(trace)
    base = replay_steps(found.steps, found.links, interference=found.interference)
    kinds = {op.kind for rank in trace.ranks for op in rank.ops}
    changes = {name: text for name, text in _CHANGES.items() if name != "instant_data" or "data" in kinds}
    return {
        name: _gain(
            base, replay_changed(found.steps, found.links, parse(text), interference=found.interference)
        )
        for name, text in changes.items()
    }


def _gain(base: StepPrediction, without: StepPrediction) -> Amount:
    mean = base.predicted_step_s - without.predicted_step_s
    halves = [(p.ci95_s[1] - p.ci95_s[0]) / 2 for p in (base, without)]
    # As of independent means; both are of the same steps, so this is rather too wide.
    half = sum(width**2 for width in halves) ** 0.5
    return Amount(mean, (mean - half, mean + half))
