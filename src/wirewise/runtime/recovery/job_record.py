"""Record of a job in its checkpoint folder, which keeps other jobs from resuming it by mistake.

The record is a file beside the states, written by the first job. A job that is started again compares its own with
it, property by property: a training resumed with another seed, batch or learning rate would be neither the old one
nor a new one.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.files import make_folder, read_file, write_json
from wirewise.runtime.recovery.resume_options import ACCEPTED, accepted_names
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.recovery.sync import Shards

__all__ = ["JobRecord", "apply_accepted", "check_folder", "record_of", "write_job_record"]

JobRecord = dict[str, Any]
"""Value of each named property of a job."""

_FIXED = ("world_size", "model", "optimizer", "scheduler", "objects", "replicas")
"""Properties without which no state fits, or that a state brings along; each rank has a file of its own."""
_FILE = "job.json"
_STATE = re.compile(r"step-\d+\.rank-(\d+)\.state")
_SHOWN = 4


def record_of(state: TrainingState, loader: Any, **others: Any) -> JobRecord:
    """Make the record of a job; `world_size` is added when it is known.

    Args:
        state: State of the training, as created by the script.
        loader: Loader of the batches, or function of step and share.
        others: Further properties by name.
    """
    found: JobRecord = {
        "model": {name: _kind(one) for name, one in state.model.state_dict().items() if _is_tensor(one)},
        "optimizer": [type(one).__name__ for one in state.optimizers],
        "scheduler": [_of_schedule(one) for one in state.schedulers],
    }
    for (_, _, name), value in _settings(state):
        found.setdefault(name, []).append(value)
    if isinstance(loader, DataLoader):
        found["batch"] = loader.batch_size
        found["dataset"] = len(loader.dataset)  # type: ignore[arg-type]
        found["drop_last"] = loader.drop_last
        found["sampler"] = type(loader.sampler).__name__
    return msgspec.json.decode(msgspec.json.encode({**found, **others}))


def check_folder(
    folder: str | os.PathLike[str], record: JobRecord, rank: int, accepted: Collection[str] = ()
) -> JobRecord:
    """Compare a job with the record in a checkpoint folder, or write the record if the folder is new.

    Args:
        folder: Folder of the checkpoints; created if missing.
        record: Record of this job, with `world_size`.
        rank: Rank of this process; rank 0 writes.
        accepted: Names of properties that may differ, besides those of the variable `WIREWISE_ACCEPT_CHANGES`.

    Returns:
        Accepted differing properties, with the folder's values.

    Raises:
        InputError: The folder is of another job; the message names the differences, with both values.
    """
    accepted = {*accepted, *accepted_names()}
    if fixed := sorted(accepted.intersection(_FIXED)):
        raise InputError(
            f"a change of {', '.join(fixed)} cannot be accepted: no state of a rank fits then; start in another folder"
        )
    path = make_folder(folder) / _FILE
    before = _read(path) if path.exists() else _old(path, record)
    differ = {} if before is None else dict(_differences(before, record))
    if refused := [name for name in differ if name not in accepted]:
        raise InputError(_refusal(path.parent, refused, differ))
    if rank == 0 and before is None:
        write_json(path, record)
    return {name: old for name, (old, _) in differ.items()}


def _read(path: Path) -> JobRecord:
    try:
        record = read_file(path, "the record of a job", lambda content: decode_json(content, JobRecord))
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is no record of a job: {error}; expected what a job wrote beside its states. Without the file, "
            "the states beside it are taken for those of this job"
        ) from error
    if "through" in record:
        # Records of before strategy objects, in which FSDP2 was told by its replicas alone.
        through = record.pop("through")
        record["sync"] = Shards.name if record.get("replicas") else through
    return record


def write_job_record(folder: str | os.PathLike[str], record: JobRecord) -> None:
    """Write the record of a job with accepted changes, once its first state is saved."""
    write_json(Path(folder) / _FILE, record)


def apply_accepted(state: TrainingState, changed: JobRecord, record: JobRecord) -> None:
    """Apply accepted changes of optimizer settings to a loaded state.

    A learning rate changed by schedules since keeps its ratio to the initial one.

    Args:
        state: State that was loaded.
        changed: Changed properties, with the folder's values (`check_folder`).
        record: Record of this job.
    """
    for (optimizer, group, name), place in list(_places(state)):
        if (
            name not in changed
            or name not in record
            or (isinstance(changed[name], list) and changed[name][place : place + 1] == [record[name][place]])
        ):
            continue
        new, held = record[name][place], state.optimizers[optimizer].param_groups[group]
        if name != "lr" or "initial_lr" not in held:
            held[name] = tuple(new) if isinstance(new, list) else new
        elif held["initial_lr"]:
            held["lr"] *= new / held["initial_lr"]
            held["initial_lr"] = new
            for schedule in state.schedulers:
                if schedule.optimizer is state.optimizers[optimizer] and hasattr(schedule, "base_lrs"):
                    schedule.base_lrs[group] = new


def _settings(state: TrainingState) -> Iterator[tuple[tuple[int, int, str], Any]]:
    """Settings of all groups of parameters; the learning rate is the one before any schedule."""
    for number, optimizer in enumerate(state.optimizers):
        for group, settings in enumerate(optimizer.param_groups):
            for name, value in settings.items():
                if name in ("params", "initial_lr"):
                    continue
                value = settings.get("initial_lr", value) if name == "lr" else value
                yield (number, group, name), _plain(value)


def _places(state: TrainingState) -> Iterator[tuple[tuple[int, int, str], int]]:
    """Each setting, and its place in the list of the record."""
    counts: dict[str, int] = {}
    for key, _ in _settings(state):
        yield key, counts.get(key[2], 0)
        counts[key[2]] = counts.get(key[2], 0) + 1


def _old(path: Path, record: JobRecord) -> JobRecord | None:
    """Record of a folder that has none: nothing, but the number of ranks that have states there."""
    matches = (_STATE.fullmatch(one.name) for one in path.parent.iterdir())
    ranks = {int(match[1]) for match in matches if match}
    if not ranks:
        return None
    if max(ranks) + 1 != record["world_size"]:
        return {**record, "world_size": max(ranks) + 1}
    warnings.warn(
        f"{path.parent} has checkpoints and no record of their job, as they are of an older version; it is taken for "
        "one of this job",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _differences(before: JobRecord, now: JobRecord) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in [*before, *(name for name in now if name not in before)]:
        if before.get(name) != now.get(name):
            yield name, (before.get(name), now.get(name))


def _refusal(folder: Path, refused: Sequence[str], differ: Mapping[str, tuple[Any, Any]]) -> str:
    told = "; ".join(_told(name, *differ[name]) for name in refused[:_SHOWN])
    free = [name for name in refused if name not in _FIXED]
    way = "start this job in another folder"
    if len(free) == len(refused):
        names = ", ".join(repr(name) for name in free)
        way += (
            f", or go on with what differs: protect(checkpoints=Checkpoints(folder, accept_changes=[{names}])), the "
            f"option --accept-changes {','.join(free)}, or the variable {ACCEPTED}"
        )
    return f"{folder} has checkpoints of another job: {told}. Expected the same; {way}"


def _told(name: str, old: Any, new: Any) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        part = next(key for key in [*old, *new] if old.get(key) != new.get(key))
        return f"{name} has {part!r} as {old.get(part, 'none')} there and {new.get(part, 'none')} here"
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = next((a, b) for a, b in zip(old, new, strict=True) if a != b)
    return f"{name} is {old} there and {new} here"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _of_schedule(schedule: Any) -> list[Any]:
    """Kind and settings of a schedule; rates are those of the optimizer's groups."""
    settings = {
        name: value
        for name, value in schedule.state_dict().items()
        if not name.startswith("_") and name not in ("base_lrs", "last_epoch")
    }
    return [type(schedule).__name__, _plain(settings)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _plain(value: Any) -> Any:
    """A value as JSON has it; what it has not is told by its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return type(value).__name__
