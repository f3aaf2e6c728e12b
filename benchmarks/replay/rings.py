"""Data-parallel steps with every hop of every ring as an op of its own, for many ranks at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.plans.fusion import ddp_buckets
from wirewise.sim.data_parallel import LayerCost
from wirewise.trace.dataflow import COLLECTIVES, KINDS, Dataflow

__all__ = ["ring_step"]

Ints = NDArray[np.int64]


def ring_step(
    layers: Sequence[LayerCost],
    ranks: int,
    *,
    bucket_bytes: float | None = None,
    optimizer_s: float = 0.0,
    slowdown: Sequence[float] | None = None,
    symmetric: bool = False,
) -> Dataflow:
    """A step on ranks that have a host each; all-reduces run one at a time on each rank, in order.

    Hop k of a rank, a 1 / N of the bucket to the next rank, waits for its hop k - 1 and for what the rank
    before sent in its hop k - 1; the first hop of a bucket waits for its last gradient.

    Args:
        layers: Layers in the order of the forward pass; the forward pass is one op.
        ranks: N, at least 2.
        bucket_bytes: Cap of a bucket, as of `data_parallel.buckets`.
        optimizer_s: Time of the update.
        slowdown: Factor of each rank's compute, [ranks].
        symmetric: One rank stands for all. Exact where ranks compute alike and links are alike: each rank's
            hops then begin and end with those of its neighbours.

    Raises:
        InputError: Fewer than 2 ranks, or ranks that are unlike and yet `symmetric`.
    """
    by_rank = np.ones(ranks) if slowdown is None else np.asarray(slowdown, dtype=np.float64)
    if ranks < 2 or by_rank.shape != (ranks,):
        raise InputError(
            f"got {ranks} ranks and {by_rank.shape} factors; expected at least 2, a factor for each"
        )
    if symmetric and np.ptp(by_rank) > 0:
        raise InputError("got ranks that compute at different speeds; one rank cannot stand for all of them")
    backward = list(reversed(layers))
    groups = ddp_buckets([layer.gradient_bytes for layer in backward], bucket_bytes)
    simulated, rounds = 1 if symmetric else ranks, 2 * (ranks - 1)
    # A rank's ops: forward, the backward ops, the hops, the optimizer.
    hops, first_hop = len(groups) * rounds, 1 + len(backward)
    block = first_hop + hops + 1
    n = block * simulated
    seconds = np.zeros(block)
    seconds[0] = sum(layer.forward_s for layer in layers)
    seconds[1:first_hop] = [layer.backward_s for layer in backward]
    seconds[-1] = optimizer_s
    kind = np.full(block, KINDS.index("communication"), dtype=np.int8)
    kind[0], kind[1:first_hop], kind[-1] = (KINDS.index(k) for k in ("forward", "backward", "optimizer"))
    size = np.zeros(block)
    size[first_hop:-1] = np.repeat(
        [sum(backward[i].gradient_bytes for i in g) / ranks for g in groups], rounds
    )
    gradient = np.zeros(block)
    gradient[1:first_hop] = [layer.gradient_bytes for layer in backward]
    is_hop = np.tile(size > 0, simulated)
    rank = np.repeat(np.arange(simulated, dtype=np.int32), block)
    names = ["forward", *(layer.name for layer in backward)]
    names += [f"bucket {number}" for number in range(len(groups)) for _ in range(rounds)]
    indptr, indices = _edges(groups, simulated, rounds, first_hop, block)
    return Dataflow(
        names=[*names, "optimizer"] * simulated,
        kind=np.tile(kind, simulated),
        rank=rank,
        step=np.zeros(n, dtype=np.int32),
        duration_s=np.outer(by_rank[:simulated], seconds).reshape(-1),
        size_bytes=np.tile(size, simulated),
        flow_indptr=np.concatenate([[0], np.cumsum(is_hop)]).astype(np.int64),
        flow_src=rank[is_hop],
        flow_dst=(rank[is_hop] + 1) % ranks,
        flow_bytes=np.tile(size, simulated)[is_hop],
        weight=np.ones(n),
        rounds=is_hop.astype(np.int32),
        collective=np.where(is_hop, COLLECTIVES.index("send"), 0).astype(np.int8),
        gradient_bytes=np.tile(gradient, simulated),
        resource=np.where(np.tile(kind == kind[1], simulated), rank, -1).astype(np.int32),
        slots=np.ones(simulated, dtype=np.int32),
        priority=np.tile(np.arange(block, dtype=np.int64), simulated),
        gap_s=np.zeros(n),
        indptr=indptr,
        indices=indices,
        ranks=simulated,
        hosts=np.arange(simulated, dtype=np.int32),
        resource_names=[f"rank {r}" for r in range(simulated)],
    )


def _edges(
    groups: list[list[int]], simulated: int, rounds: int, first_hop: int, block: int
) -> tuple[Ints, Ints]:
    """Successors of all ops as sparse rows."""
    compute = np.arange(first_hop - 1)
    # The last backward op also comes before the optimizer, as the last hop does.
    chain = np.arange(first_hop, block - 1)
    gradient = np.array([1 + group[-1] for group in groups])
    start = first_hop + rounds * np.arange(len(groups))
    source = np.concatenate([compute, [first_hop - 1], chain, gradient])
    target = np.concatenate([compute + 1, [block - 1], chain + 1, start])
    base = block * np.arange(simulated)[:, None]
    sources, targets = [(base + source).reshape(-1)], [(base + target).reshape(-1)]
    if simulated > 1:
        following = np.roll(base, -1, axis=0)
        sources.append((base + chain).reshape(-1))
        targets.append((following + chain + 1).reshape(-1))
    edges, ends = np.concatenate(sources), np.concatenate(targets)
    order = np.argsort(edges, kind="stable")
    counts = np.bincount(edges, minlength=block * simulated)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), ends[order]
