"""The checker against programs run on random numbers: same verdict on right, broken and harmlessly changed ones."""

import itertools
import random
from collections import Counter

import msgspec
import numpy as np
import pytest

from tests.collective.random_programs import KINDS, changed, random_program
from tests.collective.reference import expected, run
from tests.collective.test_builders import random_inputs, same
from wirewise.collective import Program, Transfer, check, faults
from wirewise.collective.builders import build
from wirewise.errors import ProgramError


def right_on_numbers(program: Program, rng: random.Random) -> bool:
    """Whether 62-bit integers come out right, in whatever order writes of a step take place."""
    inputs = random_inputs(program, seed=rng.randrange(2**32))
    wanted = expected(program, inputs)
    given = list(program.transfers)
    orders = [given, given[::-1], rng.sample(given, len(given)), rng.sample(given, len(given))]
    try:
        return all(
            same(run(msgspec.structs.replace(program, transfers=tuple(order)), inputs), wanted)
            for order in orders
        )
    except ProgramError:
        return False


@pytest.mark.slow
def test_mutations():
    """D1: 1000 random programs, each changed in four ways."""
    rng = random.Random(7)
    verdicts: Counter[tuple[str, bool, bool]] = Counter()
    kinds: Counter[str] = Counter()
    for _ in range(1000):
        program = random_program(rng)
        assert not list(faults(program)) and right_on_numbers(program, rng), program
        for kind in KINDS:
            mutant = changed(program, kind, rng)
            found = next(faults(mutant), None)
            verdicts[kind, right_on_numbers(mutant, rng), found is None] += 1
            kinds[found.kind if found else "none"] += 1
    for kind in KINDS:
        assert verdicts[kind, False, False] > 100, f"too few {kind} that break a program"
        assert verdicts[kind, False, True] == 0, f"{kind} not found"
        assert verdicts[kind, True, False] == 0, f"false alarms after {kind}"
    assert min(kinds[kind] for kind in ("nothing to send", "added twice", "incomplete")) > 100, kinds


def test_writes_of_one_step_that_differ():
    """Steps on one cell: all pairs of a copy or sum of either of two values, last or overwritten."""
    rng = random.Random(1)
    outcomes = Counter()
    for first, second in itertools.product(itertools.product((0, 1), (False, True)), repeat=2):
        for later in ((), (Transfer(0, 0, 2, 3), Transfer(0, 1, 2, 4, True))):
            writes = (Transfer(0, first[0], 2, 2, first[1]), Transfer(0, second[0], 2, 2, second[1]))
            program = both(Transfer(0, 2, 0, 0, True), *writes, *later, collective="reduce", root=2)
            fine = right_on_numbers(program, rng)
            assert (not list(faults(program))) == fine, program
            outcomes[fine] += 1
    assert min(outcomes.values()) > 4, outcomes


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "rabenseifner", "double_tree"])
def test_every_doubled_sum_is_found(algorithm):
    program = build("all_reduce", algorithm, 6)
    for t in program.transfers:
        if t.reduces:
            twice = msgspec.structs.replace(program, transfers=(*program.transfers, t))
            assert next(fault.kind for fault in faults(twice)) == "added twice"


def both(*transfers, collective="all_reduce", root=0):
    return Program(name="hand", collective=collective, ranks=3, chunks=1, transfers=transfers, root=root)


def test_messages_name_the_place():
    with pytest.raises(
        ProgramError, match="nothing to send: in step 0 chunk 0 of rank 1 goes to rank 2, and rank 1"
    ):
        check(both(Transfer(0, 1, 2, 0), collective="broadcast"))
    with pytest.raises(
        ProgramError, match="incomplete: rank 1 ends without the values of ranks 0 in chunk 0"
    ):
        check(both(Transfer(0, 0, 2, 0), collective="broadcast"))
    with pytest.raises(
        ProgramError, match="incomplete: rank 0 ends without the values of ranks 1, 2 in chunk 0"
    ):
        check(both())
    with pytest.raises(ProgramError, match=r"added twice: .* where the values of ranks 1 are in already"):
        check(both(Transfer(0, 1, 0, 0, True), Transfer(0, 1, 0, 1, True)))
    with pytest.raises(ProgramError, match="race: in step 0 chunk 0 of rank 2 goes to rank 0"):
        check(both(Transfer(0, 1, 0, 0), Transfer(0, 2, 0, 0)))


def test_two_copies_of_one_value_in_a_step_are_harmless():
    program = both(Transfer(0, 0, 1, 0), Transfer(0, 0, 2, 0), Transfer(0, 1, 2, 1), Transfer(0, 0, 2, 1),
                   collective="broadcast")  # fmt: skip
    check(program)


def test_a_spoilt_value_that_is_overwritten_is_harmless():
    program = both(
        Transfer(0, 1, 0, 0, True), Transfer(0, 2, 0, 0, True), Transfer(0, 0, 1, 1), Transfer(0, 1, 2, 2, True),
        Transfer(0, 1, 2, 3),
    )  # fmt: skip
    check(program)
    assert "added twice" in {f.kind for f in faults(both(*program.transfers[:-1]))}


def test_large_programs_are_checked_in_little_time():
    """Time grows with the transfers: 65 280 of them here; no limit is asserted but that of the test."""
    program = build("all_gather", "ring", 256)
    check(program)
    inputs = [np.array([r]) for r in range(256)]
    assert same(run(program, inputs), expected(program, inputs))


@pytest.mark.parametrize("share", [1e300, 1e-12])
def test_shares_that_leave_a_chunk_without_bytes_are_refused(share):
    ring = build("all_reduce", "ring", 3)
    with pytest.raises(ProgramError, match="expected at most 1e\\+09 times the smallest"):
        check(msgspec.structs.replace(ring, shares=(share, *(1.0,) * (ring.chunks - 1))))
