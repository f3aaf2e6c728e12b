"""Process groups of a pipeline update: replicas, stages that share a parameter, all ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import nn

from wirewise.errors import InputError, PlanError
from wirewise.plans import Plan, StagePlan
from wirewise.runtime.pipeline.dtensors import local_part, plain_names, ranks_alike
from wirewise.runtime.pipeline.layers import LayerGraph
from wirewise.runtime.pipeline.messages import MessageJournal
from wirewise.runtime.pipeline.updates import GradientExchange
from wirewise.runtime.pipeline.weights import Weights
from wirewise.runtime.transport import Transport

__all__ = ["check_same_plan", "make_exchange", "shared_parameters"]


def check_same_plan(transport: Transport, plan: Plan, digest: int) -> None:
    """Check that all ranks have the same plan.

    Args:
        transport: Messages between all ranks.
        plan: Plan of this rank.
        digest: 63-bit hash of everything that must be equal.

    Raises:
        PlanError: The plan is for another number of ranks, or differs between ranks; raised on every rank.
        PeerError: A peer is gone.
    """
    if plan.world_size != transport.world_size:
        raise PlanError(
            f"plan {plan.planner!r} was made for world size {plan.world_size}, the process group has "
            f"{transport.world_size} ranks; make the plan again or start {plan.world_size}"
        )
    found = [int(one) for one in transport.all_gather(torch.tensor([digest]), "the comparison of the plans")]
    if different := [rank for rank, one in enumerate(found) if one != found[0]]:
        raise PlanError(
            f"ranks {different} have another plan, other modules or another seed than rank 0; give all ranks the same"
        )


def shared_parameters(layers: LayerGraph, plan: StagePlan) -> dict[nn.Parameter, tuple[int, ...]]:
    """Positions of each trained parameter shared by modules of several positions, such as tied embeddings."""
    positions: dict[nn.Parameter, set[int]] = {}
    for stage in plan.stages:
        for name in stage.modules:
            for parameter in layers.modules[name].parameters():
                if parameter.requires_grad:
                    positions.setdefault(parameter, set()).add(stage.position)
    return {parameter: tuple(sorted(own)) for parameter, own in positions.items() if len(own) > 1}


def make_exchange(
    transport: Transport,
    plan: StagePlan,
    layers: LayerGraph,
    weights: Weights,
    *,
    with_norm: bool,
    journal: MessageJournal | None = None,
    shards: Collection[str] | None = None,
) -> GradientExchange:
    """Make the gradient exchange of an update, after synchronising the initial weights of equal stages.

    Args:
        transport: Transport between all ranks; that of the default group if further groups are needed.
        plan: Plan that fits the group.
        layers: Modules of the model, before another weight version is installed.
        weights: Weights of this rank.
        with_norm: Whether the gradient norm over all stages is needed.
        journal: Journal of agreed results.
        shards: Names of plain parameters that are separate shards on the ranks of a stage.

    Raises:
        InputError: Further groups are needed without a default group, or the norm is needed and `shards` is not
            given.
        PlanError: Stages of different width share a parameter.
    """
    position, replica, lane = plan.place_of(transport.rank)
    ties = shared_parameters(layers, plan)
    holders = sorted(set(ties.values()))
    for own in holders:
        if len({len(plan.ranks[p][0]) for p in own}) > 1:
            raise PlanError(
                f"positions {list(own)} share a parameter and have {[len(plan.ranks[p][0]) for p in own]} ranks a "
                "replica - at `$.ranks`; expected as many at each"
            )

    def same_stage(place: int, part: int) -> tuple[int, ...]:
        return tuple(own[part] for own in plan.ranks[place])

    def same_share(places: Sequence[int], pipeline: int, part: int) -> tuple[int, ...]:
        return tuple(plan.ranks[place][pipeline][part] for place in places)

    widths = [len(ranks[0]) for ranks in plan.ranks]
    width = widths[position]
    if with_norm and width > 1 and shards is None and (plain := plain_names(weights.named)):
        raise InputError(
            f"a norm of all gradients is asked for, and {plain[0]!r} is a plain tensor on {width} ranks that share its "
            "stage; say with `shards` which of these are parts of their own on each rank, or make them DTensors"
        )
    wanted: list[tuple[int, ...]] = []
    if plan.replicas > 1:
        wanted += [same_stage(p, part) for p, width in enumerate(widths) for part in range(width)]
    wanted += [
        same_share(own, r, part)
        for own in holders
        for r in range(plan.replicas)
        for part in range(widths[own[0]])
    ]
    if with_norm and plan.world_size > 1:
        wanted.append(tuple(range(plan.world_size)))
    groups = _groups(transport, wanted)
    replicas = groups.get(same_stage(position, lane)) if plan.replicas > 1 else None
    names = {parameter: name for name, parameter in weights.named.items()}
    shared = {
        names[parameter]: (number, groups[same_share(own, replica, lane)])
        for number, (parameter, own) in enumerate(ties.items())
        if position in own
    }
    counted = {
        name: ranks_alike(parameter, width, name in (shards or ()))
        for name, parameter in weights.named.items()
        if position == ties.get(parameter, (position,))[0]
    }
    # Ranks that go on after a fault have states, from different updates at times.
    starting = journal is None or journal.generation == 1
    if starting and replicas is not None and weights.named:
        replicas.broadcast(
            {n: local_part(p) for n, p in weights.named.items()}, "the broadcast to the replicas"
        )
    for name, (_, group) in shared.items() if starting else ():
        group.broadcast({"": local_part(weights.named[name])}, f"the broadcast of the shared {name!r}")
    everyone = groups.get(tuple(range(plan.world_size))) if with_norm else None
    if with_norm and plan.world_size == 1:
        everyone = transport
    return GradientExchange(weights, replicas, shared, counted, everyone, plan.replicas, journal)


def _groups(transport: Transport, wanted: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Transport]:
    """A transport for each list of ranks with this one in it; all ranks call it."""
    if not wanted:
        return {}
    if not dist.is_initialized() or transport.group is not dist.group.WORLD:
        raise InputError(
            "replicas, shared parameters, a clipped norm and a loss scale need process groups of some of the ranks, "
            "which only the default group has; call torch.distributed.init_process_group and leave process_group out"
        )
    found = {}
    for ranks in wanted:
        group = dist.new_group(list(ranks))
        if transport.rank in ranks:
            assert isinstance(group, dist.ProcessGroup)
            # Reports in the store go by the numbers of the job, which a smaller group does not have.
            store = transport.store if len(ranks) == transport.world_size else None
            found[ranks] = Transport(
                group, timeout_s=transport.timeout_s, store=store, is_lost=transport.is_lost
            )
    return found
