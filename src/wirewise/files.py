"""File access that names faults, never leaves half a file, and never mixes two runs."""

from __future__ import annotations

import fcntl
import functools
import inspect
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

import msgspec

from wirewise.errors import InputError, WirewiseError

__all__ = [
    "LOCK",
    "atomic_file",
    "exclusive_folder",
    "joint_folder",
    "make_folder",
    "owns_folder",
    "read_file",
    "wait_until_left",
    "write_json",
]

P = ParamSpec("P")
T = TypeVar("T")

LOCK = ".wirewise.lock"
"""Lock file in a folder, with the identity of the process that writes there, which removes it at the end."""
_MOST_LOCK_BYTES = 200
_POLL_S = 0.05
_MOST_NAME_BYTES = 200
"""Longer names are shortened in temporary ones."""
_held: dict[tuple[int, int], tuple[int, int]] = {}
"""Thread that holds each folder of this process, by device and inode, and how often it entered."""


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, error: type[InputError] = InputError) -> Iterator[BinaryIO]:
    """Open a binary file that appears at `path` only when it is complete and on disk.

    It is written under a temporary name in the same folder, fsynced and renamed; an error removes it, and an older
    file at `path` is left intact. A device or a pipe is written to directly.

    Args:
        path: File to write.
        error: Error type to raise if the folder or the disk is not writable.
    """
    # Where a link stands at `path`, the file that it names is written, and the link stays.
    target = Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)
    temporary = target.parent / f".{_shortened(target.name)}.{os.getpid()}.tmp"
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


def write_json(path: str | os.PathLike[str], record: object) -> None:
    """Write a record as indented JSON, atomically; errors as in `atomic_file`."""
    with atomic_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record)))


def _shortened(name: str) -> str:
    """A name with room for what a temporary one adds, within the 255 bytes of file systems."""
    raw = os.fsencode(name)
    if len(raw) <= _MOST_NAME_BYTES:
        return name
    # Names that begin alike stay apart.
    return f"{os.fsdecode(raw[: _MOST_NAME_BYTES - 9])}-{zlib.crc32(raw):08x}"


def make_folder(folder: str | os.PathLike[str], *, error: type[InputError] = InputError) -> Path:
    """Create `folder` with its parents and return it; raises `error` on failure."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise error(f"cannot create the folder {path}: {cause.strerror}; choose another one") from cause
    return path


def read_file(path: str | os.PathLike[str], label: str, loads: Callable[[bytes], T]) -> T:
    """Read and parse a file; errors of `loads` are raised with the file's name prepended.

    Args:
        path: Path of the file.
        label: Description of the file, such as "plan file".
        loads: Parses its bytes.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {label} {os.fspath(path)!r}: {error.strerror}; check the path"
        ) from error
    try:
        return loads(text)
    except WirewiseError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from error


@contextmanager
def exclusive_folder(
    folder: str | os.PathLike[str], *, error: type[InputError] = InputError
) -> Iterator[Path]:
    """Lock `folder` for this thread, creating it if missing, so that no other run writes there.

    The lock is a `flock` on a file in the folder, which the kernel releases when the process ends, so that nothing
    needs cleaning up after a kill. It is reentrant within a thread.

    Args:
        folder: Folder of a run; if created here, it is removed after an error while empty.
        error: Error type to raise.

    Raises:
        InputError: Another run holds the folder, or it cannot be created or locked.
    """
    new = not Path(folder).exists()
    path = make_folder(folder, error=error)
    found = path.stat()
    key, thread = (found.st_dev, found.st_ino), threading.get_ident()
    owner, depth = _held.get(key, (thread, 0))
    if owner != thread:
        raise error(_in_use(path, str(os.getpid())))
    handle = _lock(path, error) if depth == 0 else None
    _held[key] = thread, depth + 1
    failed = True
    try:
        yield path
        failed = False
    finally:
        if handle is None:
            _held[key] = thread, depth
        else:
            del _held[key]
            # While it is locked, so that the file of a later run is never the one removed.
            _forget(path / LOCK)
            if new and failed:
                # Nothing was written before the error, or the folder is not empty and stays.
                with suppress(OSError):
                    path.rmdir()
            os.close(handle)


@contextmanager
def joint_folder(
    folder: str | os.PathLike[str],
    run: str,
    prepare: Callable[[Path], object] = lambda _: None,
    *,
    error: type[InputError] = InputError,
) -> Iterator[Path]:
    """Lock `folder` for all processes of one run on any hosts, creating it if missing, against all other runs.

    Args:
        folder: Folder shared by the hosts of the run.
        run: Name of the run, the same in all its processes.
        prepare: Called with the folder by the first process, before any other one enters.
        error: Error type to raise.

    Raises:
        InputError: Another run holds the folder, or it cannot be created or locked.
    """
    path = make_folder(folder, error=error)
    handle, first = _join(path, run, error)
    try:
        if first:
            prepare(path)
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield path
    finally:
        # One that is not the last to leave does not get the folder for itself, and has let go of it by asking.
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _forget(path / LOCK)
        os.close(handle)


def wait_until_left(folder: str | os.PathLike[str], timeout_s: float) -> bool:
    """Wait until no process holds a folder; returns False after `timeout_s` seconds."""
    path, until_s = Path(folder), time.monotonic() + timeout_s
    while (path / LOCK).exists():
        handle = _open_lock(path, InputError)
        left = _try_lock(handle, fcntl.LOCK_EX, path, InputError)
        if left:
            # Of a process that was killed, or made by this question.
            _forget(path / LOCK)
        os.close(handle)
        if left or time.monotonic() > until_s:
            return left
        time.sleep(_POLL_S)
    return True


def owns_folder(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to hold its argument `folder` exclusively while it runs (`exclusive_folder`), if not None."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def owning(*args: P.args, **kwargs: P.kwargs) -> T:
        folder = signature.bind(*args, **kwargs).arguments.get("folder")
        if folder is None:
            return function(*args, **kwargs)
        with exclusive_folder(folder):
            return function(*args, **kwargs)

    return owning


def _lock(folder: Path, error: type[InputError]) -> int:
    """An open and locked file in `folder` that holds the id of this process."""
    while True:
        handle = _open_lock(folder, error)
        if _try_lock(handle, fcntl.LOCK_EX, folder, error):
            if _is_at(handle, folder / LOCK):
                _write_holder(handle)
                return handle
        else:
            holder = _holder(handle)[0]
            os.close(handle)
            raise error(_in_use(folder, holder))
        # The run before removed the file between our opening and locking it.
        os.close(handle)


def _join(folder: Path, run: str, error: type[InputError]) -> tuple[int, bool]:
    """An open file in `folder`, locked together with the processes of a run, and whether this one is the first."""
    while True:
        handle = _open_lock(folder, error)
        if _try_lock(handle, fcntl.LOCK_EX, folder, error):
            if _is_at(handle, folder / LOCK):
                _write_holder(handle, run)
                return handle, True
        else:
            shared = _try_lock(handle, fcntl.LOCK_SH, folder, error)
            holder, theirs = _holder(handle)
            if theirs != run:
                os.close(handle)
                raise error(_in_use(folder, holder))
            if shared and _is_at(handle, folder / LOCK):
                return handle, False
            # The first process of our run still prepares the folder.
            time.sleep(_POLL_S)
        os.close(handle)


def _open_lock(folder: Path, error: type[InputError]) -> int:
    try:
        # A link in its place would have us write to a file elsewhere.
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as cause:
        raise error(_not_lockable(folder, cause)) from cause


def _try_lock(handle: int, kind: int, folder: Path, error: type[InputError]) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as cause:
        os.close(handle)
        raise error(_not_lockable(folder, cause)) from cause
    return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _write_holder(handle: int, run: str = "") -> None:
    os.ftruncate(handle, 0)
    # Where the disk is full the lock holds without the number, which only a message would show.
    with suppress(OSError):
        os.pwrite(handle, f"{os.getpid()}\n{run}".encode(), 0)


def _holder(handle: int) -> tuple[str, str]:
    """Id of the process that holds a folder, and its run; empty: not known, or a run that shares with none."""
    text = os.pread(handle, _MOST_LOCK_BYTES, 0).decode("utf-8", "replace")
    holder, run, *_ = [*text.split("\n"), "", ""]
    return holder.strip(), run


def _in_use(folder: Path, holder: str) -> str:
    who = f"process {holder}" if holder.isdecimal() else "a process"
    return (
        f"the folder {folder} is in use: {who} of another run of wirewise writes to it; wait until that has ended, "
        "end it, or choose another folder"
    )


def _not_lockable(folder: Path, cause: OSError) -> str:
    return (
        f"cannot lock the folder {folder} with the file {LOCK} ({cause.strerror or cause}); expected a folder that "
        "can be written on a file system with locks, choose another one"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget(path: Path) -> None:
    # Where the folder is gone or not ours there is nothing to remove.
    with suppress(OSError):
        path.unlink(missing_ok=True)
