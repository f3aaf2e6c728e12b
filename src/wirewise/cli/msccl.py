"""MSCCL files on the command line: recognised by content, checked, and shown as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wirewise.cli.output import write_out
from wirewise.collective.exporters import msccl
from wirewise.collective.exporters.msccl.model import KINDS
from wirewise.errors import InputError, ProgramError

__all__ = ["File", "show"]

_MOST_PEERS = 8
"""Peers of a rank that a cell of the table names at most."""


@dataclass(frozen=True)
class File:
    """MSCCL file, valid or not."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> File:
        """Read a file; raises InputError if it cannot be read as text."""
        try:
            return cls(path, Path(path).read_text("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path!r}: {error}; expected an MSCCL file") from error

    def algorithm(self) -> msccl.Algorithm:
        """Parse the algorithm, in the dialect of its names; a ProgramError names the file."""
        try:
            found = msccl.loads(self.text)
            # The dialects name a reduce-scatter differently, and know other calls that programs do not express.
            return found if found.collective != "custom" else msccl.loads(self.text, "azure")
        except ProgramError as error:
            raise ProgramError(f"{self.path}: {error}") from error


def show(path: str, json: str | None, html: Path | None = None) -> None:
    """Show an MSCCL file as a table with one row per rank.

    Args:
        path: Path of the file.
        json: Target for the JSON object; see `output.write_json`.
        html: File for the page.

    Raises:
        InputError: The file cannot be read.
        ProgramError: The file is no MSCCL algorithm.
    """
    found = File.read(path).algorithm()
    titles = ["rank", "thread blocks", "steps", "sends to", "receives from", "chunks sent"]
    rows = [[str(rank), *_row(gpu)] for rank, gpu in enumerate(found.gpus)]
    record = {
        "kind": "msccl",
        "name": found.name,
        "collective": found.collective,
        "ranks": len(found.gpus),
        "channels": found.channels,
        "protocol": found.protocol,
        "chunks_per_loop": found.chunks_per_loop,
        "rows": [dict(zip(titles, row, strict=True)) for row in rows],
    }
    headline = (
        f"{found.name}: {found.collective} of {len(found.gpus)} ranks as an MSCCL algorithm, {found.protocol}, "
        f"{found.channels} channel{'s' if found.channels != 1 else ''}, {found.chunks_per_loop} chunks a loop"
    )
    if html is not None:
        from wirewise.report.algorithm_page import algorithm_html
        from wirewise.report.shell import write_page

        write_page(algorithm_html("wirewise show MSCCL", headline, titles, rows, _sent(found)), html)
    write_out(
        json,
        record,
        headline,
        (titles, rows),
        f"`wirewise check {path}` says whether it is right.",
        *([f"Page: {html}"] if html is not None else []),
    )


def _sent(found: msccl.Algorithm) -> dict[tuple[int, int], int]:
    sent: dict[tuple[int, int], int] = {}
    for rank, gpu in enumerate(found.gpus):
        for block in gpu.blocks:
            chunks = sum(step.chunks for step in block.steps if step.kind in KINDS and KINDS[step.kind].sends)
            if chunks:
                sent[rank, block.send] = sent.get((rank, block.send), 0) + chunks
    return sent


def _row(gpu: msccl.Gpu) -> list[str]:
    steps = [step for block in gpu.blocks for step in block.steps]
    sent = sum(step.chunks for step in steps if step.kind in KINDS and KINDS[step.kind].sends)
    return [
        str(len(gpu.blocks)),
        str(len(steps)),
        _peers({block.send for block in gpu.blocks}),
        _peers({block.receive for block in gpu.blocks}),
        str(sent),
    ]


def _peers(ranks: set[int]) -> str:
    found = sorted(rank for rank in ranks if rank >= 0)
    more = f" and {len(found) - _MOST_PEERS} more" if len(found) > _MOST_PEERS else ""
    return ", ".join(map(str, found[:_MOST_PEERS])) + more
