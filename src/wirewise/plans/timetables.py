"""Pipeline timetables as data: the stage actions of every position, in order.

A position is a place in the pipeline with its own ranks; it runs its actions in sequence. Transfers are not listed:
an action starts once its position is free and what it needs has arrived (`needs`). A timetable covers one update.
Where updates follow each other without a flush, microbatch m + j stands for microbatch j of the next update, and
`unroll` spells out several updates.

Sources: GPipe (Huang et al., 2019); 1F1B and two weight versions (PipeDream-2BW, Narayanan et al., ICML 2021);
interleaved stages (Megatron-LM, Narayanan et al., 2021); eager 1F1B (Zhuang et al., MLSys 2023); split backward passes
(zero bubble, Qi et al., 2024).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from wirewise.errors import PlanError

__all__ = [
    "STYLES",
    "ActionKind",
    "StageAction",
    "StagePass",
    "Timetable",
    "eager",
    "eager_depths",
    "eager_split",
    "gpipe",
    "in_flight",
    "interleaved",
    "needs",
    "one_f_one_b",
    "order_passes",
    "timetable",
    "two_versions",
    "unroll",
    "weight_version",
    "zero_bubble",
]

ActionKind = Literal["F", "B", "I", "W"]
"""Kinds of passes: forward; whole backward; input gradients alone; weight gradients alone."""


class StageAction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pass of one stage over one microbatch; `["F", 0, 3]` in JSON."""

    kind: ActionKind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} of stage {self.stage}"


Timetable = tuple[tuple[StageAction, ...], ...]
"""Actions of each position in their order."""

Edges = Iterable[tuple[int, int]]
"""Pairs of stages: one sends activations, the other receives them and sends gradients back."""


class StagePass(NamedTuple):
    """An action in a sequence of updates."""

    update: int
    """Number of the update, from 0."""
    kind: ActionKind
    stage: int
    microbatch: int
    """Microbatch of this update, 0 to m - 1."""

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} of stage {self.stage} in update {self.update}"


def one_f_one_b(positions: int, microbatches: int) -> Timetable:
    """1F1B: position i has at most p - i microbatches in flight, then alternates backward and forward passes."""
    return _alternating([positions - i for i in range(positions)], microbatches)


def gpipe(positions: int, microbatches: int) -> Timetable:
    """GPipe: all forward passes of an update, then all backward passes."""
    return _alternating([microbatches] * positions, microbatches)


def eager_depths(positions: int, microbatches: int) -> list[int]:
    """Microbatches in flight at each position that hide transfers of up to half a forward and backward pass."""
    return [min(microbatches, 2 * (positions - i) - 1) for i in range(positions)]


def eager(positions: int, microbatches: int, depths: Sequence[int] | None = None) -> Timetable:
    """Eager 1F1B: more forward passes ahead, so that transfers overlap with compute.

    Args:
        positions: Number of positions p, each with one stage.
        microbatches: Number of microbatches m per update.
        depths: Microbatches in flight at each position, non-increasing. Defaults to `eager_depths`.

    Raises:
        PlanError: Depths have another length, are below 1, or increase, which would deadlock the pipeline.
    """
    return _alternating(_depths(depths, positions, eager_depths(positions, microbatches)), microbatches)


def eager_split(positions: int, microbatches: int, depths: Sequence[int] | None = None) -> Timetable:
    """Eager 1F1B that sends input gradients before computing weight gradients; see `eager`."""
    depths = _depths(depths, positions, eager_depths(positions, microbatches))
    return _alternating(depths, microbatches, [0] * positions)


def zero_bubble(positions: int, microbatches: int, depths: Sequence[int] | None = None) -> Timetable:
    """ZB-H1: 1F1B whose weight gradients fill the idle time of the drain.

    Position i delays weight gradients by i microbatches, so all positions keep as many activations as the first. See
    `eager` for the arguments.
    """
    depths = _depths(depths, positions, [positions - i for i in range(positions)])
    return _alternating(depths, microbatches, [min(i, microbatches - 1) for i in range(positions)])


def two_versions(positions: int, microbatches: int, depths: Sequence[int] | None = None) -> Timetable:
    """2BW: 1F1B without a flush between updates, with two versions of the weights.

    Args:
        positions: Number of positions p, each with one stage.
        microbatches: Number of microbatches m per update, at least p.
        depths: Microbatches in flight at each position, non-increasing. Defaults to p - i at position i.

    Raises:
        PlanError: There are fewer microbatches than positions, or depths need more than two versions; see `eager`
            too.
    """
    depths = _depths(depths, positions, [positions - i for i in range(positions)])
    if microbatches < max(positions, depths[0]):
        raise PlanError(
            f"got {microbatches} microbatches for {positions} positions with {depths[0]} in flight; two weight "
            "versions need at least as many microbatches as positions and as are in flight"
        )
    return tuple(
        tuple(
            action
            for k in range(microbatches)
            for action in (StageAction("F", position, k + depth - 1), StageAction("B", position, k))
        )
        for position, depth in enumerate(depths)
    )


def interleaved(positions: int, microbatches: int, chunks: int = 2) -> Timetable:
    """Interleaved 1F1B over several stages per position; position i has stages i, p + i, 2 p + i and so on.

    Microbatches run in rounds of about p; a stage processes a round before the position's next stage does. Twice the
    forward passes of 1F1B run ahead, so with one stage per position this is the eager timetable.

    Args:
        positions: Number of positions p.
        microbatches: Number of microbatches m per update.
        chunks: Number of stages per position.
    """
    _at_least_one(positions=positions, microbatches=microbatches, chunks=chunks)
    rounds = max(1, microbatches // positions)
    first = [microbatches * r // rounds for r in range(rounds + 1)]
    order = [
        (chunk, microbatch)
        for r in range(rounds)
        for chunk in range(chunks)
        for microbatch in range(first[r], first[r + 1])
    ]
    widest = max(last - begin for begin, last in itertools.pairwise(first))
    rows = []
    for position in range(positions):
        forward = [StageAction("F", chunk * positions + position, k) for chunk, k in order]
        backward = [StageAction("B", (chunks - 1 - chunk) * positions + position, k) for chunk, k in order]
        ahead = min((chunks - 1) * widest + 2 * (positions - 1 - position), len(order))
        row = forward[:ahead]
        for done, action in enumerate(backward):
            row += [*forward[ahead + done : ahead + done + 1], action]
        rows.append(tuple(row))
    return tuple(rows)


STYLES: Mapping[str, Callable[..., Timetable]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager": eager,
    "eager-split": eager_split,
    "zero-bubble": zero_bubble,
    "interleaved": interleaved,
    "2bw": two_versions,
}
"""Generators by name: `(positions, microbatches)`, with `depths` or `chunks` where the style has them."""


def timetable(
    style: str,
    positions: int,
    microbatches: int,
    *,
    depths: Sequence[int] | None = None,
    chunks: int | None = None,
) -> Timetable:
    """Build the timetable of a style.

    Args:
        style: Name in `STYLES`.
        positions: Number of positions.
        microbatches: Number of microbatches per update.
        depths: Microbatches in flight at each position. Defaults to the style's own.
        chunks: Stages per position of interleaved ones. Defaults to 2.

    Raises:
        PlanError: The style is unknown, a number is out of range, or the style does not take an argument.
    """
    if style not in STYLES:
        raise PlanError(f"unknown style of timetable {style!r}; expected one of: {', '.join(STYLES)}")
    _at_least_one(positions=positions, microbatches=microbatches)
    if depths is not None and style in ("gpipe", "1f1b", "interleaved"):
        raise PlanError(
            f"timetable {style!r} fixes what is in flight; leave depths out, or take eager or zero-bubble"
        )
    if chunks is not None and style != "interleaved" and chunks != 1:
        raise PlanError(f"timetable {style!r} has one stage a position, got {chunks}; take interleaved")
    given = {"depths": depths} if depths is not None else {}
    if style == "interleaved" and chunks is not None:
        return interleaved(positions, microbatches, chunks)
    return STYLES[style](positions, microbatches, **given)


def weight_version(microbatch: int, microbatches: int) -> int:
    """Weight version that a microbatch uses in both passes with two versions (2BW).

    Args:
        microbatch: Index of the microbatch over all updates, from 0.
        microbatches: Number of microbatches m per update.

    Returns:
        Number of updates in these weights: one less than those before the microbatch's own, at least 0.
    """
    return max(microbatch // microbatches - 1, 0)


def unroll(row: Sequence[StageAction], microbatches: int, updates: int) -> Iterator[StagePass]:
    """Passes of a position over several updates; the first and the last fill and drain the pipeline."""
    ahead = [a for a in row if a.microbatch >= microbatches]
    for action in ahead:
        yield StagePass(0, action.kind, action.stage, action.microbatch - microbatches)
    for update in range(updates):
        for action in row:
            later, microbatch = divmod(action.microbatch, microbatches)
            if update + later < updates:
                yield StagePass(update + later, action.kind, action.stage, microbatch)


def needs(step: StagePass, edges: Edges) -> list[StagePass]:
    """Passes of other stages on whose results a pass depends.

    Args:
        step: Pass: forward passes need activations of earlier stages, backward passes gradients of later ones.
        edges: Pairs of stages between which activations are sent.
    """
    if step.kind == "F":
        return [step._replace(stage=source) for source, target in edges if target == step.stage]
    if step.kind == "W":
        return []
    return [step._replace(stage=target) for source, target in edges if source == step.stage]


def order_passes(rows: Sequence[Sequence[StagePass]], edges: Edges) -> list[tuple[int, StagePass]]:
    """Order the passes of all positions topologically, with their positions.

    Args:
        rows: Passes of each position, in order.
        edges: Pairs of stages between which activations are sent.

    Raises:
        PlanError: The positions deadlock; the message says what each waits for.
    """
    edges = tuple(edges)
    done: set[StagePass] = set()
    waiting: dict[StagePass, list[int]] = {}
    place, found = [0] * len(rows), list[tuple[int, StagePass]]()
    ready = deque(range(len(rows)))
    while ready:
        position = ready.popleft()
        while place[position] < len(rows[position]):
            step = rows[position][place[position]]
            missing = [one for one in _alternatives(step, edges) if not done & set(one)]
            if missing:
                for one in missing[0]:
                    waiting.setdefault(one, []).append(position)
                break
            found.append((position, step))
            place[position] += 1
            done.add(step)
            ready.extend(waiting.pop(step, ()))
    stuck = [
        f"position {position} waits before {rows[position][place[position]]}"
        for position in range(len(rows))
        if place[position] < len(rows[position])
    ]
    if stuck:
        raise PlanError(
            f"positions wait for each other: {'; '.join(stuck[:4])} - at `$.timetable`; expected an order in which "
            "what each needs comes first"
        )
    return found


def in_flight(row: Sequence[StageAction], microbatches: int) -> int:
    """Maximum number of activations, each of one stage and one microbatch, that a position keeps at once."""
    now = most = 0
    for step in unroll(row, microbatches, 3):
        now += {"F": 1, "B": -1, "I": 0, "W": -1}[step.kind]
        most = max(most, now)
    return most


def _alternatives(step: StagePass, edges: tuple[tuple[int, int], ...]) -> list[tuple[StagePass, ...]]:
    """Steps of which one is enough, for each need: a whole backward pass, or that of the inputs."""
    return [
        (one,) if one.kind == "F" else (one._replace(kind="B"), one._replace(kind="I"))
        for one in needs(step, edges)
    ]


def _alternating(
    depths: Sequence[int], microbatches: int, weight_delay: Sequence[int] | None = None
) -> Timetable:
    """Forward passes up to a depth, then one after each backward pass.

    Args:
        depths: Forward passes of each position before its first backward pass.
        microbatches: Microbatches of an update.
        weight_delay: Microbatches that gradients of weights come after those of inputs; None: whole backward passes.
    """
    _at_least_one(positions=len(depths), microbatches=microbatches)
    rows = []
    for stage, depth in enumerate(depths):
        forward = [StageAction("F", stage, k) for k in range(microbatches)]
        row = forward[:depth]
        for k in range(microbatches):
            if weight_delay is None:
                row.append(StageAction("B", stage, k))
            else:
                row.append(StageAction("I", stage, k))
                if k >= weight_delay[stage]:
                    row.append(StageAction("W", stage, k - weight_delay[stage]))
            row += forward[depth + k : depth + k + 1]
        if weight_delay is not None:
            row += [
                StageAction("W", stage, k) for k in range(microbatches - weight_delay[stage], microbatches)
            ]
        rows.append(tuple(row))
    return tuple(rows)


def _depths(given: Sequence[int] | None, positions: int, own: list[int]) -> list[int]:
    if given is None:
        return own
    depths = list(given)
    falling = all(later <= earlier for earlier, later in itertools.pairwise(depths))
    if len(depths) != positions or min(depths, default=0) < 1 or not falling:
        raise PlanError(
            f"depths are {depths}; expected {positions} numbers of at least 1, none above the one before: a position "
            "that waits for more microbatches than the one before may start would wait for ever"
        )
    return depths


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise PlanError(f"{name} is {number}; expected at least 1")
