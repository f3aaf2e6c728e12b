"""Simple predictions of a step, to compare the replay with."""

from __future__ import annotations

import numpy as np

from wirewise.cost.links import Links
from wirewise.sim.links import prepare
from wirewise.sim.replay import is_compute, replay
from wirewise.trace.dataflow import COLLECTIVES, Dataflow
from wirewise.trace.sketch import Sketch

__all__ = ["one_rank_s", "slower_part_s", "sum_of_parts_s"]


def one_rank_s(dataflow: Dataflow, links: Links, rank: int = 0) -> float:
    """Seconds of a step from one rank's graph alone, in the style of Daydream (Zhu et al., USENIX ATC 2020).

    Each transfer takes bytes * 2 (N - 1) / N over the rate of the rank's interface, without latency, other
    ranks or sharing of the link.
    """
    sketch = Sketch.of(dataflow)
    rate = float(links.bandwidth_out_bytes_per_s[dataflow.hosts[rank]])
    n = dataflow.ranks
    # All at once: each removal looks through the whole graph.
    sketch.remove([op for op, node in sketch.nodes.items() if node.rank not in (-1, rank)])
    for node in sketch.nodes.values():
        if node.flows:
            share = 2.0 * (n - 1) / n if node.collective == COLLECTIVES[1] else 1.0
            node.duration_s, node.flows = share * node.size_bytes / rate, []
    return replay(sketch.dataflow(), links).step_s


def _parts(dataflow: Dataflow, links: Links) -> tuple[float, float]:
    """Compute of the busiest rank, and all transfers one after the other."""
    compute = np.zeros(dataflow.ranks)
    own = is_compute(dataflow)
    np.add.at(compute, dataflow.rank[own], dataflow.duration_s[own])
    prepared = prepare(dataflow, links)
    uses, ops = prepared.uses, prepared.ops
    slowest = np.zeros(len(dataflow.names))
    need = uses.weight * ops.work[uses.owner] / uses.capacity[uses.interface]
    np.maximum.at(slowest, uses.owner, need)
    transfer = dataflow.size_bytes > 0
    return float(compute.max(initial=0.0)), float((slowest + ops.duration)[transfer].sum())


def sum_of_parts_s(dataflow: Dataflow, links: Links) -> float:
    """Compute plus communication: nothing overlaps."""
    return sum(_parts(dataflow, links))


def slower_part_s(dataflow: Dataflow, links: Links) -> float:
    """The larger of compute and communication: all that can overlaps."""
    return max(_parts(dataflow, links))
