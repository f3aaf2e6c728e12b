"""MSCCL files on the command line: recognised by what they hold, checked, and shown as a table."""

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
    """An MSCCL file, right or wrong."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> File:
        """Raises InputError where the file cannot be read as text."""
        try:
            return cls(path, Path(path).read_text("utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {path!r}: {error}; expected an MSCCL file") from error

    def algorithm(self) -> msccl.Algorithm:
        """What it holds, in the dialect of its names; a ProgramError names the file."""
        try:
            found = msccl.loads(self.text)
            # The dialects name a reduce-scatter differently, and know other calls that programs do not express.
            return found if found.collective != "custom" else msccl.loads(self.text, "azure")
        except ProgramError as error:
            raise ProgramError(f"{self.path}: {error}") from error


def show(path: str, json: str | None) -> None:
    """Say what an MSCCL file holds, one row a rank.

    Args:
        path: Path of the file.
        json: Where one JSON object goes; see `output.write_json`.

    Raises:
        InputError: The file cannot be read.
        ProgramError: It is no MSCCL algorithm.
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
    write_out(
        json,
        record,
        f"{found.name}: {found.collective} of {len(found.gpus)} ranks as an MSCCL algorithm, {found.protocol}, "
        f"{found.channels} channel{'s' if found.channels != 1 else ''}, {found.chunks_per_loop} chunks a loop",
        (titles, rows),
        f"`wirewise check {path}` says whether it is right.",
    )


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
