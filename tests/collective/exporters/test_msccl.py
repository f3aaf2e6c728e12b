"""E2, E3, E4 of the brief on collectives: MSCCL files carried out with integers, against the program itself."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.collective.exporters.programs import doubling, ring, run
from wirewise.collective import Program, Transfer
from wirewise.collective.exporters import msccl
from wirewise.collective.exporters.msccl.interpreter import buffers
from wirewise.collective.exporters.msccl.validate import expected_output
from wirewise.errors import InputError, ProgramError

SIX = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


def numbers(algorithm, elements, dtype=np.int64, seed=1):
    random = np.random.default_rng(seed)
    return [
        random.integers(100, size=(buffers(algorithm, rank)[0], elements)).astype(dtype)
        for rank in range(len(algorithm.gpus))
    ]


def assert_right(algorithm, inputs, root=0, **how):
    memory = msccl.execute(algorithm, inputs, **how)
    wanted = expected_output(algorithm, inputs, root)
    assert wanted
    for rank, value in wanted.items():
        np.testing.assert_array_equal(memory[rank]["o"], value)


@pytest.mark.sweep
@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("collective", SIX)
def test_E2_exact_results(collective, instances, protocol):
    for in_place in (False, True):
        if in_place and collective == "all_to_all":
            continue
        made = msccl.lower(
            ring(collective, 4, root=1),
            protocol=protocol,
            in_place=in_place,
            instances=instances,
            fuse=instances > 1,
        )
        algorithm = msccl.loads(msccl.dumps(made))
        assert_right(algorithm, numbers(algorithm, 5), root=1)
        assert_right(algorithm, numbers(algorithm, 3), root=1, fifo=1, seed=3)


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_E2_chunks_larger_than_a_slot_go_in_pieces(protocol, monkeypatch):
    # The least of the slots, so that a megabyte is no test of patience.
    slot_bytes = min(slots.slot_bytes for slots in msccl.PROTOCOLS.values())
    monkeypatch.setitem(msccl.PROTOCOLS, protocol, msccl.PROTOCOLS[protocol]._replace(slot_bytes=slot_bytes))
    algorithm = msccl.lower(ring("all_reduce", 3), protocol=protocol)
    inputs = numbers(algorithm, int(2.5 * slot_bytes), np.int8)
    inputs = [given // 4 for given in inputs]
    assert_right(algorithm, inputs)


# Names and values that the parsers of MSCCL read, written down apart from the writer and its own reader.
ALGO = {
    "name",
    "proto",
    "nchannels",
    "nchunksperloop",
    "ngpus",
    "coll",
    "inplace",
    "outofplace",
    "minBytes",
    "maxBytes",
}
FORM = {
    "gpu": {"id", "i_chunks", "o_chunks", "s_chunks"},
    "tb": {"id", "send", "recv", "chan"},
    "step": {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"},
}
TYPES = {"s", "r", "rcs", "rrs", "rrc", "rrcs", "re", "cpy", "nop"}


@pytest.mark.parametrize("dialect", ["microsoft", "azure"])
@pytest.mark.parametrize("collective", SIX)
def test_E4_files_have_the_published_form(collective, dialect):
    root = ElementTree.fromstring(msccl.dumps(msccl.lower(ring(collective, 5, root=2)), dialect))
    # The operation of sums may be told.
    assert root.tag == "algo" and set(root.attrib) - {"redop"} == ALGO
    assert root.get("proto") in ("Simple", "LL", "LL128") and root.get("ngpus") == "5"
    assert [gpu.get("id") for gpu in root] == list("01234")
    for gpu in root:
        assert gpu.tag == "gpu" and set(gpu.attrib) == FORM["gpu"]
        assert [block.get("id") for block in gpu] == [str(number) for number in range(len(gpu))]
        lengths = [len(block) for block in gpu]
        for block in gpu:
            assert block.tag == "tb" and set(block.attrib) == FORM["tb"]
            assert all(-1 <= int(block.get(end)) < 5 for end in ("send", "recv"))
            assert 0 <= int(block.get("chan")) < int(root.get("nchannels"))
            assert [step.get("s") for step in block] == [str(number) for number in range(len(block))]
            for step in block:
                assert step.tag == "step" and set(step.attrib) == FORM["step"] and step.get("type") in TYPES
                for side in ("src", "dst"):
                    buffer, start = step.get(f"{side}buf"), int(step.get(f"{side}off"))
                    room = int(gpu.get(f"{buffer}_chunks"))
                    assert start == -1 or start + int(step.get("cnt")) <= room or root.get("inplace") == "1"
                block_id, number = int(step.get("depid")), int(step.get("deps"))
                assert (block_id, number) == (-1, -1) or number < lengths[block_id]


@pytest.mark.sweep
@pytest.mark.parametrize("dialect", ["microsoft", "azure"])
@pytest.mark.parametrize("collective", SIX)
def test_E4_both_dialects(collective, dialect):
    for in_place in {False, collective != "all_to_all"}:
        made = msccl.lower(ring(collective, 5, root=2), in_place=in_place, instances=2, max_bytes=2**20)
        text = msccl.dumps(made, dialect)
        assert msccl.violations(text, dialect, root=2) == []
        read = msccl.loads(text, dialect)
        assert msccl.dumps(read, dialect) == text
        assert (read.max_bytes, read.in_place, read.out_of_place) == (2**20, in_place, not in_place)


def start_of(program, layout, inputs):
    """What ranks hold at the start, by rank and chunk, taken from their inputs."""
    out_of_place = msccl.Layout(program, in_place=False)
    found = {}
    for rank, chunk in itertools.product(range(program.ranks), range(program.chunks)):
        place = out_of_place.start(rank, chunk)
        if place is not None:
            found[rank, chunk] = inputs[rank][place.offset : place.offset + layout.units.counts[chunk]]
    return found


def assert_same_memory(program, in_place):
    """All that the program leaves behind, partial sums included, is where the layout says."""
    layout = msccl.Layout(program, in_place)
    algorithm = msccl.loads(msccl.dumps(msccl.lower(program, in_place=in_place)))
    inputs = numbers(algorithm, 2)
    held = run(program, start_of(program, layout, inputs))
    written = {(t.target, t.chunk) for t in program.transfers}
    written |= {(r, c) for c in range(program.chunks) for r in program.ends_at(c)}
    for seed in (None, 0, 1):
        memory = msccl.execute(algorithm, inputs, seed=seed)
        for rank, chunk in written:
            at = layout.home(rank, chunk)
            got = memory[rank][at.buffer][at.offset : at.offset + layout.units.counts[chunk]]
            np.testing.assert_array_equal(got, held[rank, chunk], err_msg=f"rank {rank} chunk {chunk}")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", SIX)
def test_E3_same_memory_as_the_program(collective, in_place):
    if not (in_place and collective == "all_to_all"):
        assert_same_memory(ring(collective, 6, root=3), in_place)


@pytest.mark.parametrize("in_place", [False, True])
def test_E3_exchange(in_place):
    assert_same_memory(doubling(8), in_place)


def test_E3_random_trees():
    """Programs with relays, several sums into one cell in a step, and unequal shares."""
    random = np.random.default_rng(5)
    for _ in range(20):
        ranks, chunks = int(random.integers(3, 8)), int(random.integers(1, 5))
        transfers = []
        for chunk in range(chunks):
            order = random.permutation(ranks)
            parent = {int(order[i]): int(order[random.integers(i)]) for i in range(1, ranks)}
            depth = {int(order[0]): 0}
            for rank in map(int, order[1:]):
                depth[rank] = depth[parent[rank]] + 1
            deepest = max(depth.values())
            transfers += [Transfer(chunk, r, p, deepest - depth[r], True) for r, p in parent.items()]
            transfers += [Transfer(chunk, p, r, deepest + depth[r]) for r, p in parent.items()]
        shares = tuple(float(x) for x in random.integers(1, 5, chunks))
        program = Program(
            name="trees",
            collective="all_reduce",
            ranks=ranks,
            chunks=chunks,
            transfers=tuple(transfers),
            shares=shares,
        )
        assert_same_memory(program, in_place=bool(random.integers(2)))


def test_long_exchanges_in_place_are_cut_so_that_nothing_waits_for_ever():
    program = doubling(4, chunks=5)
    algorithm = msccl.lower(program, in_place=True)
    assert msccl.deadlocked_steps(algorithm, fifo=1) == []
    assert {step.chunks for gpu in algorithm.gpus for b in gpu.blocks for step in b.steps} <= {0, 1}
    out_of_place = msccl.lower(doubling(2, chunks=5))
    assert max(step.chunks for gpu in out_of_place.gpus for b in gpu.blocks for step in b.steps) == 5


def test_a_ring_of_one_thread_block_a_rank_gets_stuck():
    """Each rank sends before it receives: that ends only while connections have room."""
    algorithm = msccl.lower(ring("all_gather", 4))
    gpus = []
    for rank, gpu in enumerate(algorithm.gpus):
        by_role = {(b.send >= 0, b.receive >= 0): b.steps for b in gpu.blocks}
        sends, receives = by_role[True, False], by_role[False, True]
        steps = [
            step._replace(waits_for=None, awaited=False)
            for sent, received in zip(sends, receives, strict=True)
            for step in (sent,) * 4 + (received,) * 4
        ]
        block = msccl.ThreadBlock((rank + 1) % 4, (rank - 1) % 4, 0, tuple(steps))
        gpus.append(gpu._replace(blocks=(block,)))
    bad = msccl.Algorithm(
        name="bad",
        collective="custom",
        channels=1,
        chunks_per_loop=4,
        in_place=False,
        out_of_place=True,
        gpus=tuple(gpus),
    )
    assert len(msccl.deadlocked_steps(bad, fifo=1)) == 4
    assert "waits for room to send" in msccl.deadlocked_steps(bad, fifo=1)[0]
    assert len(msccl.deadlocked_steps(bad, fifo=3)) == 4
    assert msccl.deadlocked_steps(bad, fifo=8) == []
    with pytest.raises(ProgramError, match="never ends with 1 sends"):
        msccl.execute(bad, numbers(bad, 1), fifo=1)


def test_messages_that_touch_are_one_step():
    program = Program(
        name="pair",
        collective="broadcast",
        ranks=2,
        chunks=80,
        transfers=tuple(Transfer(c, 0, 1, 0) for c in range(80)),
    )
    sends = [b for b in msccl.lower(program).gpus[0].blocks if b.send == 1]
    assert [step.chunks for step in sends[0].steps] == [71, 9]


def test_a_send_and_a_receive_share_a_thread_block_where_no_step_needs_both():
    chain = ring("broadcast", 3)
    middle = msccl.lower(Program(**{**as_dict(chain), "chunks": 1, "transfers": chain.transfers[::2]})).gpus[
        1
    ]
    assert [(b.send, b.receive) for b in middle.blocks] == [(2, 0)]
    busy = msccl.lower(chain).gpus[1]
    assert sorted((b.send, b.receive) for b in busy.blocks) == [(-1, 0), (2, -1)]


def as_dict(program):
    return {name: getattr(program, name) for name in program.__struct_fields__}


def kinds(gpu):
    return [[step.kind for step in block.steps] for block in gpu.blocks]


def test_fused_rings_have_one_thread_block_that_passes_on():
    for in_place in (False, True):
        algorithm = msccl.lower(ring("all_reduce", 4), fuse=True, in_place=in_place)
        for gpu in algorithm.gpus:
            assert kinds(gpu) == [["s", "rrs", "rrs", "rrcs", "rcs", "rcs", "r"]]
        assert_right(algorithm, numbers(algorithm, 2))
    chain = msccl.lower(ring("reduce", 4, root=3), fuse=True)
    assert [kinds(gpu) for gpu in chain.gpus] == [
        [["s", "s"]],
        [["rrs", "rrs"]],
        [["rrs", "rrs"]],
        [["rrc", "rrc"]],
    ]
    assert [gpu.scratch_chunks for gpu in chain.gpus] == [0, 0, 0, 0]


def test_what_is_read_again_is_stored():
    """The root's sum of a tree goes to two children: one send is joined, the other reads what was stored."""
    transfers = [Transfer(0, 1, 0, 0, True), Transfer(0, 0, 1, 1), Transfer(0, 0, 2, 1)]
    transfers += [Transfer(0, 2, 0, 0, True)]
    tree = Program(name="tree", collective="all_reduce", ranks=3, chunks=1, transfers=tuple(transfers))
    algorithm = msccl.lower(tree, fuse=True)
    found = [kind for block in kinds(algorithm.gpus[0]) for kind in block]
    assert sorted(found) == ["rrc", "rrcs", "s"]
    assert msccl.violations(msccl.dumps(algorithm)) == []


def test_steps_that_would_wait_in_a_circle_are_not_joined():
    """Two ranks pass two values to and fro: joined, each would receive before it sends what the other waits for."""
    program = doubling(4, chunks=5)
    algorithm = msccl.lower(program, in_place=True, fuse=True)
    assert msccl.deadlocked_steps(algorithm, fifo=1) == []
    assert_right(algorithm, numbers(algorithm, 1), fifo=1)


def test_long_programs_are_divided_over_channels():
    chain = Program(
        name="long",
        collective="broadcast",
        ranks=2,
        chunks=100,
        transfers=tuple(Transfer(c, 0, 1, c) for c in range(100)),
    )
    for most, channels in ((256, 1), (64, 2), (20, 5), (1, 32)):
        algorithm = msccl.lower(chain, most_steps=most)
        assert algorithm.channels == channels
        assert_right(algorithm, numbers(algorithm, 1))
    assert msccl.lower(chain, most_steps=20, instances=8).channels == 32
    copies = [block.steps for block in algorithm.gpus[0].blocks if block.send < 0]
    assert [[step.chunks for step in steps] for steps in copies] == [[71, 29]]


def test_channels_are_used_in_turn():
    algorithm = msccl.lower(ring("all_reduce", 4), channels=2, instances=2)
    assert algorithm.channels == 4
    assert msccl.violations(msccl.dumps(algorithm)) == []
    assert_right(algorithm, numbers(algorithm, 2))


@pytest.mark.parametrize(
    ("program", "how", "message"),
    [
        (ring("all_gather", 3), {"instances": 0}, "got 0 instances"),
        (ring("all_to_all", 3), {"in_place": True}, "before they are sent"),
        (
            Program(name="g", collective="gather", ranks=2, chunks=2, transfers=(Transfer(1, 1, 0, 0),)),
            {},
            "MSCCL has a call for",
        ),
        (
            Program(
                name="m",
                collective="all_reduce",
                ranks=3,
                members=(0, 1),
                chunks=1,
                transfers=(Transfer(0, 0, 1, 0, True), Transfer(0, 1, 0, 1)),
            ),
            {},
            "no ranks outside the group",
        ),
        (Program(name="w", collective="broadcast", ranks=2, chunks=1, transfers=()), {}, "incomplete"),
    ],
)
def test_refusals(program, how, message):
    with pytest.raises((ProgramError, InputError), match=message):
        msccl.lower(program, **how)
