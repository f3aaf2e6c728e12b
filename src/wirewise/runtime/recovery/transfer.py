"""State transfer between the ranks of a new generation, and the check that all have the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from wirewise.errors import PeerError
from wirewise.runtime.recovery.consistency import Updates
from wirewise.runtime.recovery.decision import Phase
from wirewise.runtime.recovery.phases import Continuation
from wirewise.runtime.recovery.state import TrainingState, copy_tree
from wirewise.runtime.transport import Transport

__all__ = ["check_alike", "copy_parameters", "copy_replicated_state", "gather_values"]

_Value = TypeVar("_Value")


def copy_parameters(
    state: TrainingState,
    transport: Transport,
    rank: int,
    continuations: Mapping[int, Continuation],
    ranks: Sequence[int],
) -> bool:
    """Copy parameters and averages from replicas to ranks without them; returns whether this rank is one.

    Args:
        state: State of this rank.
        transport: Transport between the processes of the generation.
        rank: Index of this rank.
        continuations: Continuation of each rank.
        ranks: Ranks of the processes, in the order of the transport.
    """
    copies = {other: one.weights for other, one in continuations.items() if one.weights}
    for own in sorted(set(copies.values())):
        sources = [ranks.index(source) for source in own]
        targets = [ranks.index(target) for target, its in copies.items() if its == own]
        tree = copy_tree(state.parameter_state, transport, sources, targets)
        if tree is not None:
            state.load_parameter_state(tree)
    return rank in copies


def copy_replicated_state(
    updates: Updates, transport: Transport, continuations: Mapping[int, Continuation], ranks: Sequence[int]
) -> Any:
    """Copy the rest of the step's state, in the phase that this rank needs. None if it keeps its own."""
    result = None
    phases: tuple[Phase, ...] = ("before", "after")
    for phase in phases:
        copies = {rank: one for rank, one in continuations.items() if one.phase == phase and one.sources}
        if not copies:
            continue
        sources = [ranks.index(rank) for rank in next(iter(copies.values())).sources]
        targets = [ranks.index(rank) for rank in copies]
        tree = copy_tree(partial(updates.replicated_state_of, phase), transport, sources, targets)
        result = tree if tree is not None else result
    return result


def check_alike(transport: Transport, width: int, step: int, own: tuple[Phase, str, str]) -> None:
    """Compare the digests of all replicas in the same phase of the step.

    Args:
        transport: Transport between the processes of the generation.
        width: Number of shards of the model, which is the rank distance of its replicas.
        step: Step of the state.
        own: Phase of this rank, and digests of its parameters and averages and of the rest.

    Raises:
        PeerError: Digests of replicas differ.
    """
    found = gather_values(transport, own, tuple[Phase, str, str])
    heavies: dict[tuple[int, Phase], str] = {}
    lights: dict[Phase, str] = {}
    differ = [
        place
        for place, (phase, heavy, light) in enumerate(found)
        if heavies.setdefault((place % width, phase), heavy) != heavy
        or lights.setdefault(phase, light) != light
    ]
    if differ:
        raise PeerError(
            f"after recovery processes {differ} of {len(found)} hold another state of step {step} than the first; look "
            "for an operation that is not deterministic, and start again from a checkpoint"
        )


def gather_values(transport: Transport, value: _Value, kind: type[_Value]) -> list[_Value]:
    """Gather a value from each process of the group."""
    found = transport.from_all(msgspec.json.encode(value), "what ranks tell of their state")
    return [msgspec.json.decode(one, type=kind) for one in found]
