"""What compilers and frameworks do without a search: where the search starts, and what it is compared with."""

from __future__ import annotations

from wirewise.planners.fusion.disco.edges import fused_greedily
from wirewise.planners.fusion.disco.model import State, StepModel
from wirewise.sim.data_parallel import buckets

__all__ = ["BUCKETS", "FUSIONS", "baselines", "greedy"]

FUSIONS = ("none", "default", "maximal")
"""No fusion; producers into their only reader, as XLA does; all that is legal."""

BUCKETS: dict[str, float | None] = {"none": 0.0, "default": None, "1MiB": 2.0**20}
"""Caps; 0: each gradient alone, None: DistributedDataParallel's."""


def baselines(model: StepModel) -> dict[tuple[str, str], State]:
    """Each fusion with each rule of buckets, by the names of both."""
    alone = model.alone()
    fused = {
        "none": alone,
        "default": greedy(model, alone, shared=False),
        "maximal": greedy(model, alone, shared=True),
    }
    return {
        (name, rule): capped(model, fused[name], cap) for name in FUSIONS for rule, cap in BUCKETS.items()
    }


def greedy(model: StepModel, state: State, *, shared: bool) -> State:
    """Fuse producers into their readers, from the last operator to the first, wherever it is legal.

    Args:
        model: Model of the step.
        state: State without copies.
        shared: Also producers whose result is read elsewhere too.
    """
    return model.fused(state, fused_greedily(model.arrays, state.fusion, shared))


def capped(model: StepModel, state: State, cap_bytes: float | None) -> State:
    """Buckets of gradients as they get ready, each closed as soon as it holds its cap."""
    if cap_bytes == 0.0:
        return model.in_buckets(state, ([i] for i in range(len(state.bucket))))
    order = [one for group in model.buckets(state) for one in group]
    sizes = model.arrays.size_bytes[order].tolist()
    return model.in_buckets(state, ([order[i] for i in group] for group in buckets(sizes, cap_bytes)))
