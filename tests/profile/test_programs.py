"""All-reduces that ranks carry out by messages: recorded whole, and a graph in which nothing is loose."""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.harness.processes import run_ranks_as_processes
from tests.harness.tiers import keep
from tests.runtime.data_parallel.examples import sent
from torch import nn

from wirewise.collective import named_program
from wirewise.collective.named import ALGORITHMS
from wirewise.cost import Links
from wirewise.plans import Bucket, FusionPlan
from wirewise.profile import Tracer
from wirewise.runtime.data_parallel import AllReduce, parallel, transport_of
from wirewise.sim import replay_trace
from wirewise.trace import COLLECTIVES, KINDS, Trace, align, build, collapse_algorithms, match, read

STEPS, RANKS, WIDTH, LAYERS = 3, 4, 60, 3
CASES = keep([("ring", 1)], [*((name, 1) for name in ALGORITHMS), ("ps", 2)])
HOSTS = [0, 0, 1, 1]
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "replay_accuracy" / "compressed.py"
CodecSum = runpy.run_path(str(BENCHMARK))["CodecSum"]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def plan() -> FusionPlan:
    """A bucket for each layer, the last first; one of them goes in two parts."""
    buckets = [
        Bucket(
            parameters=(f"{i}.bias", f"{i}.weight"),
            size_bytes=4 * (WIDTH * WIDTH + WIDTH),
            chunks=1 + (i == 0),
        )
        for i in reversed(range(LAYERS))
    ]
    return FusionPlan(world_size=RANKS, planner="test", buckets=tuple(buckets))


def trained(rank: int, folder: str, algorithm: str, servers: int, until: str, record: bool) -> torch.Tensor:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    transport = transport_of(timeout_s=30)
    tracer = Tracer(folder, model, optimizer=optimizer, warmup=1, steps=STEPS) if record else None
    heard = []

    def compressed(flat: torch.Tensor) -> None:
        CodecSum(transport, "int8", observer=heard[0].observe if heard else None)(flat)

    program = compressed
    if algorithm != "int8":
        program = AllReduce(transport, named_program("all_reduce", HOSTS, algorithm, servers=servers))
    if tracer:
        heard.append(tracer.collective(program, algorithm=algorithm))
        program = heard[0]
    wrapped = parallel(model, plan(), optimizer, until=until, collective=program)
    for step in range(1 + STEPS + 1):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step * RANKS + rank))
        optimizer.zero_grad()
        wrapped(x).pow(2).mean().backward()
        optimizer.step()
    wrapped.reducer.close()
    transport.close()
    if tracer:
        tracer.close()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def twice(rank: int, folder: str, algorithm: str, servers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights after training without and with a tracer."""
    plain = trained(rank, "", algorithm, servers, "backward", False)
    return plain, trained(rank, folder, algorithm, servers, "backward", True)


def recorded(folder: Path, algorithm: str, until: str = "backward") -> Trace:
    weights = run_ranks_as_processes(RANKS, trained, str(folder), algorithm, 1, until, True)
    assert all(torch.equal(one, weights[0]) for one in weights)
    return align(read(folder))


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> Callable[..., Trace]:
    """Traces by algorithm and servers, each recorded once; recording leaves the weights as they are."""

    @cache
    def made(algorithm: str, servers: int) -> Trace:
        folder = tmp_path_factory.mktemp(algorithm) / "run"
        pairs = run_ranks_as_processes(RANKS, twice, str(folder), algorithm, servers)
        assert all(torch.equal(one, pairs[0][0]) for pair in pairs for one in pair)
        return align(read(folder))

    return made


def ancestors(flow, op: int) -> set[int]:
    before: dict[int, list[int]] = {i: [] for i in range(len(flow.names))}
    for i in range(len(flow.names)):
        for follower in flow.indices[flow.indptr[i] : flow.indptr[i + 1]].tolist():
            before[follower].append(i)
    found, stack = set(), [op]
    while stack:
        for other in before[stack.pop()]:
            if other not in found:
                found.add(other)
                stack.append(other)
    return found


def sound(trace: Trace, step: int):
    """The graph of a step: all ops there, and each rank ends only after all transfers that it takes part in."""
    flow = build(trace, step)
    kept = Counter(name for members in flow.member_ops for name in set(members))
    told = {op.name for rank in range(RANKS) for op in trace.of(rank, step) if op.kind != "step"}
    assert set(kept) == told
    transfers = np.flatnonzero(flow.size_bytes > 0)
    assert (flow.rank[transfers] == -1).all()
    ends = [op for op in range(len(flow.names)) if flow.names[op] == "end"]
    assert len(ends) == RANKS
    before = [ancestors(flow, op) for op in ends]
    assert all(any(int(op) in one for one in before) for op in transfers)
    # A rank has the sum only once something came from each of the others.
    begins = [op for op in range(len(flow.names)) if flow.names[op] == "begin"]
    assert all(begin in one for begin in begins for one in before)
    return flow


@pytest.mark.dist
@pytest.mark.parametrize(("algorithm", "servers"), CASES)
def test_every_hop_is_a_transfer(traced, algorithm, servers):
    trace = traced(algorithm, servers)
    sizes = [
        p for bucket in plan().buckets for p in [bucket.size_bytes // 4 // bucket.chunks] * bucket.chunks
    ]
    expected = Counter()
    program = named_program("all_reduce", HOSTS, algorithm, servers=servers)
    for numel in sizes:
        for (source, target, _), elements in sent(program, numel).items():
            expected[source, target] += 4 * elements
    assert trace.steps() == list(range(1, 1 + STEPS))
    for step in trace.steps():
        own = [one for one in match(trace) if one.step == step and one.collective == "send"]
        found = Counter()
        for one in own:
            found[one.ranks] += one.size_bytes
        assert found == expected
        flow = sound(trace, step)
        transfers = np.flatnonzero(flow.size_bytes > 0)
        assert set(flow.collective[transfers].tolist()) == {COLLECTIVES.index("send")}
        assert flow.flow_bytes.sum() == sum(expected.values())


@pytest.mark.dist
def test_a_thread_waits_for_its_messages_and_the_step_for_the_thread(traced):
    trace = traced("ring", 1)
    ops = trace.of(0, 2)
    sums = [op for op in ops if op.algorithm]
    assert [op.name for op in sums] == [f"bucket {i}" for i in range(LAYERS + 1)]
    assert {op.caller for op in sums} == {"main"}
    carried = {op.seq: op for op in ops if op.kind == "other" and op.group == sums[0].group}
    thread = carried[sums[0].seq].thread
    assert thread != "main"
    messages = [op for op in ops if op.collective in ("send", "recv")]
    assert {op.caller for op in messages} == {thread}
    ends = Counter((op.name, op.end_s) for op in messages)
    waits = Counter((op.name, op.end_s) for op in ops if op.kind == "wait" and op.thread == thread)
    assert waits == ends
    assert {op.thread for op in ops} == {"main", "comm", thread}
    assert {op.seq for op in ops if op.kind == "wait" and op.thread == "main"} == {op.seq for op in sums}


@pytest.mark.slow
@pytest.mark.dist
def test_a_step_that_waits_in_the_optimizer(tmp_path):
    trace = recorded(tmp_path, "tree", until="step")
    for step in trace.steps():
        sound(trace, step)


@pytest.mark.slow
@pytest.mark.dist
def test_compressed_sums(tmp_path):
    trace = recorded(tmp_path, "int8")
    flow = sound(trace, 2)
    count = Counter(KINDS[kind] for kind in flow.kind.tolist())
    assert count["encode"] >= RANKS * (LAYERS + 1)
    assert count["decode"] >= RANKS * (LAYERS + 1)
    transfers = flow.collective[flow.size_bytes > 0].tolist()
    assert transfers == [COLLECTIVES.index("all_gather")] * (LAYERS + 1)
    assert trace.ranks == collapse_algorithms(trace).ranks


@pytest.mark.dist
def test_another_algorithm_is_predicted_from_the_whole_sums(traced):
    trace = traced("ring", 1)
    plain = collapse_algorithms(trace)
    assert not [op for rank in plain.ranks for op in rank.ops if op.collective in ("send", "recv")]
    assert {op.thread for rank in plain.ranks for op in rank.ops} == {"main", "comm"}
    flow = build(plain, 2)
    transfers = np.flatnonzero(flow.size_bytes > 0)
    assert flow.size_bytes[transfers].sum() == plan().size_bytes
    # All of a machine's ranks are on one host, so every byte goes inside of it.
    least_s = 2 * (RANKS - 1) * plan().size_bytes / 1e6
    assert flow.flow_bytes.sum() == pytest.approx(1e6 * least_s)
    links = Links.uniform(1, 1e9, intra_bytes_per_s=1e6)
    changed = replay_trace(plain, links=links, what_if="algorithm=tree").what_if
    single = replay_trace(plain, partial(build, algorithm="tree", expand=True), links)
    longest = 0.1 + max(op.end_s - op.start_s for op in plain.ranks[0].ops if op.kind == "step")
    for found in (changed, single):
        # The period is a mean of ranks, some of which are done with a step before others.
        assert 0.9 * least_s <= found.predicted_step_s <= least_s + longest
