"""Giant tensors in pieces, so that encoding, sending and decoding of one tensor overlap.

A piece is a tensor of the chain like any other, ready when its tensor is. The search for groups stays exact, and as
pieces may be grouped back to whole tensors, the best step with pieces is never longer than without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from msgspec.structs import replace as changed

from wirewise.cost.gradients import WIRES
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake.cuts import lower_bound_s
from wirewise.planners.fusion.cupcake.problem import CompressionProblem
from wirewise.plans.fusion import FusionPlan
from wirewise.plans.splits import pieces, splits_of
from wirewise.units import parse_size

__all__ = ["Split", "choose", "parse_split", "with_splits"]

Split = int | Literal["auto", "none"]
"""Size in elements above which tensors are sent in pieces; "auto" for the size that gains most, if it gains enough."""

# Pieces gain up to 6.1 % (VGG16, DGC, 1 Gbit/s), and nothing where the wire is always busy.
_LEAST_GAIN = 0.02
"""Predicted gain, as a fraction of the step, that "auto" asks of pieces: segments cost bytes, groups add noise."""
_SHARES = (8, 32, 128)
"""The limits that "auto" tries are all elements over these."""


def parse_split(text: str) -> Split:
    """Parse "auto", "none" or a size such as 16MiB, of float32.

    Raises:
        InputError: It is none of them, or less than one element.
    """
    if text in ("auto", "none"):
        return text  # type: ignore[return-value]
    try:
        return _checked(parse_size(text) // 4)
    except InputError as cause:
        raise InputError(
            f"{text!r} says no limit for pieces: {cause}; expected auto, none or such as 16MiB"
        ) from cause


def _checked(split: Split) -> Split:
    if split not in ("auto", "none") and (not isinstance(split, int) or split < 1):
        raise InputError(f"pieces of {split!r} elements; expected auto, none or at least 1")
    return split


def with_splits(problem: CompressionProblem, splits: Mapping[str, int]) -> CompressionProblem:
    """Problem with some tensors split into pieces.

    Args:
        problem: Problem with whole tensors.
        splits: Piece size in elements, by tensor name (`plans.splits`).

    Raises:
        InputError: The problem lacks a tensor, pieces are not smaller than it, or a codec needs whole matrices.
    """
    if not splits:
        return problem
    sizes = _sizes(problem)
    if wrong := [name for name, size in splits.items() if not 0 < size < sizes.get(name, 0)]:
        raise InputError(
            f"pieces of {splits[wrong[0]]} elements of {wrong[0]!r}, which has {sizes.get(wrong[0], 0)}; expected "
            "tensors of the problem and smaller pieces"
        )
    if matrices := _of_matrices(problem):
        raise InputError(
            f"codec {matrices[0]!r} needs whole matrices; plan without splits or without the codec"
        )
    found = list(_members(problem, sizes, splits))
    return replace(
        problem,
        names=[name for name, _, _ in found],
        elements=[elements for _, elements, _ in found],
        gaps_s=[gap_s for _, _, gap_s in found],
        splits=dict(splits),
    )


def _sizes(problem: CompressionProblem) -> dict[str, int]:
    names = problem.names or [str(i) for i in range(len(problem.elements))]
    return dict(zip(names, problem.elements, strict=True))


def _of_matrices(problem: CompressionProblem) -> list[str]:
    return [o.codec for o in problem.options if o.codec in WIRES and WIRES[o.codec].rank]


def _members(
    problem: CompressionProblem, sizes: Mapping[str, int], splits: Mapping[str, int]
) -> Iterator[tuple[str, int, float]]:
    """Name, elements and gap of each tensor or piece; all pieces are ready with the first."""
    for (name, elements), gap_s in zip(sizes.items(), problem.gaps_s, strict=True):
        if name not in splits:
            yield name, elements, gap_s
            continue
        for piece, (begin, end) in pieces(name, elements, splits[name]).items():
            yield piece, end - begin, gap_s if begin == 0 else 0.0


def choose(
    problem: CompressionProblem, plan: Callable[[CompressionProblem], FusionPlan], split: Split
) -> FusionPlan:
    """Plan with pieces as the option requests; `unsplit_step_s` is the step without.

    Args:
        problem: Problem with whole tensors.
        plan: Function that plans a problem.
        split: Value of the option.

    Raises:
        InputError: Raised by `with_splits`, or the limit is below one element.
    """
    whole = plan(problem)
    if _checked(split) == "none" or (split == "auto" and _of_matrices(problem)):
        return whole
    tried = [_known(plan(one), whole) for one in _problems(problem, split, whole.predicted_step_s)]
    best = min(tried, key=lambda one: one.predicted_step_s, default=whole)
    least = _LEAST_GAIN if split == "auto" else -1.0
    if best.predicted_step_s <= whole.predicted_step_s * (1 - least):
        return best
    return _known(whole, whole)


def _problems(problem: CompressionProblem, split: Split, whole_s: float) -> Iterator[CompressionProblem]:
    """Problems that may lead to a plan; of "auto" those whose bound is low enough."""
    elements = sum(problem.elements)
    limits = [max(elements // share, 1) for share in _SHARES] if isinstance(split, str) else [split]
    before: dict[str, int] = {}
    for most in limits:
        splits = splits_of(_sizes(problem), most)
        if splits and splits != before:
            before, found = splits, with_splits(problem, splits)
            if split != "auto" or lower_bound_s(found) <= whole_s * (1 - _LEAST_GAIN):
                yield found


def _known(plan: FusionPlan, whole: FusionPlan) -> FusionPlan:
    """Plan that also tells what plans of whole tensors take."""
    return changed(plan, baseline_step_s=whole.baseline_step_s, unsplit_step_s=whole.predicted_step_s)
