"""Writing files so that a fault is named and never leaves half a file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from wirewise.errors import InputError

__all__ = ["atomic_file", "make_folder", "owned_folder"]


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, error: type[InputError] = InputError) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` only when it is complete and on disk.

    It is written under a temporary name in the same folder, synchronised and renamed; an error removes it,
    and an older file at `path` stays whole. A device or a pipe is written to and never replaced.

    Args:
        path: The file.
        error: What to raise where the folder or the disk does not take it.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    special = target.exists() and not target.is_file()
    try:
        with (target if special else temporary).open("wb") as file:
            yield file
            file.flush()
            if not special:
                os.fsync(file.fileno())
        if not special:
            temporary.replace(target)
            _sync_folder(target.parent)
    except OSError as cause:
        raise error(
            f"cannot write {target}: {cause.strerror or cause}; nothing was left there, free space or choose "
            "a folder that exists and can be written"
        ) from cause
    finally:
        _forget(temporary)


def make_folder(folder: str | os.PathLike[str], *, error: type[InputError] = InputError) -> Path:
    """Create `folder` with its parents and return it; raises `error` where that is not possible."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise error(f"cannot create the folder {path}: {cause.strerror}; choose another one") from cause
    return path


@contextmanager
def owned_folder(folder: str | os.PathLike[str], *, error: type[InputError] = InputError) -> Iterator[Path]:
    """A folder, made where it is missing, that no other process owns meanwhile.

    The folder itself is locked, so that no file is left and the system ends the ownership of a process that is killed.
    A file system that knows no locks gives the folder to whoever asks.

    Raises:
        InputError: Another process owns it, or it cannot be made.
    """
    path = make_folder(folder, error=error)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise error(
                f"the folder {path} is in use by another run{_owner(handle)}, and two runs would mix their files; wait "
                "for its end, or choose another folder"
            ) from None
        except OSError:
            pass
        yield path
    finally:
        os.close(handle)


def _owner(handle: int) -> str:
    """Who holds the lock of an open folder, as far as the system tells."""
    try:
        wanted = os.fstat(handle).st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, process, place, *_ = line.split()
            if kind == "FLOCK" and int(place.rpartition(":")[2]) == wanted:
                return f" (process {process})"
    except (OSError, ValueError):
        pass
    return ""


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        # The folder is gone or not ours; there is nothing to remove then.
        return
