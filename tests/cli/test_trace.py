"""`wirewise trace`: merge, align, show, export."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.trace.profiled import Profiled, info
from tests.trace.synthetic import make, shifted
from wirewise.cli.main import app
from wirewise.trace import Header, Op, RankTrace, Trace, chrome, read, write_trace


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def said(result):
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path):
    run = make(ranks=3, steps=6, clock_s=5.0, drift=1e-5, probes=4, slowdown={1: 1.6})
    write_trace(run.seen, tmp_path / "run")
    return tmp_path / "run"


def test_merge_puts_ranks_into_one_folder(folder, tmp_path):
    (tmp_path / "b").mkdir()
    shutil.move(folder / "rank-1.jsonl", tmp_path / "b")
    text = said(call("trace", "merge", folder, tmp_path / "b", "-o", tmp_path / "all"))
    assert text.startswith(f"{tmp_path / 'all'}: 3 ranks, 3 hosts, 6 steps, ")
    assert read(tmp_path / "all").world_size == 3


def test_merge_writes_json(folder, tmp_path):
    found = json.loads(said(call("trace", "merge", folder, "-o", tmp_path / "all", "--json", "-")))
    assert (found["ranks"], found["steps"], found["notes"]) == (3, 6, [])


def kineto_file(path, rank, shift_us):
    """What torch.profiler writes, cut down to three steps of a gloo all-reduce."""
    events = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "ts": 0, "args": {"name": "pt_gloo_runloop"}}
    ]

    def add(cat, name, tid, ts, dur, **args):
        ts += shift_us
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    for step in range(3):
        at = 1000.0 + 10_000 * step
        add("user_annotation", f"ProfilerStep#{step}", 1, at, 9_000)
        add("cpu_op", "aten::mm", 1, at + 100, 3_000)
        add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 1, at + 3_200, 2_000)
        add("cpu_op", "c10d::allreduce_", 1, at + 5_300, 50)
        shape = {"Input Dims": [[250_000]], "Input type": ["float"]}
        add("cpu_op", "gloo:all_reduce", 9, at + 5_400, 2_000, **shape)
        add("user_annotation", "Optimizer.step#SGD.step", 1, at + 7_500, 1_000)
    head = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2},
        "host_name": f"host{rank}",
        "baseTimeNanoseconds": 10**18,
    }
    path.write_text(json.dumps({**head, "traceEvents": events}))


def test_files_of_torch_profiler_are_merged_and_shown(tmp_path):
    for rank in range(2):
        kineto_file(tmp_path / f"r{rank}.pt.trace.json", rank, 40.0 * rank)
    files = sorted(tmp_path.iterdir())
    said(call("trace", "merge", *files, "-o", tmp_path / "run"))
    merged = read(tmp_path / "run")
    assert merged.steps() == [0, 1, 2]
    assert sum(op.collective == "all_reduce" for op in merged.ranks[1].ops) == 3
    assert "bounds the step" in said(call("trace", "show", *files)).splitlines()[0]
    found = json.loads(said(call("sim", *files, "--json", "-")))
    # The first period lacks the idle time before it, which two of three have alike: an outlier.
    assert (found["ranks"], found["steps"], len(found["per_step"])) == (2, 2, 3)


def device_file(path, rank, world_size):
    """Steps in which a device waits for its host nearly all the time."""
    made = Profiled(info(rank, world_size))
    for number in range(3):
        at = 1000 * number
        made.step(number, at, 1000)
        made.host("aten::mm", at, 1000)
        for place in range(at, at + 1000, 100):
            made.kernel("gemm", place + 30, 20, launched=place + 10)
        made.older_collective("nccl:all_to_all", "ncclKernel_SendRecv", at + 40, 20, launched=at + 12)
    return made.write(path)


@pytest.mark.parametrize("words", [("export", "-o", "x.json"), ("merge", "-o", "run"), ("align",)])
def test_what_needs_all_ranks_says_which_are_missing(words, tmp_path):
    file = device_file(tmp_path / "r.pt.trace.json", 34, 300)
    name, *options = words
    result = call("trace", name, file, *(tmp_path / o if "-" not in o else o for o in options))
    assert result.exit_code == 2
    assert "has 1 of 300 ranks: missing rank 0, 1, 2, 3, 4, 5, 6, 7 and others; copy" in result.stderr


def test_one_process_is_told_nothing_of_buckets(tmp_path):
    made = Profiled(info(0, 1))
    for number in range(3):
        made.step(number, 1000 * number, 1000)
        made.host("aten::mm", 1000 * number, 20)
        made.host("AddmmBackward0", 1000 * number + 20, 20)
    text = said(call("trace", "show", made.write(tmp_path / "r.json")))
    assert text.startswith("Nothing recorded fills 96 % of 1.00 ms.")
    assert "bucket_mb" not in text


def test_align_prints_and_writes_the_run_on_one_clock(folder, tmp_path):
    result = call("trace", "align", folder, "-o", tmp_path / "aligned", "--json", tmp_path / "clocks.json")
    titles, *rows = [line.split("\t") for line in said(result).splitlines()[:4]]
    assert titles == ["rank", "host", "offset", "drift", "spread of ends", "off by at most"]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    clocks = json.loads((tmp_path / "clocks.json").read_text())["ranks"]
    assert clocks[0]["offset_s"] == 0.0
    assert all(0.0 < clock["uncertainty_s"] < 1e-3 for clock in clocks)
    aligned = read(tmp_path / "aligned")
    begins = [aligned.of(rank, 3)[0].start_s for rank in range(3)]
    assert max(begins) - min(begins) < 0.05
    again = json.loads(said(call("trace", "align", tmp_path / "aligned", "--json", "-")))["ranks"]
    assert all(abs(clock["offset_s"]) < 1e-4 for clock in again)


def test_show_begins_with_what_bounds_the_step(folder):
    lines = said(call("trace", "show", folder)).splitlines()
    assert lines[0].startswith("Rank 1 bounds the step: it computes 1.6")
    heads = [line.split("\t")[0] for line in lines]
    for title in ("rank", "step", "part of the mean rank's step", "op on the critical path", "change"):
        assert title in heads
    assert any(line.startswith("1\thost1\t") and line.endswith("\tstraggler") for line in lines)


def test_show_writes_page_and_json(folder, tmp_path):
    result = call("trace", "show", folder, "--html", tmp_path / "r.html", "--json", tmp_path / "r.json")
    assert said(result).splitlines()[-1] == f"Report: {tmp_path / 'r.html'}"
    found = json.loads((tmp_path / "r.json").read_text())
    assert (found["bound"], found["bound_by"], found["straggler_rank"]) == ("straggler", "straggler", 1)
    assert [row["rank"] for row in found["ranks"]] == [0, 1, 2]
    for row in found["ranks"]:
        assert 0 <= row["overlap_share"] <= 1 and 0 <= row["idle_share"] < 1
        assert row["exposed_communication_s"] <= row["communication_s"] < found["step_s"] * 1.5
    assert found["summary"] == result.stdout.splitlines()[0]
    assert {row["change"] for row in found["what_ifs"]} >= {"bandwidth=*:x2", "no_communication"}
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_export_is_read_back_and_marks_the_critical_path(name, folder, tmp_path):
    found = json.loads(said(call("trace", "export", folder, "-o", tmp_path / name, "--json", "-")))
    assert found["ranks"] == 3
    assert found["critical_ops"] > 6
    trace = chrome.read(tmp_path / name)
    assert trace.aligned
    assert "bounds the step" in said(call("trace", "show", tmp_path / name))


def test_a_truncated_trace_is_shown_with_a_note(folder):
    file = folder / "rank-2.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert "Note: the trace of rank 2 was cut off" in said(call("trace", "show", folder))


def missing_rank(folder):
    (folder / "rank-1.jsonl").unlink()


def mixed_runs(folder):
    write_trace(make(ranks=2, steps=2).seen, folder)


def no_steps(folder):
    header = Header(rank=0, world_size=1, host="a", groups={})
    for file in folder.iterdir():
        file.unlink()
    ops = [Op(name="setup", kind="other", start_s=0.0, end_s=1.0, step=-1)]
    write_trace(Trace([RankTrace(header, ops)]), folder)


def other_format(folder):
    file = folder / "rank-1.jsonl"
    file.write_text(file.read_text().replace('"format":1', '"format":7', 1))


def clocks_apart(folder):
    run = make(ranks=3, steps=3)
    for rank in run.true.ranks:
        rank.ops = [op for op in rank.ops if op.kind not in ("communication", "wait")]
    write_trace(shifted(run.true, np.array([0.0, 0.0, 9000.0]), np.zeros(3)), folder)


def damaged(folder):
    file = folder / "rank-0.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], lines[4][:30], *lines[5:]]) + "\n")


BAD = {
    missing_rank: "has 2 of 3 ranks: missing rank 1; copy the traces of all ranks into one folder",
    mixed_runs: "mixes runs: world_size is 2 on rank 0 and 3 on rank 2; keep each run in a folder of its own",
    no_steps: "no steps in",
    other_format: "has format 7; this version reads format 1",
    clocks_apart: "hours later on rank 2 than on rank",
    damaged: "the file is damaged: record again",
}


@pytest.mark.sweep
@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("words", [("trace", "show"), ("trace", "align"), ("sim",)], ids=" ".join)
def test_bad_input_is_one_message_and_code_2(spoil, words, folder):
    spoil(folder)
    result = call(*words, folder)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("wirewise: ")
    assert BAD[spoil] in result.stderr
    assert "Traceback" not in result.stderr


def test_a_run_is_not_written_over_another(folder, tmp_path):
    for words in (("merge", folder), ("align", folder)):
        result = call("trace", *words, "-o", folder)
        assert result.exit_code == 2
        assert "holds a trace already" in result.stderr
    assert call("trace", "export", folder, "-o", tmp_path / "no" / "run.json").exit_code == 2
    assert call("trace", "show", folder, "--html", tmp_path / "no" / "run.html").exit_code == 2
