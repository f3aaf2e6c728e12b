"""Algorithm and protocol choices for stock NCCL, as the CSV that NVIDIA's example tuner plugin reads.

The plugin (NVIDIA/nccl, ext-tuner/example/plugin.c) takes the first row whose ranges match. It silently reads an
unknown name as allreduce, ring or simple, so names are checked here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from wirewise.errors import InputError

__all__ = ["ALGORITHMS", "COLLECTIVES", "PROTOCOLS", "Row", "dumps"]

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
"""Names that the plugin knows; it takes any other for the last."""
ALGORITHMS = ("tree", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat", "ring")
PROTOCOLS = ("ll", "ll128", "simple")
_TITLES = "# collective,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"


class Row(NamedTuple):
    """Tuner choice; -1 stands for any value, or for NCCL's own number of channels."""

    collective: str
    min_bytes: int
    max_bytes: int
    """Largest size of the row, inclusive."""
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
    """Format choices as a file for NCCL_TUNER_CONFIG_FILE.

    Raises:
        InputError: The plugin does not know a name, or sizes are out of order.
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
