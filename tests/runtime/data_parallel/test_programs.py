"""Every algorithm sums on every rank, with the messages that the simulator counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.collective import plain
from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import Branching, batch, made, mean_gradients, random_plan, sent
from wirewise.collective import Program, build, check, named_program
from wirewise.collective.named import ALGORITHMS
from wirewise.errors import InputError, PeerError
from wirewise.runtime.data_parallel import AllReduce, Reducer, transport_of

CASES = [(algorithm, 1) for algorithm in ALGORITHMS] + [("ps", 2)]


def hosts_of(ranks: int) -> list[int]:
    """Two ranks on each host."""
    return [rank // 2 for rank in range(ranks)]


def made_for(algorithm: str, hosts: list[int], servers: int = 1) -> Program:
    return named_program("all_reduce", hosts, algorithm, servers=servers)


def tensor_of(rank: int, numel: int = 1001) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_all_ranks_get_the_sum_of_the_library(ranks):
    def body(rank: int, group: Any, store: Any) -> list[torch.Tensor]:
        transport = transport_of(group, timeout_s=20, store=store)
        found = [tensor_of(rank)]
        group.allreduce([found[0]]).wait()
        for algorithm, servers in CASES:
            program = AllReduce(transport, made_for(algorithm, hosts_of(ranks), servers))
            for _ in range(2):
                found.append(tensor_of(rank))
                program(found[-1])
        transport.close()
        return found

    results = run_ranks_as_threads(ranks, body)
    for rank, (expected, *found) in enumerate(results):
        for number, one in enumerate(found):
            torch.testing.assert_close(
                one, expected, rtol=1e-5, atol=1e-5, msg=f"{rank} {CASES[number // 2]}"
            )
            # Bit by bit the same everywhere, and the second time as well.
            assert torch.equal(one, results[0][1 + number])
            assert torch.equal(one, results[0][1 + number // 2 * 2])


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(("algorithm", "servers"), CASES)
def test_programs_are_right_and_have_the_messages_of_the_hops(ranks, algorithm, servers):
    numel = 8 * 3 * 5 * 7
    program = made_for(algorithm, hosts_of(ranks), servers)
    check(program)
    hops = plain.hops("all_reduce", hosts_of(ranks), float(numel), algorithm, servers=servers)
    rounds = sorted({hop.round for hop in hops})
    assert sent(program, numel) == pytest.approx(
        {(hop.source, hop.target, rounds.index(hop.round)): hop.size_bytes for hop in hops}, abs=1e-6
    )


@pytest.mark.parametrize("numel", [1, 3])
def test_tensors_of_fewer_elements_than_ranks(numel):
    def body(rank: int, group: Any, store: Any) -> list[float]:
        transport = transport_of(group, timeout_s=20, store=store)
        sums = []
        for algorithm, servers in CASES:
            flat = torch.full((numel,), float(rank + 1))
            AllReduce(transport, made_for(algorithm, list(range(4)), servers))(flat)
            sums += flat.tolist()
        transport.close()
        return sums

    for sums in run_ranks_as_threads(4, body):
        assert sums == [10.0] * numel * len(CASES)


def test_any_program_of_an_all_reduce_is_carried_out():
    """Chunks that do not lie together, what is added beside what is sent, segments, shares."""
    names = ["recursive_doubling", "rabenseifner", "double_tree", "hierarchical"]
    programs = [build("all_reduce", name, 4, hosts=[[0, 2], [1, 3]]) for name in names]
    programs.append(build("all_reduce", "ring", 4, chunks=8, segments=3))
    programs.append(msgspec.structs.replace(programs[1], shares=(1.0, 2.0, 5.0, 1.0)))

    def body(rank: int, group: Any, store: Any) -> list[torch.Tensor]:
        transport = transport_of(group, timeout_s=20, store=store)
        found = []
        for program in programs:
            check(program)
            found.append(tensor_of(rank, 30_001))
            AllReduce(transport, program)(found[-1])
        transport.close()
        return found

    expected = sum(tensor_of(rank, 30_001) for rank in range(4))
    for found in run_ranks_as_threads(4, body):
        for program, one in zip(programs, found, strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5, msg=program.name)


def test_every_hop_is_seen_by_both_ends():
    seen: list[tuple[str, int, int, int]] = []

    def body(rank: int, group: Any, store: Any) -> None:
        def observe(kind, source, target, size_bytes, start_s, end_s):
            assert start_s <= end_s
            assert rank == (source if kind == "send" else target)
            seen.append((kind, source, target, size_bytes))

        transport = transport_of(group, timeout_s=20, store=store)
        AllReduce(transport, made_for("hierarchical", hosts_of(4)), observer=observe)(torch.ones(100))
        transport.close()

    run_ranks_as_threads(4, body)
    program = made_for("hierarchical", hosts_of(4))
    expected = sorted((s, t, 4 * numel) for (s, t, _), numel in sent(program, 100).items())
    for kind in ("send", "recv"):
        assert sorted(s[1:] for s in seen if s[0] == kind) == expected


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(("algorithm", "servers"), CASES)
def test_a_reducer_may_use_a_program(algorithm, servers):
    plan = random_plan(made(Branching), 3, 4)

    def body(rank: int, group: Any, store: Any) -> dict[str, torch.Tensor]:
        model = made(Branching)
        transport = transport_of(group, timeout_s=20, store=store)
        program = AllReduce(transport, made_for(algorithm, [0, 0, 1], servers))
        reducer = Reducer(model, plan, transport, collective=program)
        for step in range(2):
            model.zero_grad()
            x, y = batch(rank, step)
            nn.functional.cross_entropy(model(x), y).backward()
        reducer.close()
        transport.close()
        return {name: p.grad for name, p in model.named_parameters()}

    expected = mean_gradients(made(Branching), 3, 1)
    for found in run_ranks_as_threads(3, body):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_silent_rank_is_named():
    def body(rank: int, group: Any, store: Any) -> str:
        transport = transport_of(group, timeout_s=1.0, store=store)
        program = AllReduce(transport)
        if rank == 1:
            return ""
        with pytest.raises(PeerError) as caught:
            program(torch.ones(10))
        return str(caught.value)

    messages = run_ranks_as_threads(3, body)
    assert "rank 1" in messages[2]
    assert "ring all-reduce" in messages[0]


def test_what_does_not_fit_is_refused():
    def body(rank: int, group: Any, store: Any) -> None:
        transport = transport_of(group, store=store)
        with pytest.raises(InputError, match="butterfly"):
            AllReduce(transport, made_for("butterfly", [0]))
        with pytest.raises(InputError, match="1 to 1 servers"):
            AllReduce(transport, made_for("ps", [0], servers=2))
        with pytest.raises(InputError, match="one for each of 1 ranks"):
            AllReduce(transport, made_for("ring", [0, 1]))
        with pytest.raises(InputError, match="an all_gather of 1 ranks"):
            AllReduce(transport, build("all_gather", "ring", 1))
        with pytest.raises(InputError, match="one dimension"):
            AllReduce(transport)(torch.ones(2, 2))

    run_ranks_as_threads(1, body)
