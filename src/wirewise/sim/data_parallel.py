"""The dataflow graph of a step of data-parallel training, from layers instead of from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wirewise.errors import InputError
from wirewise.trace.dataflow import Dataflow
from wirewise.trace.flows import collective_flows
from wirewise.trace.sketch import Node, Sketch

__all__ = ["FIRST_BUCKET_BYTES", "Layer", "buckets", "data_parallel_step"]

FIRST_BUCKET_BYTES = 2**20
"""Least size at which the first bucket is closed, so that communication begins early."""


class Layer(NamedTuple):
    """What a layer costs."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: float


def buckets(
    sizes: Sequence[float], cap_bytes: float, first_bytes: float = FIRST_BUCKET_BYTES
) -> list[list[int]]:
    """Gradients in the order in which they are ready, cut into buckets by the rule of DistributedDataParallel.

    A bucket is closed as soon as it holds at least its cap; that of the first is `first_bytes`.

    Raises:
        InputError: A cap that is not above 0.
    """
    if not cap_bytes > 0 or not first_bytes > 0:
        raise InputError(f"bucket caps are {first_bytes} and {cap_bytes} bytes; expected sizes above 0")
    found: list[list[int]] = [[]]
    held, cap = 0.0, min(first_bytes, cap_bytes)
    for number, size in enumerate(sizes):
        found[-1].append(number)
        held += size
        if held >= cap:
            found.append([])
            held, cap = 0.0, cap_bytes
    return [bucket for bucket in found if bucket]


def data_parallel_step(
    layers: Sequence[Layer],
    hosts: Sequence[int],
    *,
    bucket_bytes: float = 25 * 2**20,
    algorithm: str = "ring",
    optimizer_s: float = 0.0,
    comm_slots: int = 2,
    slowdown: Sequence[float] | None = None,
) -> Dataflow:
    """Forward, backward with buckets that are all-reduced as soon as they are full, a wait, the optimizer.

    Args:
        layers: In the order of the forward pass.
        hosts: Host of each rank.
        bucket_bytes: Cap of a bucket.
        algorithm: How buckets are reduced (`trace.flows`).
        optimizer_s: Time of the update.
        comm_slots: Collectives that run at once.
        slowdown: Factor of each rank's compute, [ranks].
    """
    sketch = Sketch(hosts)
    sketch.slots["communication"] = comm_slots
    by_rank = np.ones(len(hosts)) if slowdown is None else np.asarray(slowdown, dtype=np.float64)
    ready = [_compute(sketch, rank, layers, float(by_rank[rank])) for rank in range(len(hosts))]
    backward = [layer.gradient_bytes for layer in reversed(layers)]
    transfers = []
    for number, bucket in enumerate(buckets(backward, bucket_bytes)):
        size = sum(backward[i] for i in bucket)
        flows, rounds = collective_flows("all_reduce", hosts, size, algorithm)
        transfers.append(
            sketch.add(
                Node(
                    f"bucket {number}",
                    "communication",
                    size_bytes=size,
                    flows=flows,
                    rounds=rounds,
                    collective="all_reduce",
                    resource="communication",
                    priority=number,
                    after={done[bucket[-1]] for done in ready},
                )
            )
        )
    for rank, done in enumerate(ready):
        after = {done[-1], *transfers}
        end = Node("optimizer", "optimizer", rank=rank, duration_s=optimizer_s * by_rank[rank], after=after)
        end.resource, end.priority = f"rank {rank}", 2 * len(layers)
        sketch.add(end)
    return sketch.dataflow()


def _compute(sketch: Sketch, rank: int, layers: Sequence[Layer], slowdown: float) -> list[int]:
    """Forward and backward ops of a rank; the numbers of the backward ops in their order."""
    before: set[int] = set()
    order = [(layer, "forward", layer.forward_s, 0.0) for layer in layers]
    order += [(layer, "backward", layer.backward_s, layer.gradient_bytes) for layer in reversed(layers)]
    made = []
    for place, (layer, kind, seconds, gradient) in enumerate(order):
        node = Node(layer.name, kind, rank=rank, duration_s=seconds * slowdown, gradient_bytes=gradient)
        node.resource, node.priority, node.after = f"rank {rank}", place, before
        made.append(sketch.add(node))
        before = {made[-1]}
    return made[len(layers) :]
