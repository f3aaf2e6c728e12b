"""Recording of every rank of a user's command, started once, or once on each of several hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from wirewise.errors import TraceError
from wirewise.files import exclusive_folder, joint_folder, wait_until_left
from wirewise.lab import run_owned
from wirewise.trace import Trace
from wirewise.trace.files import assemble, missing_ranks, rank_files, read, read_rank
from wirewise.trials.inside import Record, environment
from wirewise.trials.joint_start import joint_start

__all__ = ["record_command"]

_LAST_S = 15.0
"""Seconds that other hosts have to end after this one, before it reports without them."""


def record_command(
    command: Sequence[str], argv: Sequence[str], folder: Path, task: Record, output: IO[str] | None
) -> dict[str, Any]:
    """Run a command with every rank recorded into `folder`; returns a summary.

    Args:
        command: Command as the user gave it.
        argv: Command as it is started.
        folder: Folder for a file of each rank; created if missing.
        task: Recording task of the ranks.
        output: Target of the command's stdout.

    Returns:
        Figures of the recorded run; only the exit code if another process of the run reports them.

    Raises:
        InputError: Another run writes to the folder.
        TraceError: Nothing was recorded, or the recording is unusable.
    """
    joint = joint_start(command, os.environ)
    holding = exclusive_folder(folder) if joint is None else joint_folder(folder, joint.run, _remove_old)
    with holding:
        if joint is None:
            _remove_old(folder)
        code = run_owned(argv, environment=environment(task), output=output)
    if joint is not None:
        if not joint.reports:
            return {"folder": str(folder.resolve()), "exit_code": code}
        wait_until_left(folder, _LAST_S)
    return _figures(folder.resolve(), code, on_other_hosts=joint is not None)


def _remove_old(folder: Path) -> None:
    for old in rank_files(folder):
        old.unlink()


def _figures(folder: Path, exit_code: int, *, on_other_hosts: bool) -> dict[str, Any]:
    files = rank_files(folder)
    failed = f" The command ended with exit code {exit_code}." if exit_code else ""
    if not files:
        raise TraceError(
            f"the command recorded nothing in {folder}: expected a script that calls torch.distributed's "
            f"init_process_group or steps a torch optimizer; add wirewise.profile.Tracer to it otherwise.{failed}"
        )
    try:
        found = _read_part(files, folder) if on_other_hosts else read(folder)
    except TraceError as error:
        raise TraceError(f"{error}.{failed}") from error
    return {
        "folder": str(folder),
        "ranks": found.world_size,
        "steps": found.steps(),
        "size_bytes": sum(file.stat().st_size for file in files),
        "notes": found.notes,
        "exit_code": exit_code,
    }


def _read_part(files: Sequence[Path], folder: Path) -> Trace:
    """Traces in a folder that the hosts of a run may not share."""
    ranks = [read_rank(file) for file in files]
    missing = missing_ranks([rank.header for rank in ranks])
    found = assemble(ranks, str(folder), partial=missing)
    if missing:
        found.notes.append(
            f"{missing}; they recorded on other hosts, which do not share this folder: bring the files together with "
            "`wirewise trace merge`"
        )
    return found
