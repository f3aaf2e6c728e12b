"""Parts of pages: files are whole or not written."""

from pathlib import Path

import pytest

from wirewise.errors import InputError
from wirewise.report.shell import write_page


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_page("<p>\u00e9", target)
    assert target.read_bytes() == b"<p>\xc3\xa9"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(InputError, match="cannot write"):
        write_page("", tmp_path / "missing" / "report.html")
