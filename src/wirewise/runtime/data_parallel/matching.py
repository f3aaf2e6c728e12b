"""Resolution of the parameter and module names in a plan."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from wirewise.errors import PlanError
from wirewise.plans import FusionPlan
from wirewise.plans.splits import piece_name, piece_of
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.flat import Slot
from wirewise.runtime.transport import Transport

__all__ = [
    "check_agreement",
    "check_capturable",
    "check_decisions",
    "check_pieces",
    "check_ranks",
    "check_unchanged",
    "format_names",
    "modules_of",
    "parameters_of",
    "ranks_that_differ",
    "slots_of",
]


def check_decisions(plan: FusionPlan, carried: Collection[str], executor: str, instead: str) -> None:
    """Raise if a plan makes decisions that its executor cannot execute, so that none is silently ignored.

    Args:
        plan: Plan to check.
        carried: Names in `FusionPlan.decisions` that the executor supports.
        executor: Name of the executor, in words.
        instead: Remedy for the others.

    Raises:
        PlanError: The message names the fields.
    """
    if others := [name for name in plan.decisions if name not in carried]:
        raise PlanError(
            f"the plan by {plan.planner!r} decides on {', '.join(others)}; {executor} carries out buckets, "
            f"{', '.join(carried)}, and nothing else: {instead}"
        )


def check_capturable(plan: FusionPlan) -> None:
    """Raise if a plan makes decisions that a captured step cannot execute.

    Raises:
        PlanError: The message names the fields.
    """
    check_decisions(
        plan,
        ("chunks", "regions"),
        "a captured step",
        "plan without them, or without regions for runtime.data_parallel.parallel",
    )


def check_ranks(plan: FusionPlan, ranks: int) -> None:
    """Raise unless the number of ranks is that of the plan.

    Raises:
        PlanError: There are more, or fewer.
    """
    if plan.world_size != ranks:
        raise PlanError(
            f"plan {plan.planner!r} was made for world size {plan.world_size}, the process group has "
            f"{ranks} ranks; make the plan again or start {plan.world_size}"
        )


def parameters_of(model: nn.Module, plan: FusionPlan) -> list[dict[str, nn.Parameter]]:
    """Parameters of each bucket by the plan's names; a parameter of two modules may have either name.

    Raises:
        PlanError: The model lacks or does not train a named parameter, a trained parameter is in no bucket, a shared
            parameter occurs twice, or a split parameter has another size; the message lists them.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    place = {named[name]: name for name in plan.parameters if name in named}
    faults = {
        "not in the model": [name for name in plan.parameters if name not in named],
        "in the model but not in the plan": [
            name for name, p in model.named_parameters() if p.requires_grad and p not in place
        ],
        "in the plan but not trained": [
            name for name in plan.parameters if name in named and not named[name].requires_grad
        ],
        "in the plan under two names": [
            name for name in plan.parameters if name in named and place[named[name]] != name
        ],
    }
    if any(faults.values()):
        told = "; ".join(f"{what}: {format_names(names)}" for what, names in faults.items() if names)
        raise PlanError(
            f"the plan by {plan.planner!r} does not fit the model: {told}; make the plan again from this model, "
            "with the names of `model.named_parameters()`"
        )
    check_pieces(plan, named)
    _check_sizes(plan, named)
    return [{name: named[plan.parameter_of(name)] for name in bucket.parameters} for bucket in plan.buckets]


def check_pieces(plan: FusionPlan, named: Mapping[str, Tensor]) -> None:
    """Raise unless the parameters split by the plan have the same number of pieces.

    Raises:
        PlanError: The message names the first mismatch.
    """
    counts = Counter(plan.parameter_of(name) for bucket in plan.buckets for name in bucket.parameters)
    for name, size in plan.splits.items():
        elements = named[name].numel() if name in named else 0
        if counts[name] != -(-elements // size):
            raise PlanError(
                f"the plan by {plan.planner!r} has {counts[name]} pieces of {size} elements of {name!r}, the model "
                f"{f'{elements} elements' if elements else 'is not given, or has none of that name'}; plan for this "
                "model, or without splits"
            )


def _check_sizes(plan: FusionPlan, named: Mapping[str, nn.Parameter]) -> None:
    """Raise unless the gradients of each bucket have the bytes that were planned for."""
    for number, bucket in enumerate(plan.buckets):
        slots = [_slot(name, named[plan.parameter_of(name)], plan) for name in bucket.parameters]
        found = sum(slot.elements * slot.parameter.element_size() for slot in slots)
        if found != bucket.size_bytes:
            raise PlanError(
                f"the plan by {plan.planner!r} says size_bytes {bucket.size_bytes} of bucket {number}, whose gradients "
                f"have {found} bytes in this model; make the plan again from this model"
            )


def slots_of(model: nn.Module, plan: FusionPlan) -> list[list[Slot]]:
    """Slots of each bucket, by the model's first name of each parameter.

    Raises:
        PlanError: Names or sizes in the plan differ from the model's; the message lists them.
    """
    own = {p: name for name, p in model.named_parameters()}
    return [
        [_slot(name, p, plan, own[p]) for name, p in bucket.items()] for bucket in parameters_of(model, plan)
    ]


def _slot(listed: str, parameter: nn.Parameter, plan: FusionPlan, own: str = "") -> Slot:
    """Slot of a bucket, by the model's own name of the parameter."""
    piece = piece_of(listed, plan.splits)
    if piece is None:
        return Slot(own, parameter, parameter.numel())
    size = plan.splits[piece.parameter]
    return Slot(piece_name(own, piece.number), parameter, min(size, parameter.numel() - piece.number * size))


def modules_of(model: nn.Module, names: Iterable[str]) -> list[nn.Module]:
    """Modules by name.

    Raises:
        PlanError: The model lacks such modules; the message lists them.
    """
    known, wanted = dict(model.named_modules()), list(names)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise PlanError(
            f"the plan names modules that the model does not have: {format_names(unknown)}; it has "
            f"{format_names([name for name in known if name])}; make the plan again from this model"
        )
    return [known[name] for name in wanted]


def check_unchanged(model: nn.Module, planned: Collection[nn.Parameter]) -> None:
    """Raise if parameters were frozen, or trained ones added, since the plan was matched with the model.

    Raises:
        PlanError: The message lists them.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if len(trained) == len(planned) and all(p in planned for p in trained):
        return
    names = {p: name for name, p in model.named_parameters()}
    frozen = [
        names.get(p, "one that the model has no more")
        for p in planned
        if not p.requires_grad or p not in names
    ]
    added = [names[p] for p in trained if p not in planned]
    told = "; ".join(
        f"{what}: {format_names(found)}" for what, found in (("frozen", frozen), ("added", added)) if found
    )
    raise PlanError(
        f"the trained parameters are not those of the plan any more: {told}; make the plan again from this model, "
        "with the names of `model.named_parameters()`, and go on with it by `use(plan)` of what `parallel` returned"
    )


def check_agreement(
    transport: Transport, model: nn.Module, plan: FusionPlan, compression: Compression | None = None
) -> None:
    """Raise on every rank unless all have the same plan, compression and parameter shapes.

    Raises:
        PlanError: They differ; the message names the ranks that differ from rank 0.
        PeerError: A peer is gone.
    """
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    told = f"{plan.to_json()}{shapes}{(compression or Compression()).described()}"
    if others := ranks_that_differ(transport, told):
        raise PlanError(
            f"ranks {others} have another plan, Compression or other parameters than rank 0; buckets must be the same "
            "and in the same order everywhere: give all ranks the same plan file and the same model"
        )


def ranks_that_differ(transport: Transport, text: str) -> list[int]:
    """Ranks whose text differs from that of rank 0; a collective call.

    Raises:
        PeerError: A peer is gone.
    """
    digest = hashlib.sha256(text.encode()).digest()[:8]
    own = torch.frombuffer(bytearray(digest), dtype=torch.int64)
    seen = [int(t) for t in transport.all_gather(own, "the comparison of plans")]
    return [rank for rank, value in enumerate(seen) if value != seen[0]]


def format_names(names: Sequence[str], limit: int = 20) -> str:
    """Format the first names for messages."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
