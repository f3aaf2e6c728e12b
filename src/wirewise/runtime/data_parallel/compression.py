"""Settings of gradient compression that a plan leaves open; the same on all ranks."""

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
    """Options of the codecs' use.

    Args:
        options: Options for `codec.gradients.make`, by codec name.
        block: Elements per segment (`codec.gradients.Segments`). Defaults to one segment per tensor.
        feedback: Whether to add the unsent remainder to the next gradient (error feedback).
        nonfinite: Handling of NaN or infinity in a gradient to encode. "raise": an InputError on every rank. "skip":
            all gradients of the step become NaN on every rank, so that `torch.amp.GradScaler` skips the step, and
            residuals are restored; that costs a copy of them in each step.
        seed: Seed of random rounding and selection.
        ranks_per_host: Consecutive ranks per host, for "hierarchical". Defaults to torchrun's value.

    Raises:
        InputError: A value is invalid.
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
        """Make a codec with its options.

        Raises:
            InputError: The codec or an option is unknown.
        """
        # Loads numba, which trainings without codecs need not wait for.
        from wirewise.codec.gradients import make

        return make(name, **self.options.get(name, {}))

    def host_size(self, world_size: int) -> int:
        """Number of ranks per host.

        Raises:
            PlanError: It is unknown, or hosts are not full.
        """
        size = self.ranks_per_host or integer_variable("LOCAL_WORLD_SIZE", 0)
        if size < 1 or world_size % size:
            raise PlanError(
                f"the scheme 'hierarchical' got {size or 'no number of'} ranks a host for {world_size} ranks; expected "
                "full hosts: give Compression(ranks_per_host=...), or start with torchrun"
            )
        return size

    def described(self) -> str:
        """Canonical text of all settings on which ranks must agree."""
        options = sorted((name, sorted(chosen.items())) for name, chosen in self.options.items())
        return f"{options} {self.block} {self.feedback} {self.nonfinite} {self.seed} {self.ranks_per_host}"


def check_plan(plan: FusionPlan, compression: Compression) -> bool:
    """Validate a plan; returns whether it compresses anything or uses another scheme than all-reduce.

    Raises:
        PlanError: A bucket cannot be executed; the message names it.
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
