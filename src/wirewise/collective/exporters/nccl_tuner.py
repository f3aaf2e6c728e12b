"""Choices of algorithm and protocol for stock NCCL, as the CSV that NVIDIA's example tuner plugin reads.

The plugin (NVIDIA/nccl, ext-tuner/example/plugin.c) takes the first row whose ranges hold. It silently reads a name
that it does not know as allreduce, ring or simple, so that names are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from wirewise.errors import InputError

__all__ = ["ALGORITHMS", "COLLECTIVES", "PROTOCOLS", "Row", "choose", "dumps", "loads"]

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
"""Names that the plugin knows; it takes any other for the last."""
ALGORITHMS = ("tree", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat", "ring")
PROTOCOLS = ("ll", "ll128", "simple")
_LINE = 255
"""Characters of a line that the plugin reads at once."""
_NEEDED, _MOST = 8, 10
_TITLES = "# collective,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"


class Row(NamedTuple):
    """One choice; -1 stands for any value, or for NCCL's own number of channels."""

    collective: str
    min_bytes: int
    max_bytes: int
    """The last size that the row is for."""
    algorithm: str
    protocol: str
    channels: int = -1
    hosts: int = -1
    ranks: int = -1
    pipelined: int = -1
    """Operations in a group call."""
    registered: int = -1
    """Whether buffers are registered, 0 or 1."""


def dumps(rows: Iterable[Row]) -> str:
    """The text of a file for NCCL_TUNER_CONFIG_FILE.

    Raises:
        InputError: A name that the plugin does not know, or sizes that are not in order.
    """
    lines = [_TITLES]
    for number, row in enumerate(rows):
        for name, known in (
            (row.collective, COLLECTIVES),
            (row.algorithm, ALGORITHMS),
            (row.protocol, PROTOCOLS),
        ):
            if name not in known:
                raise InputError(f"row {number}: got {name!r}; NCCL's tuner knows {', '.join(known)}")
        if not 0 <= row.min_bytes <= row.max_bytes < 2**64:
            raise InputError(
                f"row {number}: got sizes {row.min_bytes} to {row.max_bytes}; expected them in order"
            )
        lines.append(",".join(map(str, row)))
    return "\n".join(lines) + "\n"


def loads(text: str) -> list[Row]:
    """Read rows by the rules of the plugin: what it skips is skipped, what it takes for a default becomes it."""
    rows = []
    for whole in text.split("\n"):
        # A longer line reaches the plugin in parts, each read as a line of its own.
        for line in [whole[i : i + _LINE] for i in range(0, len(whole), _LINE)]:
            tokens = [token.strip(" \t") for token in line.split(",") if token]
            if not line.startswith("#") and len(tokens) >= _NEEDED:
                rows.append(_row(tokens[:_MOST]))
    return rows


def choose(
    rows: Iterable[Row],
    collective: str,
    size_bytes: int,
    *,
    hosts: int,
    ranks: int,
    pipelined: int = 1,
    registered: int = 0,
) -> Row | None:
    """The row that the plugin takes for a call; None: it leaves the choice to NCCL."""
    for row in rows:
        fits = (
            (row.hosts, hosts),
            (row.ranks, ranks),
            (row.pipelined, pipelined),
            (row.registered, registered),
        )
        if (
            row.collective == collective
            and row.min_bytes <= size_bytes <= row.max_bytes
            and all(wanted in (-1, got) for wanted, got in fits)
        ):
            return row
    return None


def _row(tokens: list[str]) -> Row:
    collective, least, most, algorithm, protocol, *numbers = tokens
    return Row(
        collective if collective in COLLECTIVES else "allreduce",
        max(0, _integer(least)),
        max(0, _integer(most)),
        algorithm if algorithm in ALGORITHMS else "ring",
        protocol if protocol in PROTOCOLS else "simple",
        *(_integer(text) for text in numbers),
    )


def _integer(text: str) -> int:
    """Digits at the start, as C's atoi; 0 without any."""
    found = re.match(r"[+-]?\d+", text)
    return int(found[0]) if found else 0
