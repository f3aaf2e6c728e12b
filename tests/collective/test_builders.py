"""Every known algorithm does what its collective asks for."""

import numpy as np
import pytest

from tests.collective.reference import expected, run
from wirewise.collective import COLLECTIVES, REDUCING, ROOTED, check
from wirewise.collective.builders import BUILDERS, PLAIN, algorithms, build
from wirewise.collective.builders.bruck import PAT_BLOCKS
from wirewise.errors import ProgramError

FOR_HOSTS = ("hierarchical", "hierarchical_bruck", "host_ring")
NEEDS = {"neighbour_exchange": lambda p: p % 2 == 0, "hypercube": lambda p: p & (p - 1) == 0}
HOSTS = [
    [[0, 1, 2, 3]],
    [[0], [1], [2]],
    [[0, 1], [2, 3]],
    [[2, 0, 4], [1, 3, 5], [8, 7, 6]],
    [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9]],
    [[0], [1, 2, 3]],
]


def random_inputs(program, seed=0):
    """Blocks of random integers for the ranks that start with any, a few for each chunk."""
    rng = np.random.default_rng(seed)
    each = program.chunks // program.blocks
    elements = 2 * each + 1
    starts = [r for b in range(program.blocks) for r in program.starts_at(b * each)]
    held = [starts.count(r) for r in range(program.ranks)]
    return [rng.integers(-(2**62), 2**62, n * elements) if n else None for n in held]


def same(found, wanted):
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def check_on_numbers(program):
    check(program)
    inputs = random_inputs(program)
    assert same(run(program, inputs), expected(program, inputs))


FLAT = [key for key in (*BUILDERS, *PLAIN) if key[1] not in (*FOR_HOSTS, "leaders")]


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm"), FLAT)
def test_any_number_of_ranks(collective, algorithm):
    for ranks in range(1, 17):
        if ranks > 1 and not NEEDS.get(algorithm, bool)(ranks):
            with pytest.raises(ProgramError, match=f"got {ranks} ranks"):
                build(collective, algorithm, ranks)
            continue
        for root in {0, ranks // 2, ranks - 1}:
            check_on_numbers(build(collective, algorithm, ranks, root=root))


@pytest.mark.sweep
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_hosts(collective, hosts):
    ranks = sum(map(len, hosts))
    for algorithm in set(FOR_HOSTS) & set(algorithms(collective)):
        for root in range(ranks if collective in ROOTED else 1):
            check_on_numbers(build(collective, algorithm, ranks, root=root, hosts=hosts))


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_leaders(hosts):
    ranks = sum(map(len, hosts))
    program = build("all_reduce", "leaders", ranks, hosts=hosts)
    check_on_numbers(program)
    leaders = {host[0] for host in hosts}
    host_of = {r: h for h, host in enumerate(hosts) for r in host}
    crossing = [t for t in program.transfers if host_of[t.source] != host_of[t.target]]
    assert {r for t in crossing for r in (t.source, t.target)} <= leaders


@pytest.mark.parametrize("ranks", range(1, 9))
def test_servers_sum_up_a_part_each(ranks):
    for servers in range(1, ranks + 1):
        program = build("all_reduce", "servers", ranks, servers=servers)
        check_on_numbers(program)
        assert all(t.target < servers for t in program.transfers if t.reduces)
    with pytest.raises(ProgramError, match=f"{ranks + 1} servers for {ranks} ranks"):
        build("all_reduce", "servers", ranks, servers=ranks + 1)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("collective", "algorithm"), [key for key in BUILDERS if key[1] in FOR_HOSTS and key[0] != "all_reduce"]
)
@pytest.mark.parametrize("hosts", HOSTS, ids=str)
def test_each_chunk_crosses_to_a_host_once(collective, algorithm, hosts):
    """Sums leave each host once; values enter each host once, and only where they are needed."""
    host_of = {r: h for h, host in enumerate(hosts) for r in host}
    program = build(collective, algorithm, len(host_of), root=1, hosts=hosts)
    crossing = [(t.chunk, host_of[t.source], host_of[t.target]) for t in program.transfers]
    ends = [
        (c, source if collective in REDUCING else target)
        for c, source, target in crossing
        if source != target
    ]
    assert len(ends) == len(set(ends))
    if collective not in REDUCING:
        needed = {(c, host_of[r]) for c in range(program.chunks) for r in program.ends_at(c)}
        held = {(c, host_of[r]) for c in range(program.chunks) for r in program.starts_at(c)}
        assert set(ends) == needed - held


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
def test_waves_are_right_and_follow_each_other_a_step_apart(collective):
    hosts = [[2, 0, 4], [1, 3, 5]]
    once = build(collective, "host_ring", 6, hosts=hosts)
    program = build(collective, "host_ring", 6, hosts=hosts, waves=3)
    check_on_numbers(program)
    assert (program.chunks, program.steps) == (3 * once.chunks, once.steps + 2)


@pytest.mark.parametrize("hosts", [None, [[0, 1], [1, 2]], [[0, 1]], [[0, 1, 2], []]])
def test_hosts_that_do_not_divide_the_ranks(hosts):
    with pytest.raises(ProgramError, match=r"expected hosts=.* with each of 3 ranks in one"):
        build("all_reduce", "hierarchical", 3, hosts=hosts)


@pytest.mark.parametrize("hosts", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2], [3, 4, 5], [6, 7, 8]]])
def test_all_reduce_between_hosts_moves_what_a_ring_of_hosts_would(hosts):
    ranks, host_of = sum(map(len, hosts)), {r: h for h, host in enumerate(hosts) for r in host}
    program = build("all_reduce", "hierarchical", ranks, hosts=hosts)
    sizes = program.chunk_bytes(1.0)
    out = sum(sizes[t.chunk] for t in program.transfers if host_of[t.source] == 0 != host_of[t.target])
    assert out == pytest.approx(2 * (len(hosts) - 1) / len(hosts))


@pytest.mark.parametrize("ranks", [17, 31, 32, 33, 64, 100])
def test_messages_of_pat_stay_small(ranks):
    for collective in ("all_gather", "reduce_scatter"):
        program = build(collective, "pat", ranks)
        check(program)
        assert max(len(m.transfers) for m in program.messages()) <= PAT_BLOCKS


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", range(2, 40))
def test_no_rank_has_children_in_both_trees(ranks):
    program = build("broadcast", "double_tree", ranks, root=ranks // 3)
    inner = [{t.source for t in program.transfers if t.chunk == chunk} - {program.root} for chunk in (0, 1)]
    assert not inner[0] & inner[1]


def test_more_chunks_and_segments():
    for collective in COLLECTIVES:
        for algorithm in algorithms(collective):
            least = build(collective, algorithm, 4, hosts=[[0, 1], [2, 3]])
            more = build(
                collective, algorithm, 4, hosts=[[0, 1], [2, 3]], chunks=3 * least.chunks, segments=2
            )
            assert (more.chunks, more.segments) == (3 * least.chunks, 2)
            assert len(more.messages()) == len(least.messages())
            check_on_numbers(more)


def test_what_cannot_be_built():
    with pytest.raises(ProgramError, match="expected flat, binomial"):
        build("scatter", "ring", 4)
    with pytest.raises(ProgramError, match="a collective of broadcast"):
        build("scan", "ring", 4)
    with pytest.raises(ProgramError, match="a multiple of the 4"):
        build("all_gather", "ring", 4, chunks=6)
    with pytest.raises(ProgramError, match="a root among them"):
        build("broadcast", "flat", 4, root=4)
