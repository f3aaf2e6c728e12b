"""Reading traces of torch.profiler: gloo as recorded, NCCL by hand, files that are damaged."""

import gzip
import itertools
import json
from pathlib import Path

import pytest

from wirewise.errors import TraceError
from wirewise.trace import kineto
from wirewise.trace.align import align, match, violations
from wirewise.trace.dataflow import build

FIXTURES = Path(__file__).parent / "fixtures"

GLOO = [FIXTURES / f"gloo-rank-{r}.json" for r in (0, 1)]

EXECUTION = [FIXTURES / f"execution-rank-{r}.json" for r in (0, 1)]


@pytest.mark.parametrize("beside", [(), EXECUTION])
def test_recorded_gloo_collectives(beside):
    trace = kineto.read_all(GLOO, execution_traces=beside)
    assert trace.steps() == [1, 2]
    assert trace.notes == []
    for rank in trace.ranks:
        found = [op for op in rank.ops if op.kind == "communication"]
        assert sorted((op.seq, op.collective, op.size_bytes, op.step) for op in found) == [
            (0, "all_reduce", 66304, 1),
            (1, "all_reduce", 32, 1),
            # gloo calls its run all_reduce.
            (2, "reduce_scatter", 64, 1),
            (3, "all_reduce", 16, 1),
            (4, "all_reduce", 66304, 2),
            (5, "all_reduce", 32, 2),
            (6, "reduce_scatter", 64, 2),
            (7, "all_reduce", 16, 2),
        ]
        assert all(op.enqueued_s <= op.start_s <= op.end_s for op in found)


def test_recorded_work_has_its_kinds():
    ops = kineto.read(GLOO[0]).ops
    step = next(op for op in ops if op.kind == "step" and op.step == 2)
    own = [op for op in ops if op.step == 2 and op.kind not in ("step", "communication")]
    assert all(step.start_s <= op.start_s <= op.end_s <= step.end_s for op in own)
    names = {(op.kind, op.name) for op in own}
    assert ("forward", "aten::linear") in names
    assert ("backward", "AddmmBackward0") in names
    assert ("optimizer", "Optimizer.step#SGD.step") in names
    assert ("other", "c10d::allreduce_") in names
    # Operators inside operators are part of them.
    assert not any(op.name == "aten::addmm" for op in own)
    ends = [(op.start_s, op.end_s) for op in sorted(own, key=lambda op: op.start_s)]
    assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(ends))


def test_recorded_ranks_align_and_give_a_graph():
    """Both ranks had one clock, so alignment has to find none to correct."""
    trace = kineto.read_all(GLOO)
    aligned = align(trace)
    assert abs(aligned.offsets[1].offset_s) < 200e-6
    assert violations(aligned) == 0
    assert len(match(aligned)) == 8
    for step in trace.steps():
        flow = build(aligned, step)
        assert sorted(flow.size_bytes[flow.size_bytes > 0]) == [16, 32, 64, 66304]


def test_an_execution_trace_pairs_runs_that_are_out_of_order(tmp_path):
    """Two runs of one kind change places; only the execution trace tells."""
    profile = json.loads(GLOO[0].read_text())
    runs = [e for e in profile["traceEvents"] if e["name"] == "gloo:all_reduce"]
    runs.sort(key=lambda e: e["ts"])
    later = runs[3]
    runs[2]["ts"], later["ts"] = later["ts"] + 1, later["ts"]
    path = tmp_path / "swapped.json"
    path.write_text(json.dumps(profile))
    by_order = [op.size_bytes for op in sorted(communications(kineto.read(path)), key=lambda op: op.seq)]
    exact = kineto.read(path, execution_trace=EXECUTION[0])
    by_call = [op.size_bytes for op in sorted(communications(exact), key=lambda op: op.seq)]
    assert by_order[2:4] == [16, 64]
    assert by_call[2:4] == [64, 16]


def communications(rank):
    return [op for op in rank.ops if op.kind == "communication"]


def test_a_compressed_file_reads_the_same(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(GLOO[0].read_bytes()))
    assert kineto.read(path) == kineto.read(GLOO[0])


def test_a_missing_rank_is_named():
    with pytest.raises(TraceError, match="1 of 2 ranks: missing rank 0"):
        kineto.read_all([GLOO[1]])
    with pytest.raises(TraceError, match="rank 1 is there twice"):
        kineto.read_all([GLOO[1], GLOO[1]])
    with pytest.raises(TraceError, match="got 2 profiles and 1 execution traces"):
        kineto.read_all(GLOO, execution_traces=EXECUTION[:1])


@pytest.mark.parametrize("compress", [False, True])
def test_a_cut_off_file_gives_its_whole_events(tmp_path, compress):
    text = GLOO[0].read_bytes()
    whole = kineto.read(GLOO[0])
    path = tmp_path / "cut.json"
    kept = text[: int(len(text) * 0.8)]
    path.write_bytes(gzip.compress(text)[:-2000] if compress else kept)
    found = kineto.read(path)
    assert (found.complete, whole.complete) == (False, True)
    assert 0 < len(found.ops) < len(whole.ops)
    assert communications(found)
    trace = kineto.read_all([path, GLOO[1]])
    assert any("rank 0 was cut off" in note for note in trace.notes)
    assert any("does not tell its base time" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no JSON, or was cut off before its first event"),
        (b'{"traceEv', "cut off before its first event"),
        (b'{"traceEvents": [{"ph": "X", "na', "cut off before its first event"),
        (b"[]", "has no traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "ts": "now"}]}', "event 0"),
        (b"\x1f\x8bnot an archive", "damaged archive"),
    ],
)
def test_damaged_files_are_named(tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_bytes(text)
    with pytest.raises(TraceError, match=words):
        kineto.read(path)


def gloo_without(tmp_path, *parts):
    profile = json.loads(GLOO[0].read_text())
    profile["traceEvents"] = [
        e for e in profile["traceEvents"] if not any(part in e["name"] for part in parts)
    ]
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(profile))
    return path


def test_several_ranks_without_communication_are_an_error(tmp_path):
    with pytest.raises(TraceError, match="of rank 0 of 2 but has no communication"):
        kineto.read(gloo_without(tmp_path, "gloo:"))


def test_steps_that_nothing_marks_count_as_one(tmp_path):
    """Nor does anything name the main thread: it is the one with most operators, not one of gloo's."""
    trace = kineto.read(gloo_without(tmp_path, "ProfilerStep", "DistributedDataParallel", "Optimizer"))
    assert {op.step for op in trace.ops} == {0}
    assert len(communications(trace)) == 8


def test_runs_without_shapes_say_so(tmp_path):
    paths = []
    for r in (0, 1):
        profile = json.loads(GLOO[r].read_text())
        for event in profile["traceEvents"]:
            event["args"].pop("Input Dims", None)
        paths.append(tmp_path / f"{r}.json")
        paths[-1].write_text(json.dumps(profile))
    trace = kineto.read_all(paths)
    assert all(op.size_bytes == 0 for op in communications(trace.ranks[0]))
    assert "rank 0: some collectives do not tell their bytes; record with record_shapes=True" in trace.notes


def test_a_file_that_does_not_tell_its_rank(tmp_path):
    profile = json.loads(GLOO[1].read_text())
    del profile["distributedInfo"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(profile))
    with pytest.raises(TraceError, match="does not tell its rank"):
        kineto.read(path)
    found = kineto.read(path, rank_of=(1, 2))
    assert (found.header.rank, len(communications(found))) == (1, 8)


def nccl(tmp_path, rank, kernel, *, on_kernel=True, seq=True, base=0):
    """A profile as NCCL gives it: a call on the host, a kernel on a stream."""
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#5",
            "pid": 1,
            "tid": 1,
            "ts": 0,
            "dur": 900,
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 10, "dur": 20},
        {"ph": "X", "cat": "cpu_op", "name": "AddmmBackward0", "pid": 1, "tid": 7, "ts": 100, "dur": 50},
        {"ph": "X", "cat": "kernel", "name": "gemm_f32", "pid": 0, "tid": 7, "ts": 110, "dur": 60},
    ]
    for number in range(2):
        args = {
            "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16",
            "Process Group Name": "1", "Group size": 2,
        }  # fmt: skip
        if seq:
            args["Seq"] = 40 + number
        at = 200 + 200 * number
        call = {"External id": 90 + number, **args}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 7, "ts": at, "dur": 5,
             "args": call},
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 20, "ts": at + 30 + 10 * rank,
             "dur": 100 - 10 * rank, "args": call if on_kernel else {"External id": 90 + number}},
        ]  # fmt: skip
    info = {
        "backend": "nccl",
        "rank": rank,
        "world_size": 2,
        "pg_config": [{"pg_name": "1", "ranks": [0, 1]}],
    }
    path = tmp_path / f"nccl-{rank}.json"
    path.write_text(
        json.dumps({"traceEvents": events, "distributedInfo": info, "baseTimeNanoseconds": 10**18 + base})
    )
    return path


@pytest.mark.parametrize(
    "kernel",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)",
        "nccl:all_reduce",
        "NCCLKERNEL_ALLREDUCE",
    ],
)
@pytest.mark.parametrize("on_kernel", [True, False])
def test_nccl_kernels_by_any_name(tmp_path, kernel, on_kernel):
    trace = kineto.read_all([nccl(tmp_path, r, kernel, on_kernel=on_kernel) for r in (0, 1)])
    for rank in trace.ranks:
        found = [(op.collective, op.seq, op.group, op.size_bytes, op.step) for op in communications(rank)]
        assert found == [("all_reduce", 40, "1", 2000, 5), ("all_reduce", 41, "1", 2000, 5)]
        assert rank.header.comm_slots == 1
        assert communications(rank)[0].enqueued_s == pytest.approx(200e-6)
    # The transfer began when the later rank came.
    assert match(trace)[0].start_s == pytest.approx(240e-6)
    kinds = {(op.kind, op.name, op.thread) for op in trace.ranks[0].ops}
    assert {
        ("forward", "aten::linear", "main"),
        ("backward", "AddmmBackward0", "main"),
        ("other", "gemm_f32", "stream 7"),
    } <= kinds
    assert len(build(trace, 5).names) > 10


def test_nccl_kernels_without_a_number_are_counted(tmp_path):
    trace = kineto.read_all([nccl(tmp_path, r, "ncclDevKernel_AllReduce", seq=False) for r in (0, 1)])
    assert [op.seq for op in communications(trace.ranks[1])] == [0, 1]
    assert any("were counted" in note for note in trace.notes)


def test_base_times_of_ranks_are_respected(tmp_path):
    paths = [nccl(tmp_path, r, "ncclKernel_AllReduce", base=r * 2_000_000) for r in (0, 1)]
    trace = kineto.read_all(paths)
    starts = [communications(rank)[0].start_s for rank in trace.ranks]
    assert starts == [pytest.approx(230e-6), pytest.approx(2e-3 + 240e-6)]
    assert [rank.header.clock_pairs for rank in trace.ranks] == [[(0.0, 10**18)]] * 2


def test_a_kernel_with_a_new_name_is_still_found_by_what_it_tells(tmp_path):
    trace = kineto.read_all([nccl(tmp_path, r, "xcclFancyKernel") for r in (0, 1)])
    assert [op.collective for op in communications(trace.ranks[0])] == ["all_reduce"] * 2
