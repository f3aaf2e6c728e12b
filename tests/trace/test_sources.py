"""Traces opened from folders, files and exports, and what is known of their clocks."""

from __future__ import annotations

import gzip
import shutil

import numpy as np
import pytest

from tests.trace.synthetic import make, shifted
from wirewise.errors import TraceError
from wirewise.trace import align, chrome, clock_quality, load, open_trace, write_trace


@pytest.fixture
def folder(tmp_path):
    write_trace(make(ranks=3, steps=4).seen, tmp_path / "run")
    return tmp_path / "run"


def test_ranks_of_several_folders_are_one_run(folder, tmp_path):
    (tmp_path / "other").mkdir()
    shutil.move(folder / "rank-2.jsonl", tmp_path / "other")
    trace = open_trace([folder, tmp_path / "other" / "rank-2.jsonl"])
    assert [rank.header.rank for rank in trace.ranks] == [0, 1, 2]
    assert open_trace([folder, tmp_path / "other"]).ranks == trace.ranks
    with pytest.raises(TraceError, match="missing rank 2"):
        open_trace([folder])


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_an_exported_trace_is_opened(name, folder, tmp_path):
    chrome.save(open_trace([folder]), tmp_path / name)
    assert open_trace([tmp_path / name]).ranks == open_trace([folder]).ranks


def test_kinds_are_not_mixed(folder, tmp_path):
    chrome.save(open_trace([folder]), tmp_path / "run.json")
    with pytest.raises(TraceError, match=r"got 1 exported traces and 3 files of wirewise"):
        open_trace([folder, tmp_path / "run.json"])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", b"", "expected"),
        ("text.json", b"hello", "expected"),
        ("short.json.gz", gzip.compress(b"{}" * 5000, mtime=0)[:20], "cannot read|expected|damaged|cut off"),
        ("noise.json.gz", b"\x1f\x8bxxxxxxxxxxxxxx", "cannot read"),
    ],
)
def test_files_of_no_kind_are_refused(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=said):
        open_trace([tmp_path / name])


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"cannot read the trace .*absent"):
        open_trace([tmp_path / "absent"])
    with pytest.raises(TraceError, match="no trace in"):
        open_trace([tmp_path])
    with pytest.raises(TraceError, match="got nothing"):
        open_trace([])


def test_clocks_hours_apart_are_aligned_where_ranks_communicate(tmp_path):
    write_trace(make(ranks=3, steps=4, clock_s=20_000.0).seen, tmp_path)
    trace = load([tmp_path])
    begins = [trace.of(rank, 0)[0].start_s for rank in range(3)]
    assert max(begins) - min(begins) < 0.1


def test_clocks_hours_apart_that_nothing_ties_are_refused(tmp_path):
    run = make(ranks=2, steps=4)
    for rank in run.true.ranks:
        rank.ops = [op for op in rank.ops if op.kind not in ("communication", "wait")]
    apart = shifted(run.true, np.array([0.0, 3 * 3600.0]), np.zeros(2))
    write_trace(apart, tmp_path)
    with pytest.raises(TraceError, match=r"begins 3.0 hours later on rank 1 than on rank 0.*set the clocks"):
        load([tmp_path])


def test_the_uncertainty_holds_the_error():
    run = make(ranks=4, clock_s=5.0, drift=1e-5, probes=10)
    trace = align(run.seen)
    wrong = []
    for rank, quality in enumerate(clock_quality(trace)):
        seen, true = run.seen.ranks[rank].ops, trace.ranks[rank].ops
        at = np.array([op.end_s for op in seen])
        wrong.append(np.abs(np.array([op.end_s for op in true]) - run.common(rank, at)).max())
        assert wrong[-1] <= quality.uncertainty_s < 1e-3
        assert 0.0 < quality.spread_s < 1e-3
    assert max(wrong) > 0.0


def test_nothing_is_known_of_a_clock_that_nothing_ties():
    (alone,) = clock_quality(align(make(ranks=1).seen))
    assert (alone.spread_s, alone.uncertainty_s) == (None, None)
