"""Archives, arrays and text that would cost more than they are worth."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from wirewise.decoding import ArchiveError, decode_json, gunzip, read_npz


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"a": "\xff"}', "byte 0xff in line 1 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{\n"a": x}', r"\(line 2, byte 7\)"),
        (b'{"a": ' + b"9" * 400 + b"}", "a number of 400 digits at byte 5"),
    ],
)
def test_malformed_text_has_one_kind_of_error(text: bytes, said: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=said):
        decode_json(text)


def test_numbers_in_texts_and_of_64_bits_are_read() -> None:
    good = b'{"id": "' + b"1" * 40 + b'", "most": 18446744073709551615, "x": 0.1234567890123456789012}'
    assert decode_json(good)["most"] == 2**64 - 1


def test_an_archive_that_grows_beyond_measure_is_refused() -> None:
    packer = zlib.compressobj(9, wbits=31)
    raw = b"".join([*(packer.compress(b" " * (1 << 24)) for _ in range(16)), packer.flush()])
    with pytest.raises(ArchiveError, match="holds more than"):
        gunzip(raw)
    small = zlib.compress(b"text", wbits=31)
    assert gunzip(small) == (b"text", True)
    assert gunzip(small[:-4]) == (b"text", False)


def test_archives_one_behind_the_other_are_one() -> None:
    one, two = gzip.compress(b"one "), gzip.compress(b"two")
    assert gunzip(one + two) == (b"one two", True)
    assert gunzip(one + two + bytes(512)) == (b"one two", True)
    assert gunzip(one + two[:-6]) == (b"one two", False)
    bomb = gzip.compress(bytes((1 << 26) - 1))
    with pytest.raises(ArchiveError, match=r"holds more than 67108864; expected"):
        gunzip(bomb + gzip.compress(b"more"))


def test_headers_of_arrays_must_fit_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, rows=np.arange(10))
    assert read_npz(path)["rows"].tolist() == list(range(10))
    path.write_bytes(path.read_bytes().replace(b"(10,)", b"(99,)"))
    with pytest.raises(ArchiveError, match=r"says that it is int64 \[99\]|Bad CRC"):
        read_npz(path)
    np.savez(path, rows=np.array([object()], dtype=object))
    with pytest.raises(ArchiveError, match="Object arrays cannot be loaded"):
        read_npz(path)
