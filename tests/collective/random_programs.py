"""Random programs that are right, and random changes to them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from wirewise.collective import COLLECTIVES, Program, Transfer
from wirewise.collective.builders import BUILDERS, build
from wirewise.collective.relations import blocks, contributors, receivers
from wirewise.errors import ProgramError

KINDS = ("drop", "duplicate", "reorder", "retarget")


def random_program(rng: random.Random) -> Program:
    """A known algorithm, or a tree of its own for each chunk, perhaps over ranks outside the group."""
    if rng.random() < 0.3:
        return _known(rng)
    collective = rng.choice(COLLECTIVES)
    members = rng.randint(2, 4 if collective == "all_to_all" else 6)
    ranks = members + rng.choice((0, 0, 1, 2))
    group = sorted(rng.sample(range(ranks), members))
    root = rng.randrange(members)
    each = rng.randint(1, 2)
    count = blocks(collective, members) * each
    found: list[Transfer] = []
    for chunk in range(count):
        starts = [group[i] for i in contributors(collective, chunk // each, members, root)]
        ends = [group[i] for i in receivers(collective, chunk // each, members, root)]
        found += _chunk(rng, chunk, starts, ends, ranks)
    rng.shuffle(found)
    return Program(
        name="random", collective=collective, ranks=ranks, chunks=count, transfers=tuple(found),
        root=group[root], members=tuple(group) if ranks > members else (),
    )  # fmt: skip


def changed(program: Program, kind: str, rng: random.Random) -> Program:
    """The program with one transfer dropped, doubled, sent elsewhere, or with two transfers' steps swapped."""
    found = list(program.transfers)
    place = rng.randrange(len(found))
    t = found[place]
    if kind == "drop":
        del found[place]
    elif kind == "duplicate":
        found.insert(place, moved(t, step=rng.choice((t.step, rng.randrange(program.steps + 1)))))
    elif kind == "retarget":
        others = [r for r in range(program.ranks) if r not in (t.source, t.target)] or [t.target]
        found[place] = moved(t, target=rng.choice(others))
    else:
        other = rng.randrange(len(found))
        found[place], found[other] = moved(t, step=found[other].step), moved(found[other], step=t.step)
    return msgspec.structs.replace(program, transfers=tuple(found))


def moved(t: Transfer, **changes: int) -> Transfer:
    return msgspec.structs.replace(t, **changes)


def _known(rng: random.Random) -> Program:
    while True:
        collective, algorithm = rng.choice(list(BUILDERS))
        ranks = rng.randint(2, 6)
        try:
            return build(collective, algorithm, ranks, root=rng.randrange(ranks), hosts=_hosts(rng, ranks))
        except ProgramError:
            continue


def _hosts(rng: random.Random, ranks: int) -> list[list[int]]:
    cut = rng.randint(1, ranks - 1)
    order = rng.sample(range(ranks), ranks)
    return [order[:cut], order[cut:]]


def _chunk(
    rng: random.Random, chunk: int, starts: Sequence[int], ends: Sequence[int], ranks: int
) -> list[Transfer]:
    """Transfers from a sum at one rank outwards; where several start, towards it first."""
    top = rng.choice(ends if len(ends) == 1 or len(starts) > 1 else starts)
    first = rng.randrange(3)
    if len(starts) == 1:
        return _tree(rng, chunk, starts[0], ends, range(ranks), first)
    out = _tree(rng, chunk, top, starts, starts, 0)
    last = max(t.step for t in out)
    back = [Transfer(chunk, t.target, t.source, first + last - t.step, True) for t in out]
    return back + _tree(rng, chunk, top, ends, range(ranks), first + last + 1)


def _tree(
    rng: random.Random, chunk: int, top: int, ends: Sequence[int], via: Sequence[int], first: int
) -> list[Transfer]:
    step_of, found = {top: first - 1}, list[Transfer]()
    while not set(ends) <= set(step_of):
        open_ = [r for r in (ends if rng.random() < 0.75 else via) if r not in step_of]
        if open_:
            source, target = rng.choice(list(step_of)), rng.choice(open_)
            step_of[target] = step_of[source] + rng.randint(1, 2)
            found.append(Transfer(chunk, source, target, step_of[target]))
    return found
