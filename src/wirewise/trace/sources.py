"""Trace sources: run folders, parts of them, files of torch.profiler, exported traces."""

from __future__ import annotations

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from wirewise.errors import TraceError
from wirewise.trace import chrome, kineto
from wirewise.trace.align import align
from wirewise.trace.clocks import check_clocks
from wirewise.trace.files import ignore_progress, rank_files, read, read_files
from wirewise.trace.records import Trace

__all__ = ["load", "on_one_clock", "open_trace"]

_PEEK_BYTES = 4096
_EXECUTION = re.compile(rb'"schema"\s*:')
_OWN = re.compile(rb'^\s*\{"traceEvents":\[\{"ph":"M"')
_WORDS = {
    "rank": "files of wirewise (rank-R.jsonl)",
    "profile": "files of torch.profiler",
    "execution": "execution traces",
    "export": "exported traces",
}


def load(sources: Iterable[str | os.PathLike[str]], log: Callable[[str], None] = ignore_progress) -> Trace:
    """Load the trace of a run on one clock (`open_trace`, `on_one_clock`).

    Args:
        sources: Files of the trace, as `open_trace` takes them.
        log: Called with progress messages.

    Raises:
        TraceError: Raised by either of them.
    """
    trace = open_trace(sources, log=log)
    log("aligning clocks")
    return on_one_clock(trace)


def on_one_clock(trace: Trace) -> Trace:
    """Align the trace of all ranks (`align`) and check that its ranks ran at the same time.

    Raises:
        TraceError: Raised by `align`, or a step that begins hours later on one rank than on another one.
    """
    aligned = align(trace)
    check_clocks(aligned)
    return aligned


def open_trace(
    sources: Iterable[str | os.PathLike[str]],
    *,
    partial: bool = False,
    log: Callable[[str], None] = ignore_progress,
) -> Trace:
    """Load the trace of a run as recorded.

    Args:
        sources: A run folder; or several folders and files that together hold all ranks, all of wirewise or all
            of torch.profiler (beside them, their execution traces in the same order); or one exported trace.
        partial: Whether torch.profiler files of only some ranks are accepted (`Trace.partial`).
        log: Called with progress messages.

    Raises:
        TraceError: There is no source, the files are of several kinds, or raised by the reader of their kind.
    """
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and paths[0].is_dir() and (rank_files(paths[0]) or not _profiles(paths[0])):
        return read(paths[0], log)
    kinds: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for file in _files(path):
            kinds[_kind(file)].append(file)
    names = ", ".join(map(str, paths))
    if set(kinds) == {"rank"}:
        return read_files(kinds["rank"], names, log)
    if set(kinds) == {"export"} and len(kinds["export"]) == 1:
        return chrome.read(kinds["export"][0])
    if "profile" in kinds and set(kinds) <= {"profile", "execution"}:
        return kineto.read_all(kinds["profile"], execution_traces=kinds.get("execution", ()), partial=partial)
    found = " and ".join(f"{len(files)} {_WORDS[kind]}" for kind, files in sorted(kinds.items()))
    raise TraceError(
        f"got {found or 'nothing'} in {names}; expected rank-R.jsonl files of one run, files of torch.profiler with "
        "or without an execution trace each, or one exported trace"
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = rank_files(path) or _profiles(path)
    if not found:
        raise TraceError(
            f"no trace in {path}: expected files rank-0.jsonl and so on, or *.json of torch.profiler"
        )
    return found


def _profiles(folder: Path) -> list[Path]:
    # Hidden ones are of the file system, such as the halves of files that macOS packs beside them.
    return sorted(
        file
        for file in folder.iterdir()
        if file.name.endswith((".json", ".json.gz")) and not file.name.startswith(".") and file.is_file()
    )


def _kind(path: Path) -> str:
    """Kind of a file by its first bytes; unknown ones are left to the reader of profiles."""
    if path.suffix == ".jsonl":
        return "rank"
    if path.exists() and not path.is_file():
        # It would be read twice, and a device has no end.
        raise TraceError(
            f"{path} is a pipe or a device, which cannot be read twice; write a file and give that"
        )
    try:
        with path.open("rb") as file:
            start = file.read(_PEEK_BYTES)
        if start.startswith(b"\x1f\x8b"):
            start = zlib.decompressobj(wbits=31).decompress(start, _PEEK_BYTES)
    except (OSError, zlib.error) as cause:
        why = getattr(cause, "strerror", None) or cause
        raise TraceError(f"cannot read the trace {path}: {why}; check the path") from cause
    if _OWN.match(start):
        return "export"
    return "execution" if _EXECUTION.search(start) else "profile"
