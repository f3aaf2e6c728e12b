"""F1: all collectives, ranks, types and sizes against what they mean."""

import threading
import time

import pytest
import torch

from tests.runtime.collective.ranks import on_ranks
from wirewise.collective import COLLECTIVES, ROOTED
from wirewise.collective.builders import algorithms, build
from wirewise.errors import InputError, ProgramError

DTYPES = (torch.int64, torch.float32, torch.bfloat16)


def values(rank, count, dtype):
    """Small integers, which every type adds up exactly."""
    return (torch.arange(count) % 7 + rank).to(dtype)


def spread_out(tensor):
    """Tensor of equal values in memory with gaps."""
    wide = torch.zeros(tensor.numel(), 2, dtype=tensor.dtype)
    wide[:, 0] = tensor
    return wide[:, 0]


def call(group, collective, count, dtype, contiguous=True, **options):
    """The result of a collective with `count` elements a block, and what it should be."""
    n, me, root = group.size, group.rank, options.get("root", 0)
    shape = (lambda t: t) if contiguous else spread_out
    inputs = [values(r, count, dtype) for r in range(n)]
    # Sums of up to eight parts stay below 256, up to which bfloat16 holds every integer.
    parts = [[values((s * n + t) % 23, count, dtype) for t in range(n)] for s in range(n)]
    own, total = shape(inputs[me].clone()), sum(inputs[1:], inputs[0].clone())
    outs = [shape(torch.zeros(count, dtype=dtype)) for _ in range(n)]
    if collective == "all_reduce":
        group.all_reduce(own, **options)
        return own, total
    if collective == "broadcast":
        group.broadcast(own, **options)
        return own, inputs[root]
    if collective == "reduce":
        group.reduce(own, **options)
        return own, total if me == root else inputs[me]
    if collective == "all_gather":
        group.all_gather(outs, own, **options)
        return torch.cat(outs), torch.cat(inputs)
    if collective == "gather":
        group.gather(outs if me == root else None, own, **options)
        return torch.cat(outs) if me == root else own, torch.cat(inputs) if me == root else inputs[me]
    if collective == "scatter":
        group.scatter(outs[0], [shape(p) for p in parts[root]] if me == root else None, **options)
        return outs[0], parts[root][me]
    if collective == "reduce_scatter":
        given = [shape(p) for p in parts[me]]
        group.reduce_scatter(outs[0], given, **options)
        assert all(torch.equal(g, p) for g, p in zip(given, parts[me], strict=True))
        return outs[0], sum((parts[s][me] for s in range(1, n)), parts[0][me].clone())
    expected = torch.cat([parts[s][me] for s in range(n)])
    if "program" in options:
        # Only of one tensor are the parts known to be equal, so that ranks can pass on those of others.
        out = torch.zeros(n * count, dtype=dtype)
        group.all_to_all(out, torch.cat(parts[me]), **options)
        return out, expected
    group.all_to_all(outs, [shape(p) for p in parts[me]], **options)
    return torch.cat(outs), expected


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_all_collectives_with_default_programs(ranks):
    def run(group):
        for collective in COLLECTIVES:
            for dtype in DTYPES:
                for count in (0, 1, 13, 1021):
                    for contiguous in (True, False) if ranks < 5 else (count != 13,):
                        root = {"root": ranks - 1} if collective in ROOTED else {}
                        got, expected = call(group, collective, count, dtype, contiguous, **root)
                        assert torch.equal(got, expected), (collective, dtype, count, contiguous)

    on_ranks(ranks, run)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [4, 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_known_algorithm_in_segments(collective, ranks):
    def run(group):
        for program in programs:
            got, expected = call(group, collective, 20_011, torch.float32, program=program)
            assert torch.equal(got, expected), program.name

    programs = []
    for name in algorithms(collective):
        try:
            programs.append(build(collective, name, ranks, segments=3))
        except ProgramError:
            continue  # only for powers of two
    assert programs
    on_ranks(ranks, run)


def test_large_messages_wait_for_their_receivers():
    def run(group):
        first = torch.full((1 << 20,), float(group.rank))
        second = torch.full((1 << 20,), 1.0)
        works = [group.all_reduce(t, async_op=True) for t in (first, second)]
        if group.rank:
            works.reverse()
        assert all(work.wait() for work in works)
        return first[0].item(), second[-1].item()

    assert on_ranks(3, run) == [(3.0, 3.0)] * 3


def test_a_late_rank_and_operations_out_of_step():
    """One rank waits for each operation, the others start all of them at once."""

    def run(group):
        tensors = [torch.full((n,), 1.0) for n in (10, 100_000, 7, 300_000)]
        if group.rank == 1:
            for tensor in tensors:
                group.all_reduce(tensor)
        else:
            for work in [group.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()
        return [tensor.sum().item() / tensor.numel() for tensor in tensors]

    assert on_ranks(4, run) == [[4.0] * 4] * 4


@pytest.mark.parametrize(
    ("op", "expected"),
    [("max", 3), ("min", 1), ("product", 6), ("avg", 2), ("band", 0), ("bor", 3), ("bxor", 0)],
)
def test_other_reductions(op, expected):
    def run(group):
        tensor = torch.full((9,), group.rank + 1)
        group.all_reduce(tensor, op)
        return tensor.tolist()

    assert on_ranks(3, run) == [[expected] * 9] * 3


def test_float_sums_are_close_and_the_same_again_in_deterministic_mode():
    def run(group):
        torch.manual_seed(group.rank)
        tensor = torch.randn(50_001)
        found = []
        for _ in range(3):
            copy = tensor.clone()
            group.all_reduce(copy, deterministic=True)
            found.append(copy)
        return tensor, found

    results = on_ranks(4, run)
    exact = sum(tensor.double() for tensor, _ in results)
    for _, found in results:
        assert all(torch.equal(found[0], again) for again in found[1:])
        assert torch.equal(found[0], results[0][1][0])
        assert ((found[0].double() - exact).abs() <= 1e-5 * exact.abs().clamp(min=1)).all()


def test_parts_of_different_sizes():
    def run(group):
        n, me = group.size, group.rank
        outs = [torch.zeros(s + me) for s in range(n)]
        group.all_to_all(outs, [torch.full((me + t,), float(me * n + t)) for t in range(n)])
        gathered = [torch.zeros(r + 1) for r in range(n)]
        group.all_gather(gathered, torch.full((me + 1,), float(me)))
        return [out.tolist() for out in outs], [g.tolist() for g in gathered]

    for me, (outs, gathered) in enumerate(on_ranks(3, run)):
        assert outs == [[float(s * 3 + me)] * (s + me) for s in range(3)]
        assert gathered == [[float(r)] * (r + 1) for r in range(3)]


def test_ranks_outside_the_group_pass_on():
    from wirewise.collective import Program, Transfer

    program = Program(
        name="relayed", collective="broadcast", ranks=3, chunks=1, members=(0, 2), segments=2,
        transfers=(Transfer(0, 0, 1, 0), Transfer(0, 1, 2, 1)),
    )  # fmt: skip

    def run(group):
        if group.rank == 1:
            group.relay(program, 9_000, torch.float64)
            return None
        tensor = torch.full((9_000,), float(group.rank + 5), dtype=torch.float64)
        group.broadcast(tensor, program=program)
        return tensor.unique().tolist()

    assert on_ranks(3, run) == [[5.0], None, [5.0]]


def test_a_used_program_is_taken_from_its_size_on():
    def run(group):
        ring = build("all_reduce", "ring", 2)
        group.use(ring, from_bytes=1000)
        assert group.choose("all_reduce", 1000) is ring
        assert group.choose("all_reduce", 999).name != "ring"
        tensor = torch.ones(1000)
        group.all_reduce(tensor)
        assert {edge.messages for edge in group.statistics()} == {2}
        assert {edge.size_bytes for edge in group.statistics()} == {4000}
        sent = [edge for edge in group.statistics() if edge.source == group.rank]
        assert all(0 < edge.round_trip_s < 1 for edge in sent)
        assert all(edge.bytes_per_s == (edge.busy_s and edge.size_bytes / edge.busy_s) for edge in sent)
        return tensor.sum().item()

    assert on_ranks(2, run) == [2000.0] * 2


def test_lateness_names_the_edge_of_the_late_rank():
    begun = threading.Barrier(3)

    def run(group):
        begun.wait(20)
        if group.rank == 1:
            time.sleep(1.5)
        group.broadcast(torch.ones(10), root=1, program=flat)
        return {(e.source, e.target): e.late_s for e in group.statistics() if e.target == group.rank}

    flat = build("broadcast", "flat", 3, root=1)
    for rank, late_s in enumerate(on_ranks(3, run)):
        assert all((seconds > 0.1) == (edge == (1, rank)) for edge, seconds in late_s.items())


def test_what_does_not_fit_is_refused():
    def run(group):
        with pytest.raises(ProgramError, match="expected one for all_reduce"):
            group.all_reduce(torch.ones(3), program=build("broadcast", "flat", 2))
        with pytest.raises(ProgramError, match="for 3 ranks and the group has 2; make one"):
            group.use(build("all_reduce", "ring", 3))
        with pytest.raises(ProgramError, match="is for 3 ranks"):
            group.all_reduce(torch.ones(3), program=build("all_reduce", "ring", 3))
        with pytest.raises(ProgramError, match="'mean'"):
            group.all_reduce(torch.ones(3), "mean")
        with pytest.raises(InputError, match="expected integers"):
            group.all_reduce(torch.ones(3), "bor")
        with pytest.raises(InputError, match="equal parts"):
            group.all_gather(torch.ones(3), torch.ones(1))
        with pytest.raises(InputError, match="expected the same"):
            group.all_gather(torch.ones(4), torch.ones(1))

    on_ranks(2, run)
