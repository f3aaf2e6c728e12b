"""How NVIDIA's example tuner plugin reads a file and chooses (NVIDIA/nccl, ext-tuner/example/plugin.c)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from wirewise.collective.exporters.nccl_tuner import ALGORITHMS, COLLECTIVES, PROTOCOLS, Row

_LINE = 255
"""Characters of a line that the plugin reads at once."""
_NEEDED, _MOST = 8, 10


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
