"""Shared parts of file readers: decode text, archives and arrays that may be damaged or hostile.

Each function uses memory in proportion to its input, and raises one kind of error, which readers convert to their own
with the file's name and a remedy.
"""

from __future__ import annotations

import math
import os
import re
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ArchiveError", "decode_json", "gunzip", "is_gzip", "read_npz"]

T = TypeVar("T")
_GZIP = b"\x1f\x8b"
_HUGE = re.compile(rb"(?:^|[:\[,\s])-?\d{21,}(?=[,\]}\s]|$)")
"""A whole number of more digits than 64 bits have: Python would take it, arithmetic and arrays would not."""
_MOST_RATIO = 200
"""An archive that grows by more is no text of ours: traces grow by 10 to 50, a file of one repeated byte by 1000."""
_MOST_RATIO_OF_ARRAYS = 400
"""Most times that arrays may grow when they are unpacked; they may be mostly zeros."""
_SMALL_BYTES = 1 << 26
"""Size up to which an archive may grow as it likes."""


class ArchiveError(Exception):
    """Archive that is damaged, or would expand far beyond its size."""


@overload
def decode_json(text: bytes | str) -> Any: ...
@overload
def decode_json(text: bytes | str, kind: type[T]) -> T: ...
def decode_json(text: bytes | str, kind: Any = Any) -> Any:
    """Decode JSON, with one type of error for every fault.

    Args:
        text: JSON text, in UTF-8 if bytes.
        kind: Type that msgspec decodes to.

    Raises:
        msgspec.DecodeError: The text is malformed (with the line), not UTF-8, nested too deeply, or has a number of
            more than 64 bits; a `msgspec.ValidationError` if it is JSON of another type.
    """
    try:
        found = msgspec.json.decode(text, type=kind)
        if huge := _HUGE.search(text.encode() if isinstance(text, str) else text):
            raise msgspec.DecodeError(f"a number of {len(huge[0]) - 1} digits at byte {huge.start()}")
        return found
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(_with_line(str(error), text)) from error
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        said = f"byte {error.object[error.start]:#04x} in line {line} is not UTF-8"
        raise msgspec.DecodeError(said) from error
    except (UnicodeEncodeError, OverflowError) as error:
        raise msgspec.DecodeError(f"a value cannot be read ({error})") from error


def _with_line(said: str, text: bytes | str) -> str:
    """A message of msgspec, which counts bytes, with the line in lines of several."""
    found = re.search(r"\(byte (\d+)\)", said)
    if found is None:
        return said
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text)
    if b"\n" not in raw.rstrip(b"\n"):
        return said
    line = raw.count(b"\n", 0, int(found[1])) + 1
    return said.replace(found[0], f"(line {line}, byte {found[1]})")


def is_gzip(raw: bytes) -> bool:
    """Whether bytes start with the gzip magic number."""
    return raw.startswith(_GZIP)


def gunzip(raw: bytes) -> tuple[bytes, bool]:
    """Decompress an archive; returns its content (the readable part if truncated), and whether it is complete.

    Raises:
        ArchiveError: The archive is damaged, or expands without bound.
    """
    parts, room, rest = list[bytes](), max(_SMALL_BYTES, _MOST_RATIO * len(raw)), raw
    complete = True
    # Archives that were written one behind the other are one, as gzip has it; what else follows is none.
    while not parts or is_gzip(rest):
        archive = zlib.decompressobj(wbits=31)
        try:
            # At least a byte: none would be no limit.
            parts.append(archive.decompress(rest, max(room, 1)))
        except zlib.error as error:
            raise ArchiveError(f"a damaged archive: {error}") from error
        room -= len(parts[-1])
        if room < 0 or (archive.unconsumed_tail and not archive.eof):
            raise ArchiveError(
                f"an archive of {len(raw)} bytes that holds more than {room + sum(map(len, parts))}; expected at most "
                f"{_MOST_RATIO} times as much"
            )
        complete, rest = archive.eof, archive.unused_data
    return b"".join(parts), complete


def read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz file; headers are checked against the file's size first.

    Raises:
        OSError: The file cannot be read.
        ArchiveError: The file is not npz, is damaged, holds Python objects, or has headers that exceed the data.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            room = max(_SMALL_BYTES, _MOST_RATIO_OF_ARRAYS * Path(path).stat().st_size)
            members = archive.infolist()
            if (whole := sum(member.file_size for member in members)) > room:
                raise ArchiveError(f"it says that it holds {whole} bytes; expected at most {room}")
            for member in members:
                _check_header(archive, member)
        # Opened here because NumPy leaves the file open when it is no archive.
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except _DAMAGED as error:
        raise ArchiveError(f"{error}" or type(error).__name__) from error


_DAMAGED = (
    ValueError,
    EOFError,
    KeyError,
    AttributeError,
    SyntaxError,
    MemoryError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions that zipfile, zlib and NumPy's reader of headers raise for damaged files."""


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    import numpy as np

    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read(file)
        if kind.hasobject:
            raise ArchiveError(f"Object arrays cannot be loaded when allow_pickle=False: {member.filename}")
        promised, there = file.tell() + math.prod(shape) * kind.itemsize, member.file_size
    if min(shape, default=0) < 0 or promised != there:
        raise ArchiveError(
            f"{member.filename} says that it is {kind} {list(shape)}, {promised} bytes, and has {there}"
        )
