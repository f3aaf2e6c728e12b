"""Giant tensors in pieces, so that encoding, sending and decoding one overlap each other.

A piece is a tensor of the chain like any other, ready when its tensor is; so the search for groups stays exact, and as
groups of pieces may be the tensors again, the best step with pieces is never longer than that without.
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
"""Tensors of more elements travel in pieces; "auto": if that gains enough, by the limit that gains most."""

_LEAST_GAIN = 0.02
"""Predicted share of the step that "auto" asks of pieces: more segments cost some bytes, and more groups some noise."""
_SHARES = (8, 32, 128)
"""The limits that "auto" tries are all elements over these."""


def parse_split(text: str) -> Split:
    """What "auto", "none" or a size such as 16MiB, of float32, says.

    Raises:
        InputError: It is none of them, or less than an element.
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
    """The problem with some tensors in pieces.

    Args:
        problem: Problem with whole tensors.
        splits: Elements of a piece of each of them, by name (`plans.splits`).

    Raises:
        InputError: A tensor that the problem does not have, pieces that do not make it smaller, or a codec that needs
            whole matrices.
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
    """The plan with as many pieces as the option asks for; `unsplit_step_s` tells what none would take.

    Args:
        problem: Problem with whole tensors.
        plan: Makes the plan of a problem.
        split: Value of the option.

    Raises:
        InputError: Raised by `with_splits`, or a limit below an element.
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
