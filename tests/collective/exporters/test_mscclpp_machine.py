"""Plans of MSCCL++ of anybody: what the executor's operations do, and what is wrong with a plan."""

from __future__ import annotations

import copy
import json
import re

import pytest

from wirewise.collective.builders import build
from wirewise.collective.exporters import mscclpp
from wirewise.collective.exporters.mscclpp_machine import faults, result_unknown, sent_chunks
from wirewise.collective.exporters.mscclpp_plan import loads
from wirewise.errors import ProgramError


def at(place, index, size=1):
    name = {"b": "buffer_id", "w": "switch_channel_id"}.get(place[0], "type")
    return {name: place if name == "type" else int(place[1:]), "index": index, "size": size}


def op(name, source=(), target=(), channels=(), kind="memory", **more):
    given = {"name": name, "channel_type": kind, **more}
    if source:
        given |= {"src_buff": list(source), "dst_buff": list(target)}
    return given | ({"channel_ids": list(channels)} if channels else {})


def plan(collective, ops, *, chunks=(2, 2, 3), kind="memory", buffer="s", protocol="Simple"):
    """Two ranks; `ops` by rank, a list for each thread block."""
    gpus = []
    for rank, blocks in enumerate(ops):
        uses = [{"channel_type": kind, "channel_ids": [0]}, {"channel_type": "switch", "channel_ids": [0]}]
        refs = [{"access_channel_type": kind, "remote_buffer_ids": [0]}]
        gpus.append(
            {
                "id": rank,
                **dict(zip(("input_chunks", "output_chunks", "scratch_chunks"), chunks, strict=True)),
                "threadblocks": [
                    {"id": n, "ops": own, "channels": uses, "remote_buffer_refs": refs}
                    for n, own in enumerate(blocks)
                ],
                "channels": [
                    {"channel_type": kind, "connected_to": [1 - rank]},
                    {
                        "channel_type": "switch",
                        "buffer_type": "i",
                        "rank_groups": [{"size": 2, "ranks": [0, 1]}],
                    },
                ],
                "remote_buffers": [{"rank": 1 - rank, "type": buffer, "access_channel_types": [kind]}],
                "semaphores": [],
            }
        )
    return {"name": "own", "collective": collective, "protocol": protocol, "inplace": True, "gpus": gpus}


def meet(kind="memory"):
    return [op("rlxsignal", channels=[0], kind=kind), op("rlxwait", channels=[0], kind=kind)]


def gathering(kind):
    """All-gather over port or memory channels: rank 0 puts, then signals; rank 1 does both at once."""
    own = []
    for rank in range(2):
        moved = ([at("o", 2 * rank, 2)], [at("b0", 2 * rank, 2)], [0], kind)
        send = (
            [op("put", *moved), op("signal", channels=[0], kind=kind)] if rank == 0 else [op("pwsf", *moved)]
        )
        own.append(
            [[*meet(kind), *send, op("flush", channels=[0], kind=kind), op("wait", channels=[0], kind=kind)]]
        )
    return plan("allgather", own, chunks=(2, 4, 0), kind=kind, buffer="o")


def packets(shared=1):
    """All-reduce by packets: the other half is sent, added, and sent back, by several thread blocks together."""
    own = []
    for rank in range(2):
        other = 1 - rank
        group = [{"tbg_info": {"tb_id": n, "tbg_size": shared}} for n in range(shared)]
        blocks = [[op("ppkt", [at("i", other)], [at("b0", other)], **one)] for one in group]
        added = ([at("i", rank), at("s", rank)], [at("i", rank), at("s", 2), at("b0", rank)])
        if rank:
            blocks += [[op("recspkt", *added, reduce_op="sum", **one)] for one in group]
        else:
            added = (added[0], [added[1][0], added[1][2]])
            blocks += [[op("respkt", *added, reduce_op="sum", **one)] for one in group]
        blocks += [[op("upkt", [at("s", other)], [at("i", other)], **one)] for one in group]
        own.append(blocks)
    return plan("allreduce", own, protocol="LL")


def multicast():
    """All-reduce by a switch: each rank adds its chunk of all ranks up, and stores it in all."""
    own = []
    for rank in range(2):
        adding = op("glres", [at("w0", rank)], [at("w0", rank)], kind="switch", reduce_op="sum")
        pipeline = {
            "name": "pipeline",
            "iter_context": {"unit_size": 1048576, "num_chunks": 1},
            "ops": [adding],
        }
        own.append([[*meet(), {"name": "nop"}, pipeline, *meet()]])
    return plan("allreduce", own)


RIGHT = {
    "memory": gathering("memory"),
    "port": gathering("port"),
    "packets": packets(),
    "groups of thread blocks": packets(3),
    "switch": multicast(),
}


@pytest.mark.parametrize("name", RIGHT)
def test_plans_with_the_executors_operations_are_right(name):
    found = loads(json.dumps(RIGHT[name]))
    assert result_unknown(found) is None
    assert list(faults(found)) == []


@pytest.mark.parametrize(
    ("collective", "algorithm", "in_place"),
    [
        ("all_reduce", "ring", True),
        ("all_reduce", "recursive_doubling", False),
        ("all_gather", "bruck", True),
        ("reduce_scatter", "ring", True),
        ("all_to_all", "linear", False),
        ("broadcast", "binomial", False),
    ],
)
@pytest.mark.parametrize("channel", ["memory", "port"])
def test_own_exports_are_read_and_right(collective, algorithm, in_place, channel):
    program = build(collective, algorithm, 4)
    found = loads(mscclpp.dumps(program, in_place=in_place, channel=channel))
    assert {one.channel_type for gpu in found.gpus for one in gpu.channels} == {channel}
    assert (result_unknown(found), list(faults(found))) == (None, [])
    pairs = {(t.source, t.target) for t in program.transfers}
    assert set(sent_chunks(found)) == pairs


def broken(name, change):
    given = copy.deepcopy(RIGHT[name])
    change(given["gpus"])
    return loads(json.dumps(given))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("port", lambda g: g[1]["threadblocks"][0]["ops"].pop(-1), "gpu 0 signals gpu 1 more often"),
        ("port", lambda g: g[0]["threadblocks"][0]["ops"].pop(3), r"gpu 1.*\(wait\) waits for ever"),
        (
            "packets",
            lambda g: g[0]["threadblocks"].pop(0),
            r"\(recspkt\) waits for ever|\(upkt\) waits for ever",
        ),
        ("packets", lambda g: g[0]["threadblocks"].pop(2), "gpu 0 ends with a wrong value in chunk 1"),
        (
            "memory",
            lambda g: g[0]["threadblocks"][0]["ops"].pop(2),
            "gpu 1 ends with a wrong value in chunk 0",
        ),
        (
            "memory",
            lambda g: g[0]["threadblocks"][0]["ops"][2]["src_buff"][0].update(index=3),
            "chunks 3 to 4",
        ),
        (
            "memory",
            lambda g: g[0]["threadblocks"][0]["ops"][2]["dst_buff"][0].update(buffer_id=1),
            "remote buffer 1",
        ),
        ("memory", lambda g: g[0]["threadblocks"][0]["ops"][0].update(channel_ids=[1]), "memory channel 1"),
        ("switch", lambda g: g[1].update(id=0), "expected each rank once"),
    ],
)
def test_what_is_wrong_is_named(name, change, message):
    (found,) = faults(broken(name, change))
    assert re.search(message, found), found


def test_what_cannot_be_represented_is_refused_by_name():
    with pytest.raises(ProgramError, match="operation 'barrier' cannot be represented"):
        list(faults(broken("memory", lambda g: g[0]["threadblocks"][0]["ops"][0].update(name="barrier"))))
    with pytest.raises(ProgramError, match="reduce_op 'max' cannot be represented"):
        list(faults(broken("packets", lambda g: g[0]["threadblocks"][1]["ops"][0].update(reduce_op="max"))))
    with pytest.raises(ProgramError, match="older form"):
        loads('{"name": "a", "collective": "allreduce", "inplace": true, "gpus": [{"id": 0, "i_chunks": 1}]}')
    with pytest.raises(ProgramError, match=r"cannot read a plan.*inplace"):
        loads('{"name": "a", "collective": "allreduce", "gpus": []}')


def test_a_collective_whose_result_is_not_known_is_not_checked():
    given = copy.deepcopy(RIGHT["memory"]) | {"collective": "sendrecv"}
    assert "'sendrecv'" in str(result_unknown(loads(json.dumps(given))))
    given = copy.deepcopy(RIGHT["switch"]) | {"collective": "allgather"}
    assert "2 in and 2 out" in str(result_unknown(loads(json.dumps(given))))
