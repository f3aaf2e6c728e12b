"""Programs to export, and what a program does to integers: the memory that exports must reproduce."""

from __future__ import annotations

import numpy as np

from wirewise.collective import Program, Transfer


def ring(collective: str, ranks: int, root: int = 0) -> Program:
    """Tiny rings (chains for rooted collectives, direct exchange for all-to-all), a chunk a rank."""
    n, transfers = ranks, []
    if collective in ("reduce_scatter", "all_reduce"):
        transfers += [
            Transfer(c, (c + 1 + k) % n, (c + 2 + k) % n, k, True) for k in range(n - 1) for c in range(n)
        ]
    if collective in ("all_gather", "all_reduce"):
        first = n - 1 if collective == "all_reduce" else 0
        transfers += [
            Transfer(c, (c + k) % n, (c + k + 1) % n, first + k) for k in range(n - 1) for c in range(n)
        ]
    if collective == "broadcast":
        transfers = [
            Transfer(c, (root + k) % n, (root + k + 1) % n, k + c) for k in range(n - 1) for c in range(2)
        ]
    if collective == "reduce":
        transfers = [
            Transfer(c, (root + k + 1) % n, (root + k + 2) % n, k + c, True)
            for k in range(n - 1)
            for c in range(2)
        ]
    if collective == "all_to_all":
        transfers = [
            Transfer(s * n + (s + k) % n, s, (s + k) % n, k - 1) for k in range(1, n) for s in range(n)
        ]
    chunks = {"all_to_all": n * n, "broadcast": 2, "reduce": 2}.get(collective, n)
    return Program(
        name=f"ring-{collective}",
        collective=collective,
        ranks=n,
        chunks=chunks,
        transfers=tuple(transfers),
        root=root,
    )


def doubling(ranks: int, chunks: int = 3) -> Program:
    """All-reduce by recursive doubling: in each step, pairs of ranks exchange everything they hold."""
    transfers = [
        Transfer(c, r, r ^ (1 << k), k, True)
        for k in range(ranks.bit_length() - 1)
        for r in range(ranks)
        for c in range(chunks)
    ]
    return Program(
        name="doubling", collective="all_reduce", ranks=ranks, chunks=chunks, transfers=tuple(transfers)
    )


def run(program: Program, start: dict[tuple[int, int], np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
    """What each rank holds of each chunk at the end: all transfers of a step read before any writes."""
    held = dict(start)
    for step in range(program.steps):
        own = [t for t in program.transfers if t.step == step]
        sent = [held[t.source, t.chunk] for t in own]
        for t, value in zip(own, sent, strict=True):
            cell = t.target, t.chunk
            held[cell] = held[cell] + value if t.reduces and cell in held else value
    return held
