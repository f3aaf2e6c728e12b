"""State files that are written atomically, and verified by digests when read.

A file is: magic number, bytes of frame and of tensors, digest of these and of the frame; the frame (`trees.pack`);
the tensors, concatenated; their digest.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from wirewise.errors import InputError
from wirewise.files import atomic_file
from wirewise.runtime.trees import Tree, pack, raw_bytes, unpack

__all__ = ["read_state", "write_state"]

_MAGIC = b"wwstate1"
_HEAD = struct.Struct("<8sQQ16s")
_DIGEST_BYTES = 16
_AT_ONCE = 2**22


def write_state(path: str | os.PathLike[str], tree: Tree) -> None:
    """Write a state durably.

    Args:
        path: Output file, in an existing folder.
        tree: Dictionaries, lists and tuples of tensors, numbers and strings.

    Raises:
        InputError: The disk is not writable, and an older file is left intact; or a value is unsupported.
    """
    frame, tensors = pack(tree)
    size = sum(tensor.nbytes for tensor in tensors)
    with atomic_file(path) as file:
        file.write(_HEAD.pack(_MAGIC, len(frame), size, _head_digest(len(frame), size, frame)))
        file.write(frame)
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for tensor in tensors:
            for piece in raw_bytes(tensor).split(_AT_ONCE):
                data = piece.numpy().data
                digest.update(data)
                file.write(data)
        file.write(digest.digest())


def read_state(path: str | os.PathLike[str]) -> Tree:
    """Read a state from a file, with tensors on the CPU; nothing in it is executed.

    Raises:
        InputError: The file is missing, truncated or damaged, or holds executable code.
    """
    try:
        with Path(path).open("rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"cannot read the checkpoint {path}: {error.strerror}; check the path") from error
    except InputError as error:
        raise InputError(
            f"cannot read the checkpoint {path}: {error}. Remove its folder to go on from the checkpoint before it; a "
            "run that another version of wirewise started is to be started anew"
        ) from error


def _read(file: BinaryIO, size: int) -> Tree:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise InputError(f"it has {size} bytes; expected a file written by wirewise")
    magic, frame_size, data_size, told = _HEAD.unpack(head)
    expected = _HEAD.size + frame_size + data_size + _DIGEST_BYTES
    if magic != _MAGIC or size != expected:
        raise InputError(
            f"it begins with {magic!r} and has {size} bytes; expected {_MAGIC!r} and {expected} bytes"
        )
    frame = file.read(frame_size)
    if _head_digest(frame_size, data_size, frame) != told:
        raise InputError("its description does not have the digest that was written; it is damaged")
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)

    def fill(buffers: list[Tensor]) -> None:
        if sum(buffer.nbytes for buffer in buffers) != data_size:
            raise InputError("its description does not fit its tensors")
        for buffer in buffers:
            for piece in raw_bytes(buffer).split(_AT_ONCE):
                data = piece.numpy().data
                file.readinto(data)  # type: ignore[attr-defined]
                digest.update(data)

    tree = unpack(frame, fill)
    if file.read(_DIGEST_BYTES) != digest.digest():
        raise InputError("its tensors do not have the digest that was written; it is damaged")
    return tree


def _head_digest(frame_size: int, data_size: int, frame: bytes) -> bytes:
    found = hashlib.blake2b(struct.pack("<QQ", frame_size, data_size), digest_size=_DIGEST_BYTES)
    found.update(frame)
    return found.digest()
