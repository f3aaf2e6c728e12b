"""Traces opened from folders, files and exports, and what is known of their clocks."""

from __future__ import annotations

import gzip
import os
import shutil

import pytest

from tests.trace.synthetic import make
from wirewise.errors import TraceError
from wirewise.trace import chrome, load, open_trace, write_trace


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


def test_what_a_file_system_leaves_beside_traces_is_not_read(folder, tmp_path):
    """Half files of macOS, and a folder with the name of a trace."""
    place = tmp_path / "profiles [1] of\xa0run"
    place.mkdir()
    chrome.save(open_trace([folder]), place / "run.json.gz")
    (place / "._run.json.gz").write_bytes(b"\x00\x05\x16\x07")
    (place / "old.json").mkdir()
    assert open_trace([place]).ranks == open_trace([folder]).ranks


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "trace.json")
    for path in (tmp_path / "trace.json", "/dev/zero"):
        with pytest.raises(
            TraceError, match="is a pipe or a device, which cannot be read twice; write a file"
        ):
            open_trace([path])


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
