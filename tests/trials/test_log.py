"""Lines for the parent of a rank, told from everything else that it prints."""

from __future__ import annotations

import msgspec
import pytest

from wirewise.trials.log import LineReader, Report, Text, parse_line, write_line


@pytest.mark.parametrize(
    "line",
    [
        *(Text(text) for text in ("fp32, epoch 1 of 3: 0.41 s", 'a "quoted" word', "two\nlines", "ü", "")),
        Report(msgspec.Raw(b'{"mode":"fp32","loss":0.5}')),
    ],
)
def test_the_parent_reads_what_a_rank_tells(line: Text | Report, capsys: pytest.CaptureFixture[str]) -> None:
    write_line(line)
    (printed,) = capsys.readouterr().out.splitlines()
    assert parse_line(printed) == line


def test_long_lines_come_in_parts_that_slurm_does_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [Text('\U0001f600"\n' * 800), Report(msgspec.Raw(b'{"loss":[%s]}' % b",".join([b"0.25"] * 500)))]
    for line in lines:
        write_line(line)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 10 and max(len(line.encode()) for line in printed) <= 1000
    reader = LineReader()
    told = [reader.read(line) for one in printed for line in (one, "of somebody else")]
    assert [one for one in told if one is not None] == lines


@pytest.mark.parametrize(
    "line", ["", "epoch 1", '{"wirewise":"log"', '{"wirewise":"log","text":3}', '{"text":"a"}']
)
def test_other_output_is_for_nobody(line: str) -> None:
    assert parse_line(line) is None
