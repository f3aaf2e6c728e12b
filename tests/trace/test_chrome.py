"""Export for Chrome's viewer and Perfetto, and back."""

import gzip

import msgspec
import numpy as np
import pytest

from tests.trace.synthetic import make
from wirewise.errors import TraceError
from wirewise.trace import chrome
from wirewise.trace.align import align
from wirewise.trace.dataflow import build, coarsen
from wirewise.trace.records import Header, Op, RankTrace, Trace


def events(trace, **more):
    return msgspec.json.decode(chrome.dumps(trace, **more))["traceEvents"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_comes_back_the_same(tmp_path, name):
    trace = align(make(3, 4, clock_s=1.0, drift=1e-4, probes=4).seen)
    trace.notes.append("a note")
    trace.ranks[1].complete = False
    chrome.save(trace, tmp_path / name)
    assert chrome.read(tmp_path / name) == trace


def test_the_schema_of_the_viewer():
    trace = make(2, 3).true
    found = events(trace)
    for event in found:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys()
        assert event["ph"] in "MXsf"
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    spans = [event for event in found if event["ph"] == "X"]
    assert len(spans) == sum(len(rank.ops) for rank in trace.ranks)
    processes = [event["args"]["name"] for event in found if event["name"] == "process_name"]
    assert processes == ["rank 0 (host0)", "rank 1 (host1)"]
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} == named


def test_ops_of_a_row_are_nested_or_apart():
    """Viewers draw ops of one row on each other otherwise."""
    for rows in spans_by_row(events(make(2, 3, sizes=(9_000_000,) * 3).true)).values():
        open_ends = []
        for start, end in sorted(rows, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= start + 1e-6:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 1e-6
            open_ends.append(end)


def spans_by_row(found):
    rows = {}
    for event in found:
        if event["ph"] == "X":
            span = event["ts"], event["ts"] + event["dur"]
            rows.setdefault((event["pid"], event["tid"]), []).append(span)
    return rows


def test_an_arrow_goes_from_the_last_rank_to_the_ends_of_the_others():
    trace = make(4, 2).true
    found = events(trace)
    begins = {event["id"]: event for event in found if event["ph"] == "s"}
    ends = {event["id"]: event for event in found if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == 2 * 3 * 3
    rows = spans_by_row(found)
    for number, begin in begins.items():
        end = ends[number]
        assert begin["pid"] != end["pid"]
        assert begin["ts"] <= end["ts"]
        for event in (begin, end):
            own = rows[event["pid"], event["tid"]]
            assert any(a - 1e-6 <= event["ts"] <= b + 1e-6 for a, b in own)


def test_a_message_has_an_arrow_from_its_sender():
    ops = [
        Op(
            name=name, kind="communication", start_s=start, end_s=2.0, step=0, collective=name, peer=1 - rank,
            size_bytes=1,
        )
        for rank, (name, start) in enumerate([("send", 0.0), ("recv", 1.0)])
    ]  # fmt: skip
    headers = [Header(rank=r, world_size=2, host="h", groups={}) for r in range(2)]
    trace = Trace(ranks=[RankTrace(h, [op]) for h, op in zip(headers, ops, strict=True)])
    assert [(e["ph"], e["pid"]) for e in events(trace) if e["ph"] in "sf"] == [("s", 0), ("f", 1)]


def test_ops_of_the_critical_path_are_marked(tmp_path):
    trace = make(2, 3).true
    flow = build(trace, 1)
    names = [(name, int(rank)) for name, rank in zip(flow.names, flow.rank, strict=True)]
    chosen = [names.index(("layer0", 1)), names.index(("bucket 1", -1)), names.index(("optimizer", 0))]
    critical = chrome.places(trace, flow, chosen)
    marked = {
        (trace.ranks[r].ops[i].name, trace.ranks[r].ops[i].kind, r, trace.ranks[r].ops[i].step)
        for r, i in critical
    }
    assert marked == {
        ("layer0", "forward", 1, 1),
        ("bucket 1", "communication", 0, 1),
        ("bucket 1", "communication", 1, 1),
        ("optimizer", "optimizer", 0, 1),
    }
    red = [e for e in events(trace, critical=critical) if "critical path" in e.get("cat", "")]
    assert len(red) == 4
    assert all(e["cname"] == "terrible" for e in red)
    chrome.save(trace, tmp_path / "a.json", critical=critical)
    assert chrome.read(tmp_path / "a.json") == trace


def test_a_coarse_op_marks_all_that_it_stands_for():
    trace = make(2, 1).true
    flow = coarsen(build(trace, 0))
    forward = [i for i in np.flatnonzero(flow.kind == 1) if flow.rank[i] == 0]
    found = chrome.places(trace, flow, forward)
    assert sorted(trace.ranks[0].ops[i].name for _, i in found) == ["layer0", "layer1", "layer2"]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"traceEvents": []}', b"\x1f\x8b\x08broken"])
def test_foreign_files_are_named(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_bytes(text)
    with pytest.raises(TraceError, match=r"t\.json"):
        chrome.read(path)
    with pytest.raises(TraceError, match="cannot read the trace"):
        chrome.read(tmp_path / "none.json")


def test_a_cut_off_archive_is_named(tmp_path):
    path = tmp_path / "t.json.gz"
    chrome.save(make(2, 1).true, path)
    assert gzip.decompress(path.read_bytes()).startswith(b"{")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="was cut off"):
        chrome.read(path)
