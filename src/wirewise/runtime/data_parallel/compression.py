"""What a plan leaves open about compressed gradients; the same on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from wirewise.errors import InputError, PlanError
from wirewise.hosts import integer_variable
from wirewise.plans import Bucket, FusionPlan

if TYPE_CHECKING:
    from wirewise.codec.gradients import GradientCodec

__all__ = ["Compression", "check_plan"]

Nonfinite = Literal["raise", "skip"]


@dataclass(frozen=True)
class Compression:
    """How codecs are used.

    Args:
        options: Codec name to options for `codec.gradients.make`.
        block: Elements of a segment (`codec.gradients.Segments`); None: a segment is a tensor.
        feedback: Whether what a codec did not send is added to the next gradient (error feedback).
        nonfinite: What a NaN or infinity in a gradient that is to be encoded does. "raise": an InputError on every
            rank. "skip": all gradients of the step become NaN on every rank, so that `torch.amp.GradScaler` skips the
            step, and residuals are as before it; that takes a copy of them in each step.
        seed: Seed of random draws.
        ranks_per_host: Ranks of a host, which follow each other; for "hierarchical". None: what torchrun says.

    Raises:
        InputError: A value that cannot be used.
    """

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    block: int | None = None
    feedback: bool = True
    nonfinite: Nonfinite = "raise"
    seed: int = 0
    ranks_per_host: int | None = None

    def __post_init__(self) -> None:
        if self.nonfinite not in get_args(Nonfinite):
            raise InputError(f"nonfinite is {self.nonfinite!r}; expected one of {get_args(Nonfinite)}")
        for name, value in (("block", self.block), ("ranks_per_host", self.ranks_per_host)):
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected at least 1, or None")
        for name in self.options:
            self.codec(name)

    def codec(self, name: str) -> GradientCodec:
        """A codec with its options.

        Raises:
            InputError: An unknown codec or option.
        """
        # Loads numba, which trainings without codecs need not wait for.
        from wirewise.codec.gradients import make

        return make(name, **self.options.get(name, {}))

    def host_size(self, world_size: int) -> int:
        """Ranks of each host.

        Raises:
            PlanError: It is not known, or hosts are not full.
        """
        size = self.ranks_per_host or integer_variable("LOCAL_WORLD_SIZE", 0)
        if size < 1 or world_size % size:
            raise PlanError(
                f"the scheme 'hierarchical' got {size or 'no number of'} ranks a host for {world_size} ranks; expected "
                "full hosts: give Compression(ranks_per_host=...), or start with torchrun"
            )
        return size

    def described(self) -> str:
        """All that ranks must agree on, in one form."""
        options = sorted((name, sorted(chosen.items())) for name, chosen in self.options.items())
        return f"{options} {self.block} {self.feedback} {self.nonfinite} {self.seed} {self.ranks_per_host}"


def check_plan(plan: FusionPlan, compression: Compression) -> bool:
    """Whether the plan compresses anything or has another scheme than all-reduce.

    Raises:
        PlanError: A bucket cannot be carried out; the message names it.
    """
    for number, bucket in enumerate(plan.buckets):
        where = (
            f"bucket {number} of the plan by {plan.planner!r} goes as {bucket.codec!r} by {bucket.scheme!r}"
        )
        if bucket.scheme == "hierarchical":
            compression.host_size(plan.world_size)
        if bucket.codec == "none":
            continue
        try:
            codec = compression.codec(bucket.codec)
        except InputError as cause:
            raise PlanError(f"{where}: {cause}") from cause
        if bucket.scheme == "all_reduce" and not codec.linear:
            raise PlanError(
                f"{where}, but its payloads cannot be added up; plan it as all_gather or divisible"
            )
        if bucket.chunks > 1:
            raise PlanError(
                f"{where} in {bucket.chunks} chunks; expected 1 with a codec: make it several buckets"
            )
        _check_pieces(plan, bucket, codec, compression.block, where)
    return any(bucket.way != "all_reduce" for bucket in plan.buckets)


def _check_pieces(
    plan: FusionPlan, bucket: Bucket, codec: GradientCodec, block: int | None, where: str
) -> None:
    """Raise if the codec would make something else of pieces than of the parameters."""
    for name in {plan.parameter_of(name) for name in bucket.parameters} & plan.splits.keys():
        if "factor" in codec.memories:
            raise PlanError(
                f"{where} and holds pieces of {name!r}, but it needs whole matrices; plan without splits"
            )
        if block is not None and plan.splits[name] % block:
            raise PlanError(
                f"{where} and cuts {name!r} into pieces of {plan.splits[name]} elements, no multiple of the block of "
                f"{block}; give a Compression(block=...) that divides it, or plan without splits"
            )
