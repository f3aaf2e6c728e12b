"""Resumption of a stopped full-graph run from its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from wirewise import graph
from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.files import atomic_file
from wirewise.results import EpochRecord
from wirewise.runtime.full_graph import checkpoint
from wirewise_papers.adaqp.job import Event, FullGraphJob

__all__ = [
    "can_continue",
    "checkpoint_folder",
    "events",
    "positions",
    "read_job",
    "records",
    "remove_checkpoints",
    "rewind",
]


def checkpoint_folder(folder: Path, mode: str) -> Path:
    """Folder of one mode's checkpoints in a run."""
    return folder / "checkpoints" / mode


def read_job(folder: Path, overrides: Mapping[str, object]) -> FullGraphJob:
    """Load the job of a stopped run, with more epochs if given.

    Args:
        folder: Folder of the run.
        overrides: Settings given on the command line, by field of `FullGraphJob`.

    Raises:
        InputError: The folder holds no job, or a setting contradicts it.
    """
    path = folder / "job.json"
    try:
        job = decode_json(path.read_bytes(), FullGraphJob)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; expected the folder of a run that was stopped"
        ) from error
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is no description of a run: {error}; start a new run") from error
    for name, value in overrides.items():
        held = getattr(job, name)
        if value == held or (name, value) == ("network", "auto"):
            continue
        if name == "epochs" and isinstance(value, int) and value > held:
            job = msgspec.structs.replace(job, epochs=value)
            continue
        raise InputError(
            f"{name} is {value!r}, and {path} has {held!r}; a run goes on with the settings that it started with, "
            "only its epochs may be raised. Leave the setting away, or start a new run"
        )
    return job


def positions(job: FullGraphJob, folder: Path) -> dict[str, int]:
    """Epoch of the newest complete checkpoint of each mode; 0 without one.

    Raises:
        InputError: No mode has a complete checkpoint, or the parts are of another number of workers.
    """
    parts = graph.read_meta(folder / "parts").num_parts
    if parts != job.workers:
        raise InputError(
            f"{folder / 'parts'} holds {parts} parts, and job.json of that run has {job.workers} workers; "
            "expected one part a worker, start a new run"
        )
    found = {mode: checkpoint.latest(checkpoint_folder(folder, mode), job.workers) or 0 for mode in job.modes}
    if not any(found.values()):
        raise InputError(
            f"{folder / 'checkpoints'} holds no complete checkpoint: {_what_is_there(job, folder)}; expected the "
            f"files of ranks 0 to {job.workers - 1} in one folder. Start a new run, with --checkpoint-every"
        )
    return found


def can_continue(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    try:
        return any(positions(read_job(folder, {}), folder).values())
    except InputError:
        return False


def _what_is_there(job: FullGraphJob, folder: Path) -> str:
    there = [
        f"{mode} has ranks {', '.join(map(str, sorted(ranks)))} of epoch {epoch}"
        for mode in job.modes
        for epoch, ranks in sorted(checkpoint.ranks_by_epoch(checkpoint_folder(folder, mode)).items())
    ]
    return "; ".join(there) or "no file of any mode is there"


def rewind(job: FullGraphJob, folder: Path, to: Mapping[str, int]) -> None:
    """Truncate events and checkpoints of a run to the epochs `to` of each mode.

    Raises:
        InputError: The events are damaged, or lack an epoch that a checkpoint holds.
    """
    kept = [event for event in events(folder) if event.record.epoch < to.get(event.mode, 0)]
    for mode, epochs in to.items():
        there = [event.record.epoch for event in kept if event.mode == mode]
        if there != list(range(epochs)):
            lacking = sorted(set(range(epochs)) - set(there))
            what = f"lacks epoch {lacking[0]}" if lacking else "repeats an epoch"
            raise InputError(
                f"{folder / 'events.jsonl'} {what} of {mode}; expected each epoch before the checkpoint at "
                f"{epochs} once. Start a new run"
            )
    with atomic_file(folder / "events.jsonl") as file:
        file.writelines(msgspec.json.encode(event) + b"\n" for event in kept)
    for mode in job.modes:
        checkpoint.discard(checkpoint_folder(folder, mode), after=to[mode])


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of an earlier run, of all modes."""
    for path in (folder / "checkpoints").iterdir():
        checkpoint.discard(path)


def records(folder: Path) -> dict[str, list[EpochRecord]]:
    """Records of a run's events, by mode."""
    found: dict[str, list[EpochRecord]] = {}
    for event in events(folder):
        found.setdefault(event.mode, []).append(event.record)
    return found


def events(folder: Path) -> Iterator[Event]:
    """Events of finished epochs in `events.jsonl`.

    Raises:
        InputError: The file cannot be read, or a line is no event.
    """
    path = folder / "events.jsonl"
    try:
        # The writer may have been stopped within the last line.
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; start a new run") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield decode_json(line, Event)
        except msgspec.MsgspecError as error:
            raise InputError(f"{path}: line {number} is no event: {error}; start a new run") from error
