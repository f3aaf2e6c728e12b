"""The dataflow graph: sound, complete, and the step it gives when it is replayed with the measured times."""

import msgspec
import numpy as np
import pytest

from tests.trace.synthetic import make
from wirewise.collective.named import ALGORITHMS
from wirewise.cost import Links
from wirewise.errors import InputError, TraceError
from wirewise.sim import replay
from wirewise.trace.align import align, match
from wirewise.trace.dataflow import COLLECTIVES, KINDS, build, check, coarsen
from wirewise.trace.records import Header, Op, RankTrace, Trace


def earliest(flow, begin=None):
    """Start and end of each op with the measured durations, by the longest path and first come first served.

    Enough where a resource's ops form a chain, or where slots are plenty.
    """
    n = len(flow.names)
    start = np.zeros(n) if begin is None else np.where(flow.rank >= 0, np.asarray(begin)[flow.rank], -np.inf)
    end, free = np.full(n, np.nan), {}
    waits = np.bincount(flow.indices, minlength=n)
    ready = [op for op in range(n) if waits[op] == 0]
    while ready:
        op = min(ready, key=lambda op: (start[op], flow.priority[op]))
        ready.remove(op)
        resource = flow.resource[op]
        if resource >= 0:
            slots = free.setdefault(resource, [-np.inf] * flow.slots[resource])
            slots.sort()
            start[op] = max(start[op], slots[0])
            slots[0] = start[op] + flow.duration_s[op] + flow.gap_s[op]
        end[op] = start[op] + flow.duration_s[op]
        for follower in flow.indices[flow.indptr[op] : flow.indptr[op + 1]]:
            start[follower] = max(start[follower], end[op])
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    return start, end


def begins(trace, step):
    return [min(op.start_s for op in trace.of(r, step)) for r in range(trace.world_size)]


def kinds(flow, kind):
    return flow.kind == KINDS.index(kind)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_measured_times_give_the_measured_ends_of_every_rank(ranks, expand):
    run = make(ranks, 6, step_jitter_s=2e-3, seed=ranks)
    for step in run.true.steps():
        flow = build(run.true, step, expand=expand)
        start, end = earliest(flow, begins(run.true, step))
        for r in range(ranks):
            over = [i for i in range(len(flow.names)) if flow.names[i] == "end" and flow.rank[i] == r]
            measured = max(op.end_s for op in run.true.of(r, step))
            # A rank that is done with a bucket before the others waits here for the last.
            late = max(one.end_s - op.end_s for one in match(run.true) for op in one.ops if one.step == step)
            assert measured - 1e-9 <= end[over[0]] <= measured + late + 1e-9
        assert not np.isnan(start).any()


def test_every_op_of_the_trace_is_there_once_with_its_time():
    trace = make(3, 2).true
    flow = build(trace, 1)
    for r in range(3):
        for kind in ("forward", "backward", "optimizer"):
            own = (flow.rank == r) & kinds(flow, kind)
            traced = [op for op in trace.of(r, 1) if op.kind == kind]
            names = [flow.names[i] for i in np.flatnonzero(own)]
            assert sorted(set(names)) == sorted(op.name for op in traced)
            total = sum(op.end_s - op.start_s for op in traced)
            assert flow.duration_s[own].sum() == pytest.approx(total)
            assert flow.gradient_bytes[own].sum() == sum(op.gradient_bytes for op in traced)
    transfers = flow.size_bytes > 0
    assert transfers.sum() == 3
    assert sorted(flow.size_bytes[transfers]) == [400_000, 2_000_000, 4_000_000]
    assert (flow.collective[transfers] == COLLECTIVES.index("all_reduce")).all()
    assert set(flow.rank[transfers]) == {-1}


def test_a_transfer_follows_all_ranks_and_comes_before_their_waits():
    flow = build(make(2, 1).true, 0)
    name = {(flow.names[i], int(flow.rank[i]), KINDS[flow.kind[i]]): i for i in range(len(flow.names))}
    transfer = name["bucket 0", -1, "communication"]
    before = {i for i in range(len(flow.names)) if transfer in followers(flow, i)}
    assert before == {name["enqueue bucket 0", r, "other"] for r in (0, 1)}
    assert followers(flow, transfer) == {name["bucket 0", r, "communication"] for r in (0, 1)}
    for r in (0, 1):
        assert name["bucket 0", r, "wait"] in followers(flow, name["bucket 0", r, "communication"])


def followers(flow, op):
    return set(flow.indices[flow.indptr[op] : flow.indptr[op + 1]].tolist())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_expanded_steps_are_sound_and_conserve_bytes(algorithm):
    trace = make(4, 2).true
    whole = build(trace, 1, algorithm=algorithm)
    flow = build(trace, 1, algorithm=algorithm, expand=True)
    assert flow.flow_bytes.sum() == pytest.approx(whole.flow_bytes.sum())
    for side in ("flow_src", "flow_dst"):
        per_host = [np.bincount(getattr(f, side), f.flow_bytes) for f in (whole, flow)]
        np.testing.assert_allclose(*per_host)
    assert (np.diff(flow.flow_indptr)[flow.size_bytes > 0] == 1).all()


def test_a_ring_step_has_its_hops():
    flow = build(make(4, 1, sizes=(1000,)).true, 0, expand=True)
    names = [name for name in flow.names if ">" in name]
    assert len(names) == 2 * 3 * 4
    assert names[0] == "bucket 0 0>1 round 0"


def test_a_halo_has_its_own_bytes_for_each_pair():
    splits = [(0, 10, 20), (30, 0, 40), (50, 60, 0)]
    ranks = []
    for r, split in enumerate(splits):
        op = Op(
            name="halo", kind="communication", start_s=1.0, end_s=2.0, step=0, thread="comm", group="g",
            seq=0, collective="all_to_all", size_bytes=sum(split), split_bytes=split,
        )  # fmt: skip
        header = Header(rank=r, world_size=3, host=f"h{r}", groups={"g": [0, 1, 2]})
        ranks.append(RankTrace(header, [op, Op(name="fc", kind="forward", start_s=0.0, end_s=3.0, step=0)]))
    trace = Trace(ranks=ranks)
    for expand in (False, True):
        flow = build(trace, 0, expand=expand)
        found = {}
        for a, b, size in zip(flow.flow_src, flow.flow_dst, flow.flow_bytes, strict=True):
            found[int(a), int(b)] = float(size)
        assert found == {(i, j): splits[i][j] for i in range(3) for j in range(3) if i != j}


def test_compressed_gradients_are_encoded_gathered_and_decoded():
    def rank(r):
        place = {"group": "g", "seq": 0}
        ops = [
            Op(name="fc", kind="backward", start_s=0.0, end_s=1.0, step=0),
            Op(name="top-k", kind="encode", start_s=1.0, end_s=1.5, step=0, **place),
            Op(
                name="bucket 0", kind="communication", start_s=1.5, end_s=3.0, step=0, thread="comm",
                collective="all_gather", size_bytes=80, **place,
            ),
            Op(name="top-k", kind="decode", start_s=3.1, end_s=3.4, step=0, thread="comm", **place),
            Op(name="bucket 0", kind="wait", start_s=1.6, end_s=3.5, step=0, **place),
            Op(name="sgd", kind="optimizer", start_s=3.5, end_s=4.0, step=0),
        ]  # fmt: skip
        return RankTrace(Header(rank=r, world_size=2, host=f"h{r}", groups={"g": [0, 1]}), ops)

    flow = build(Trace(ranks=[rank(0), rank(1)]), 0)
    _, end = earliest(flow)
    last = {flow.names[i]: end[i] for i in range(len(flow.names)) if flow.rank[i] == 1}
    # The wait ends 0.1 s after the decode, which the transfer holds up.
    assert last["end"] == pytest.approx(4.0, abs=0.11)
    wait = flow.duration_s[kinds(flow, "wait")]
    np.testing.assert_allclose(wait, 0.1)
    assert flow.flow_bytes.sum() == 160


def test_a_message_joins_two_ranks():
    def rank(r, collective, start, end):
        ops = [
            Op(name="work", kind="forward", start_s=0.0, end_s=start, step=0),
            Op(
                name="act", kind="communication", start_s=start, end_s=end, step=0, collective=collective,
                peer=1 - r, size_bytes=64,
            ),
            Op(name="more", kind="forward", start_s=end + 0.25, end_s=end + 1, step=0),
        ]  # fmt: skip
        return RankTrace(Header(rank=r, world_size=2, host=f"h{r}", groups={}), ops)

    flow = build(Trace(ranks=[rank(0, "send", 2.0, 3.0), rank(1, "recv", 1.0, 3.0)]), 0)
    _, end = earliest(flow)
    ends = {int(flow.rank[i]): end[i] for i in range(len(flow.names)) if flow.names[i] == "end"}
    assert ends == {0: pytest.approx(4.0), 1: pytest.approx(4.0)}
    assert flow.flow_bytes.tolist() == [64.0]


@pytest.mark.parametrize(("sent", "rank_0_ends"), [(2.1, 2.1), (3.5, 4.0), (4.0, 4.0)])
def test_a_sender_goes_on_once_the_network_has_its_message(sent, rank_0_ends):
    """The message goes from 2.0 to 4.0 and can be written again at `sent`, for which rank 0 waits."""
    place = {"name": "act", "kind": "communication", "step": 0, "size_bytes": 64}
    ops = [
        [
            Op(name="work", kind="forward", start_s=0.0, end_s=2.0, step=0),
            Op(collective="send", peer=1, start_s=2.0, end_s=sent, **place),
            Op(name="act", kind="wait", start_s=2.0, end_s=sent, step=0),
        ],
        [
            Op(name="work", kind="forward", start_s=0.0, end_s=1.0, step=0),
            Op(collective="recv", peer=0, start_s=1.0, end_s=4.0, **place),
            Op(name="act", kind="wait", start_s=1.0, end_s=4.0, step=0),
        ],
    ]
    headers = [Header(rank=r, world_size=2, host=f"h{r}", groups={}) for r in range(2)]
    flow = build(Trace(ranks=[RankTrace(h, own) for h, own in zip(headers, ops, strict=True)]), 0)
    _, end = earliest(flow)
    ends = {int(flow.rank[i]): end[i] for i in range(len(flow.names)) if flow.names[i] == "end"}
    assert ends == {0: pytest.approx(rank_0_ends), 1: pytest.approx(4.0)}


def without(trace, kind):
    ranks = [RankTrace(r.header, [op for op in r.ops if op.kind != kind]) for r in trace.ranks]
    return Trace(ranks=ranks)


def test_waits_that_were_not_recorded_are_inferred():
    run = make(2, 4, seed=4)
    trace = without(run.true, "wait")
    for step in trace.steps():
        recorded = earliest(build(run.true, step), begins(trace, step))[1].max()
        assert earliest(build(trace, step), begins(trace, step))[1].max() == pytest.approx(recorded, abs=1e-6)
        # With a transfer that takes longer the step does, too.
        slow = build(trace, step)
        slow.duration_s[slow.size_bytes > 0] += 0.2
        assert earliest(slow, begins(trace, step))[1].max() > recorded + 0.19


def test_without_marks_a_step_goes_from_its_first_op_to_its_last():
    run = make(2, 2)
    trace = without(run.true, "step")
    flow = build(trace, 1)
    step_s = max(op.end_s for r in (0, 1) for op in trace.of(r, 1))
    assert earliest(flow, begins(trace, 1))[1].max() == pytest.approx(step_s, abs=5e-3)


def test_gradients_are_shared_where_they_were_not_recorded():
    trace = make(2, 1).true
    for rank in trace.ranks:
        rank.ops = [msgspec.structs.replace(op, gradient_bytes=0) for op in rank.ops]
    flow = build(trace, 0)
    own = kinds(flow, "backward") & (flow.rank == 1)
    assert flow.gradient_bytes[own].tolist() == [400_000, 4_000_000, 2_000_000]


def test_an_enqueue_inside_an_op_starts_its_transfer_there():
    trace = make(2, 1, sizes=(8,)).true
    for rank in trace.ranks:
        rank.ops = [
            msgspec.structs.replace(op, enqueued_s=op.start_s - 0.01, start_s=op.start_s - 0.01)
            if op.kind == "communication"
            else op
            for op in rank.ops
        ]
    flow = build(trace, 0)
    own = kinds(flow, "backward") & (flow.rank == 0)
    assert flow.duration_s[own][1] == pytest.approx(0.01)
    assert flow.gradient_bytes[own].tolist() == [0, 8]


def test_coarsening_keeps_ends_and_names_its_members():
    run = make(2, 2, sizes=(1_000_000,) * 12)
    flow = build(run.true, 1)
    small = coarsen(flow, max_gap_s=1e-3)
    assert len(small.names) < len(flow.names)
    check(small)
    before, after = (earliest(f, begins(run.true, 1))[1] for f in (flow, small))
    for r in (0, 1):
        ends = [
            e[next(i for i, n in enumerate(f.names) if n == "end" and f.rank[i] == r)]
            for f, e in ((flow, before), (small, after))
        ]
        assert ends[0] == pytest.approx(ends[1], abs=1e-9)
    forward = [i for i in np.flatnonzero(kinds(small, "forward")) if small.rank[i] == 0]
    assert [small.member_ops[i] for i in forward] == [[f"layer{k}" for k in range(12)]]
    assert small.names[forward[0]] == "layer0..layer11"
    assert small.gradient_bytes.sum() == flow.gradient_bytes.sum()


def test_coarsening_keeps_long_idle_times_apart():
    flow = build(make(1, 1).true, 0)
    assert kinds(coarsen(flow, max_gap_s=0.0), "forward").sum() == 3
    assert kinds(coarsen(flow), "forward").sum() == 1


def test_hosts_are_numbered_by_their_names():
    trace = make(4, 1).true
    for rank, host in zip(trace.ranks, "abab", strict=True):
        rank.header = msgspec.structs.replace(rank.header, host=host)
    assert build(trace, 0).hosts.tolist() == [0, 1, 0, 1]


def test_slots_of_a_group_are_those_of_its_ranks():
    flow = build(make(2, 1).true, 0)
    group = flow.resource_names.index("group world")
    assert flow.slots[group] == 1
    assert flow.priority[flow.resource == group].tolist() == [0, 1, 2]


def test_wrong_steps_algorithms_and_waits_are_named():
    trace = make(2, 2).true
    with pytest.raises(TraceError, match="no step 7 on all ranks; the steps are 0 to 1"):
        build(trace, 7)
    with pytest.raises(InputError, match="'star'; expected one of ring, tree, ps, hierarchical"):
        build(trace, 0, algorithm="star")
    number = next(i for i, op in enumerate(trace.ranks[1].ops) if op.kind == "wait")
    wait = trace.ranks[1].ops[number]
    trace.ranks[1].ops[number] = msgspec.structs.replace(wait, start_s=0.0, end_s=1.0)
    with pytest.raises(TraceError, match="ops wait for each other"):
        build(trace, 0)


def test_collectives_over_the_edge_of_a_step_and_without_counterparts_are_named():
    trace = make(2, 2).true
    number = next(i for i, op in enumerate(trace.ranks[1].ops) if op.kind == "communication" and op.seq == 2)
    trace.ranks[1].ops[number] = msgspec.structs.replace(trace.ranks[1].ops[number], step=1)
    with pytest.raises(TraceError, match=r"all_reduce 2 of group 'world' is of steps \[0, 1\]"):
        build(trace, 0)
    trace = make(2, 2).true
    trace.ranks[1].ops = [op for op in trace.ranks[1].ops if op.kind != "communication" or op.seq != 5]
    with pytest.raises(TraceError, match="rank 0 has all_reduce 5 of group 'world' in step 1 without"):
        build(trace, 1)


def test_alignment_is_what_makes_the_graph_right():
    """Skew of 50 ms: transfers seem to last longer, or not at all."""
    run = make(4, 30, clock_s=0.05, drift=1e-4, seed=6)

    def wrong(trace):
        flow, true = build(trace, 5), build(run.true, 5)
        transfers = flow.size_bytes > 0
        return np.abs(flow.duration_s[transfers] - true.duration_s[true.size_bytes > 0]).max()

    assert wrong(run.seen) > 100 * wrong(align(run.seen))


@pytest.mark.parametrize(
    ("algorithm", "servers", "whole_s", "expanded_s"),
    [
        ("ring", 1, 0.16814533562428866, 0.16772132225561195),
        ("tree", 1, 0.1319053356242887, 0.19167569717058547),
        ("ps", 1, 0.16178533562428868, 0.2507913544354898),
        ("ps", 2, 0.14678533562428867, 0.1614008369849198),
        ("hierarchical", 1, 0.11202533562428868, 0.12493465558894531),
    ],
)
def test_replays_by_each_algorithm_stay_as_they_are(algorithm, servers, whole_s, expanded_s):
    made = make(5, 2).true
    headers = [
        msgspec.structs.replace(r.header, host=f"h{h}")
        for r, h in zip(made.ranks, [0, 1, 0, 2, 1], strict=True)
    ]
    ranks = [RankTrace(header, r.ops, r.complete) for header, r in zip(headers, made.ranks, strict=True)]
    links = Links.uniform(3, 2e8, 3e-5, intra_bytes_per_s=9e8)
    for expand, expected in ((False, whole_s), (True, expanded_s)):
        flow = build(
            msgspec.structs.replace(made, ranks=ranks), 1, algorithm=algorithm, expand=expand, servers=servers
        )
        assert replay(flow, links).step_s == pytest.approx(expected, rel=1e-12)
