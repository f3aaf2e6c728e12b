"""Records are read back equal, and errors name the file."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import InputError
from wirewise.trace.record_files import read_record, write_record


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: int
    second: float


def test_a_record_reads_back_equal(tmp_path):
    write_record(Pair(1, 2.5), tmp_path / "pair.json")
    assert read_record(tmp_path / "pair.json", Pair, "a pair") == Pair(1, 2.5)


@pytest.mark.parametrize(
    "text", ["", "{", '{"first": 1}', '{"first": 1, "second": 2, "third": 3}', '{"first": "a"}']
)
def test_what_is_no_record_is_named(tmp_path, text):
    path = tmp_path / "pair.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"cannot read a pair from .*pair\.json: .*; check the file"):
        read_record(path, Pair, "a pair")


def test_a_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read a pair from .*none\.json"):
        read_record(tmp_path / "none.json", Pair, "a pair")
    with pytest.raises(InputError):
        write_record(Pair(1, 2.0), tmp_path / "none" / "pair.json")
