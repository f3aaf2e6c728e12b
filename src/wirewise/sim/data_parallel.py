"""Dataflow graph of a data-parallel training step, built from layers instead of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wirewise.collective.named import collective_flows
from wirewise.plans.fusion import ddp_buckets
from wirewise.trace.dataflow import Dataflow
from wirewise.trace.modules import NO_OVERHEAD, ModuleTrace, Overhead
from wirewise.trace.sketch import GraphSketch, SketchNode

__all__ = [
    "BucketTransfer",
    "LayerCost",
    "Payload",
    "data_parallel_step",
    "module_step",
]


class LayerCost(NamedTuple):
    """Cost of a layer."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: float


class Payload(NamedTuple):
    """Message that replaces a chunk of gradients."""

    flows: tuple[tuple[int, int, float], ...]
    """Sending host, receiving host, bytes."""
    rounds: int
    """Number of latencies in series."""
    encode_s: float = 0.0
    """Seconds to encode a chunk, on the compute thread."""
    decode_s: float = 0.0
    decode: str = "inline"
    """Thread that decodes, one of `plans.fusion.DECODES`."""
    collective: str = "all_reduce"


class BucketTransfer(NamedTuple):
    """Bucket with its reduction."""

    place: int
    """Index of the backward op that completes its last gradient."""
    size_bytes: float
    chunks: int = 1
    """Number of collectives of equal size that it is sent as."""
    payload: Payload | None = None
    """Compression of each chunk. None if it is all-reduced uncompressed."""


def data_parallel_step(
    layers: Sequence[LayerCost],
    hosts: Sequence[int],
    *,
    bucket_bytes: float | None = None,
    transfers: Sequence[BucketTransfer] | None = None,
    algorithm: str = "ring",
    optimizer_s: float = 0.0,
    comm_slots: int = 2,
    slowdown: Sequence[float] | None = None,
    overhead: Overhead = NO_OVERHEAD,
    simulated: Sequence[int] | None = None,
    busy_s: float = 0.0,
) -> Dataflow:
    """Build a step: forward, backward with buckets all-reduced once full, a wait, the optimizer.

    Args:
        layers: Layers in the order of the forward pass.
        hosts: Host of each rank.
        bucket_bytes: Cap of a bucket, as in `buckets`.
        transfers: Buckets in launch order, in place of those by the cap.
        algorithm: Algorithm of the reductions (`collective.named`).
        optimizer_s: Time of the optimizer step, in seconds.
        comm_slots: Number of concurrent collectives.
        slowdown: Slowdown factor of each rank's compute, [ranks].
        overhead: Overhead of each all-reduce.
        simulated: Ranks to include in the graph. Defaults to all. Exact if the others are never later.
        busy_s: Time from the start during which one slot is occupied, in seconds.
    """
    sketch = GraphSketch(hosts)
    sketch.slots["communication"] = comm_slots
    by_rank = np.ones(len(hosts)) if slowdown is None else np.asarray(slowdown, dtype=np.float64)
    backward = [layer.gradient_bytes for layer in reversed(layers)]
    if transfers is None:
        groups = ddp_buckets(backward, bucket_bytes)
        transfers = [BucketTransfer(group[-1], sum(backward[i] for i in group)) for group in groups]
    seconds = overhead.launch_s
    ranks = range(len(hosts)) if simulated is None else simulated
    ready = {rank: _compute(sketch, rank, layers, float(by_rank[rank]), transfers, seconds) for rank in ranks}
    if busy_s > 0.0:
        busy = SketchNode("before", "communication", duration_s=busy_s, resource="communication", priority=-1)
        sketch.add(busy)
    communication = _Communication(sketch, algorithm, overhead, ready)
    for number, one in enumerate(transfers):
        communication.add(number, one)
    for rank, done in ready.items():
        after = {done.last, *communication.done[rank]}
        end = SketchNode(
            "optimizer", "optimizer", rank=rank, duration_s=optimizer_s * by_rank[rank], after=after
        )
        end.resource, end.priority = f"rank {rank}", len(sketch.nodes)
        sketch.add(end)
    return sketch.dataflow()


def module_step(
    job: ModuleTrace,
    ops: Sequence[LayerCost],
    sent: Sequence[BucketTransfer],
    *,
    simulated: Sequence[int] | None = None,
    busy_s: float = 0.0,
) -> Dataflow:
    """Build `data_parallel_step` with all further data of a module trace."""
    return data_parallel_step(
        ops,
        job.hosts,
        transfers=sent,
        algorithm=job.algorithm,
        optimizer_s=job.optimizer_s,
        comm_slots=job.comm_slots,
        slowdown=job.slowdown or None,
        overhead=job.overhead,
        simulated=simulated,
        busy_s=busy_s,
    )


class _Computed(NamedTuple):
    """Ops of a rank."""

    launched: list[int]
    """Op after which each transfer can go."""
    last: int
    slowdown: float


def _compute(
    sketch: GraphSketch,
    rank: int,
    layers: Sequence[LayerCost],
    slowdown: float,
    transfers: Sequence[BucketTransfer],
    launch_s: float,
) -> _Computed:
    """Forward, then backward with what is handed over behind each op."""
    made: list[int] = []
    encode_s = [one.chunks * one.payload.encode_s if one.payload else 0.0 for one in transfers]

    def add(name: str, kind: str, seconds: float, gradient: float = 0.0) -> int:
        node = SketchNode(name, kind, rank=rank, duration_s=seconds * slowdown, gradient_bytes=gradient)
        node.resource, node.priority, node.after = f"rank {rank}", len(made), set(made[-1:])
        made.append(sketch.add(node))
        return made[-1]

    for layer in layers:
        # A forward op without time decides nothing; a backward op may complete gradients.
        if layer.forward_s > 0.0:
            add(layer.name, "forward", layer.forward_s)
    launched = [-1] * len(transfers)
    for place, layer in enumerate(reversed(layers)):
        op = add(layer.name, "backward", layer.backward_s, layer.gradient_bytes)
        for number, one in enumerate(transfers):
            if one.place == place:
                if encode_s[number] > 0.0:
                    op = add(f"encode bucket {number}", "encode", encode_s[number])
                launched[number] = add("launch", "other", launch_s * one.chunks) if launch_s > 0.0 else op
    return _Computed(launched, made[-1], slowdown)


class _Communication:
    """Adds buckets: encoded on each rank, reduced, decoded on each rank, chunk by chunk.

    Args:
        sketch: Graph that is being built.
        algorithm: Algorithm of the all-reduces.
        overhead: Overhead of each collective.
        ready: Ops after which buckets can go, by simulated rank.
    """

    def __init__(
        self, sketch: GraphSketch, algorithm: str, overhead: Overhead, ready: dict[int, _Computed]
    ) -> None:
        self.sketch, self.algorithm, self.overhead, self.ready = sketch, algorithm, overhead, ready
        self.done: dict[int, list[int]] = {rank: [] for rank in ready}
        """Ops that each rank waits for before its optimizer."""
        self._count = 0

    def add(self, number: int, transfer: BucketTransfer) -> None:
        size, payload = transfer.size_bytes / transfer.chunks, transfer.payload
        flows, rounds = (
            (payload.flows, payload.rounds)
            if payload
            else collective_flows("all_reduce", self.sketch.hosts, size, self.algorithm)
        )
        for chunk in range(transfer.chunks):
            part = f"bucket {number}" if transfer.chunks == 1 else f"bucket {number} chunk {chunk}"
            node = SketchNode(part, "communication", size_bytes=size, flows=list(flows), rounds=rounds)
            node.collective, node.resource = payload.collective if payload else "all_reduce", "communication"
            # A chunk that is decoded in its slot comes before the next one's transfer.
            node.priority = 2 * self._count
            node.after = {
                self._stage("encode", part, rank, size, own.launched[number])
                for rank, own in self.ready.items()
            }
            reduced = self.sketch.add(node)
            for rank in self.ready:
                self.done[rank].append(self._stage("decode", part, rank, size, reduced))
            if payload is not None and payload.decode_s > 0.0:
                self._decode(f"decode {part}", payload, reduced)
            self._count += 1

    def _decode(self, name: str, payload: Payload, reduced: int) -> None:
        """Decode in the slot of the transfer, on a thread of its own, or once back-propagation is over."""
        if payload.decode == "inline":
            slowest = max(own.slowdown for own in self.ready.values())
            node = SketchNode(name, "decode", duration_s=payload.decode_s * slowest, after={reduced})
            node.resource, node.priority = "communication", 2 * self._count + 1
            decoded = self.sketch.add(node)
            for done in self.done.values():
                done.append(decoded)
            return
        for rank, own in self.ready.items():
            lazy = payload.decode == "lazy"
            node = SketchNode(
                name, "decode", rank=rank, duration_s=payload.decode_s * own.slowdown, after={reduced}
            )
            node.resource = f"rank {rank}" if lazy else f"rank {rank} queue"
            node.priority = len(self.sketch.nodes) if lazy else self._count
            node.after |= {own.last} if lazy else set()
            self.done[rank].append(self.sketch.add(node))

    def _stage(self, kind: str, name: str, rank: int, size: float, after: int) -> int:
        """The op that encodes or decodes behind `after`; `after` itself where that takes no time."""
        own = self.overhead[1:3] if kind == "encode" else self.overhead[3:5]
        seconds = own[0] + own[1] * size
        if seconds <= 0.0:
            return after
        node = SketchNode(f"{kind} {name}", kind, rank=rank, duration_s=seconds, after={after})
        node.resource, node.priority = f"rank {rank} {kind}", self._count
        return self.sketch.add(node)
