"""What a microbatch of a step is: its captured step, and the plan of the whole batch as one of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from wirewise.errors import InputError, PlanError
from wirewise.plans.parallel import ParallelPlan, parse_placements
from wirewise.runtime.parallel.program import CapturedStep

__all__ = ["of_microbatch"]


def of_microbatch(
    plan: ParallelPlan, step: CapturedStep, microbatch: CapturedStep | None
) -> tuple[CapturedStep, ParallelPlan]:
    """The step of a microbatch, and the plan of it.

    Blocks of which each is cut for itself are as long in a microbatch as in the batch, so there are fewer of them where
    a dimension grows with the batch.

    Args:
        plan: Plan of the whole batch.
        step: Captured step of the whole batch.
        microbatch: Captured step of a microbatch; may be None where the plan has one.

    Raises:
        InputError: Steps that are not alike.
        PlanError: A cut that is none of each microbatch.
    """
    if plan.microbatches == 1:
        return step, plan
    if microbatch is None:
        raise InputError(
            f"the plan has {plan.microbatches} microbatches; expected `microbatch`, the step captured with a batch of "
            f"1/{plan.microbatches} of the size"
        )
    ops = [[(node.op, node.source, node.phase) for node in one.graph.nodes] for one in (step, microbatch)]
    if ops[0] != ops[1]:
        raise InputError(
            f"the step of a microbatch has {len(ops[1])} operators, that of the batch {len(ops[0])}, or others; "
            "expected the same operators on smaller tensors"
        )
    shapes = [[node.parts or (node.shape,) for node in one.graph.nodes] for one in (step, microbatch)]

    def words(number: int, given: Sequence[str]) -> tuple[str, ...]:
        sizes = list(zip(shapes[0][number], shapes[1][number], strict=True))
        return tuple(
            ",".join(
                _word(number, one, whole, part, plan.microbatches)
                for one, (whole, part) in zip(word.split(","), sizes, strict=False)
            )
            for word in given
        )

    moves = tuple(
        replace(move, source=words(move.producer, move.source), target=words(move.producer, move.target))
        for move in plan.moves
    )
    placements = tuple(words(number, given) for number, given in enumerate(plan.placements))
    return microbatch, replace(plan, placements=placements, moves=moves)


def _word(number: int, word: str, whole: Sequence[int], part: Sequence[int], count: int) -> str:
    (one,) = parse_placements([word])
    if one.kind != "S" or one.factor == 1 or whole[one.dim] == part[one.dim]:
        return word
    if one.factor % count:
        raise PlanError(
            f"node {number} is placed {word}, in {one.factor} blocks of which {count} microbatches have no whole ones "
            f"- at `$.placements[{number}]`; expected a multiple of {count}: plan again"
        )
    return str(one._replace(factor=one.factor // count))
