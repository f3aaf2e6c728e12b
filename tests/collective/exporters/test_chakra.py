"""Chakra traces: read back by the schema's field numbers, and replayed."""

from __future__ import annotations

import pytest

from tests.collective.exporters.programs import doubling, ring
from wirewise.collective.exporters import chakra
from wirewise.collective.regular import regular


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """Field numbers and values of one protobuf message."""
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        assert key & 7 in (0, 2)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def messages(data):
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        yield fields(data[at : at + size])
        at += size


def read(path):
    (metadata, *raw) = messages(path.read_bytes())
    assert metadata == [(1, b"0.0.4")]
    nodes = []
    for node in raw:
        values = dict(node)
        attributes = {}
        for number, value in node:
            if number == 10:
                (_, name), (kind, content) = fields(value)
                attributes[name.decode()] = (kind, content)
        assert attributes.pop("is_cpu_op") == (27, 0)
        waits, at = [], 0
        while at < len(values.get(5, b"")):
            one, at = varint(values[5], at)
            waits.append(one)
        nodes.append((values[1], values[3], waits, values.get(7, 0), attributes))
    return nodes


def replay(ranks):
    """Each send meets the receive of its tag, and nothing waits for ever."""
    done = [set() for _ in ranks]
    sent, left = {}, {(r, node[0]): node for r, nodes in enumerate(ranks) for node in nodes}
    while left:
        before = len(left)
        for (rank, number), (_, kind, waits, _, about) in list(left.items()):
            if not done[rank].issuperset(waits):
                continue
            key = tuple(about[name][1] for name in ("comm_src", "comm_dst", "comm_tag")) if about else None
            if kind == 5:
                assert key not in sent
                sent[key] = about["comm_size"]
            elif kind == 6:
                if key not in sent:
                    continue
                assert sent.pop(key) == about["comm_size"]
            done[rank].add(number)
            del left[rank, number]
        assert len(left) < before
    assert not sent


@pytest.mark.parametrize(
    "program", [ring("all_reduce", 4), doubling(8), ring("all_to_all", 5), ring("reduce", 3)]
)
def test_traces_are_read_back_and_end(program, tmp_path):
    paths = chakra.save(program, tmp_path / "run", 3e6)
    assert [path.name for path in paths] == [f"run.{rank}.et" for rank in range(program.ranks)]
    ranks = [read(path) for path in paths]
    replay(ranks)
    assert sum(len(nodes) for nodes in ranks) == 2 * len(program.messages())


def test_sizes_and_kinds_of_attributes(tmp_path):
    (path, *_) = chakra.save(ring("all_gather", 4), tmp_path / "x", 4_000_000)
    first = read(path)[0]
    assert first[:2] == (1, 5)
    assert first[4] == {
        "comm_src": (7, 0),
        "comm_dst": (7, 1),
        "comm_tag": (7, 0),
        "comm_size": (9, 1_000_000),
    }


def test_a_send_waits_for_the_sum_that_it_passes_on(tmp_path):
    program = ring("reduce_scatter", 3)
    ranks = chakra.nodes(program, 3e6, reduce_s_per_byte=1e-9)
    for nodes in ranks:
        kinds = {node.id: node.kind for node in nodes}
        later = [node for node in nodes if node.kind == 5 and node.waits_for]
        assert later and all(kinds[other] == 4 for node in later for other in node.waits_for)
        assert all(node.duration_s == pytest.approx(1e-3) for node in nodes if node.kind == 4)
    paths = chakra.save(program, tmp_path / "x", 3e6, reduce_s_per_byte=1e-9)
    assert {node[3] for node in read(paths[0]) if node[1] == 4} == {1000}


def test_segments_are_messages_of_their_own():
    whole = ring("broadcast", 3)
    program = type(whole)(**{**{f: getattr(whole, f) for f in whole.__struct_fields__}, "segments": 4})
    nodes = chakra.nodes(program, 8e6)[1]
    assert len(nodes) == 4 * len(chakra.nodes(whole, 8e6)[1])
    assert {node.numbers["comm_size"] for node in nodes} == {1_000_000}
    assert len({(node.kind, node.numbers["comm_tag"]) for node in nodes}) == len(nodes)


@pytest.mark.parametrize("segments", [1, 2])
def test_nodes_of_one_rank_of_a_rule_are_those_of_its_explicit_form(segments):
    rule = regular("all_reduce", "hierarchical_bruck", 12, period=3, segments=segments)
    whole = chakra.nodes(rule.expand(), 1e6, reduce_s_per_byte=1e-9)
    ends = {}
    for rank in range(12):
        own = chakra.nodes_of(rule, rank, 1e6, reduce_s_per_byte=1e-9)
        assert [(n.id, n.kind, n.waits_for, n.duration_s) for n in own] == [
            (n.id, n.kind, n.waits_for, n.duration_s) for n in whole[rank]
        ]
        for node in own:
            if node.numbers:
                ends.setdefault(tuple(node.numbers.values()), []).append(node.name.split()[0])
    assert all(sorted(names) == ["receive", "send"] for names in ends.values())
