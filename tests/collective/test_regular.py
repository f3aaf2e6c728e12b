"""Programs as rules: the explicit form is the oracle of what they send, and faults in a rule are found."""

import msgspec
import pytest

from wirewise.collective import build, check
from wirewise.collective.check import check_regular
from wirewise.collective.regular import REGULAR, RegularProgram, loads, regular
from wirewise.errors import ProgramError


def hosts_of(ranks, period):
    return [range(first, first + period) for first in range(0, ranks, period)]


@pytest.mark.parametrize(("collective", "algorithm"), REGULAR)
@pytest.mark.parametrize(("ranks", "period"), [(1, 1), (3, 1), (8, 8), (6, 2), (12, 3), (16, 4)])
def test_a_rule_says_what_its_builder_says(collective, algorithm, ranks, period):
    found = regular(collective, algorithm, ranks, period=period, segments=2)
    explicit = found.expand()
    built = build(collective, algorithm, ranks, hosts=hosts_of(ranks, period), segments=2)
    assert sorted(explicit.transfers, key=msgspec.structs.astuple) == sorted(
        built.transfers, key=msgspec.structs.astuple
    )
    check_regular(found)
    check(explicit)
    assert loads(found.to_json()) == found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_p3_the_rule_of_256_ranks_is_the_explicit_form(algorithm):
    found = regular("all_reduce", algorithm, 256, period=8)
    built = build("all_reduce", algorithm, 256, hosts=hosts_of(256, 8))
    assert set(found.expand().transfers) == set(built.transfers)
    check_regular(found)


@pytest.mark.parametrize("rank", [0, 3, 11])
def test_messages_of_a_rank_are_those_of_the_explicit_form(rank):
    found = regular("all_reduce", "hierarchical", 12, period=4)
    wanted = [m for m in found.expand().messages() if rank in (m.source, m.target)]
    own = [message for _, message in found.messages_of(rank)]
    assert sorted(m[:3] for m in own) == sorted(m[:3] for m in wanted)
    assert {frozenset(m.transfers) for m in own} == {frozenset(m.transfers) for m in wanted}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_wrong_with_a_rule_is_wrong_with_its_explicit_form(seed):
    right = regular("all_reduce", "hierarchical_bruck", 12, period=3)
    transfers = list(right.rule.transfers)
    broken = transfers.pop(seed * len(transfers) // 8)
    if seed % 2:
        transfers.append(msgspec.structs.replace(broken, chunk=(broken.chunk + 1) % right.rule.chunks))
    wrong = right.changed(transfers=tuple(transfers))
    for checked in (lambda: check_regular(wrong), lambda: check(wrong.expand())):
        with pytest.raises(
            ProgramError, match=r"hierarchical_bruck.*: (incomplete|added twice|nothing to send|race)"
        ):
            checked()


def test_what_cannot_be_turned_is_refused():
    with pytest.raises(ProgramError, match=r"'double_tree' of all_reduce; expected one with a rule: ring of"):
        regular("all_reduce", "double_tree", 8)
    with pytest.raises(ProgramError, match="12 ranks with a period of 5; expected a divisor"):
        regular("all_reduce", "ring", 12, period=5)
    ring = regular("all_gather", "ring", 4)
    for rule, message in (
        (build("broadcast", "chain", 4), "got broadcast; expected all_gather"),
        (msgspec.structs.replace(ring.rule, shares=(1.0,) * 4), "members or shares"),
        (build("all_reduce", "double_tree", 4), "2 chunks; expected a multiple of the 4 ranks"),
    ):
        with pytest.raises(ProgramError, match=message):
            RegularProgram(rule=rule, period=2)
    with pytest.raises(ProgramError, match="period of 3 ranks"):
        msgspec.structs.replace(ring, period=3)
    with pytest.raises(ProgramError, match="cannot read a regular program"):
        loads(ring.rule.to_json())
