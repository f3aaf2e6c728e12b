"""Small changes to files, as disks, transfers, editors and attackers make them."""

from __future__ import annotations

import functools
import gzip
import random
import zlib

_NUMBERS = (
    *(b"-1", b"0", b"1e999", b"NaN", b"1e-320", b"4294967296", b"18446744073709551615"),
    *(b"100000000", b"9" * 400, b"-0.0", b"null", b"true", b'"x"', b"[]", b"{}"),
)
_WORDS = (
    *(b'"\\ud800"', b"\xff", b"\x00", b'{"a":', b"]", b"}", b",", b'"', b"\n", b"\\", b"\xf0\x9f\x92\xa3"),
    *(b"../../etc/passwd", b"inf", b"<!--", b"&amp;", b"[[", b"="),
)


def mutant(good: bytes, dice: random.Random) -> bytes:
    """One file with one to three changes."""
    changed = good
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        changed = dice.choice(_CHANGES)(changed, dice)
    return changed


def archived(good: bytes, dice: random.Random) -> bytes:
    """A gzip archive of a mutant, or a mutant of an archive, or one that grows beyond measure."""
    how = dice.random()
    if how < 0.5:
        return gzip.compress(mutant(good, dice), mtime=0)
    if how < 0.999:
        return mutant(gzip.compress(good, mtime=0), dice)
    return _bomb()


@functools.cache
def _bomb() -> bytes:
    """2 GB of spaces, made where they are first drawn: it takes seconds."""
    packer = zlib.compressobj(9, wbits=31)
    block = b" " * (1 << 24)
    return b"".join([*(packer.compress(block) for _ in range(128)), packer.flush()])


def _place(data: bytes, dice: random.Random) -> int:
    return dice.randrange(len(data)) if data else 0


def _flip(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, dice: random.Random) -> bytes:
    return data[: _place(data, dice)]


def _remove(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + data[at + dice.choice((1, 2, 8, 64)) :]


def _repeat(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + data[at : at + dice.choice((1, 8, 64, 512))] * 2 + data[at:]


def _insert(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + dice.choice(_WORDS) + data[at:]


def _number(data: bytes, dice: random.Random) -> bytes:
    """Another value in the place of a number."""
    at = start = _place(data, dice)
    while start < len(data) and data[start : start + 1] not in b"0123456789":
        start += 1
    end = start
    while end < len(data) and data[end : end + 1] in b"0123456789.eE+-":
        end += 1
    if end == start:
        start = end = at
    return data[:start] + dice.choice(_NUMBERS) + data[end:]


def _value(data: bytes, dice: random.Random) -> bytes:
    """Another value in the place of a text."""
    start = data.find(b'"', _place(data, dice))
    end = data.find(b'"', start + 1)
    if start < 0 or end < 0:
        return data
    return data[:start] + dice.choice(_NUMBERS) + data[end + 1 :]


def _nest(data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + dice.choice((b"[", b'{"a":', b"<tb>")) * 20_000 + data[at:]


_CHANGES = (_flip, _flip, _cut, _remove, _repeat, _insert, _insert, _number, _number, _number, _value, _nest)
