"""Edits of a dataflow graph for what-if questions about communication: other ranks, buckets, codecs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from wirewise.collective.named import collective_flows
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.plans.fusion import ddp_buckets
from wirewise.sim.breakdown import members
from wirewise.sim.gradients import Gradients, TransferRegion, all_reduces
from wirewise.sim.step_replay import is_compute
from wirewise.trace.dataflow import COLLECTIVES, KINDS, Dataflow
from wirewise.trace.sketch import GraphSketch

__all__ = [
    "accumulate_steps",
    "balance_compute",
    "rebucket",
    "remove_communication",
    "skew_of",
    "with_algorithm",
    "with_codec",
    "with_ranks",
]

_MICRO_BATCH = ("data", "forward", "backward")
"""Kinds of ops that every micro-batch of a step has."""


def remove_communication(flow: Dataflow) -> Dataflow:
    """Set the time of every communication to zero, keeping the order."""
    gone = flow.kind == KINDS.index("communication")
    empty = np.zeros(len(flow.names))
    return replace(
        flow,
        duration_s=np.where(gone, 0.0, flow.duration_s),
        size_bytes=empty,
        gap_s=np.where(gone, 0.0, flow.gap_s),
        flow_indptr=np.zeros(len(flow.names) + 1, dtype=np.int64),
        flow_src=flow.flow_src[:0],
        flow_dst=flow.flow_dst[:0],
        flow_bytes=flow.flow_bytes[:0],
    )


def scale_messages(flow: Dataflow, factor: float) -> Dataflow:
    """Multiply the bytes of messages between two ranks."""
    ours = flow.collective == COLLECTIVES.index("send")
    flows = np.repeat(ours, np.diff(flow.flow_indptr))
    return replace(
        flow,
        duration_s=np.where(ours, factor * flow.duration_s, flow.duration_s),
        size_bytes=np.where(ours, factor * flow.size_bytes, flow.size_bytes),
        flow_bytes=np.where(flows, factor * flow.flow_bytes, flow.flow_bytes),
    )


def with_algorithm(flow: Dataflow, algorithm: str, *, servers: int = 1) -> Dataflow:
    """Execute all-reduces by another algorithm (`collective.named`)."""
    sketch, belongs = GraphSketch.of(flow), members(flow)
    for op in all_reduces(flow):
        node = sketch.nodes[op]
        hosts = flow.hosts[belongs[op]].tolist()
        node.flows, node.rounds = collective_flows(
            "all_reduce", hosts, node.size_bytes, algorithm, servers=servers
        )
    return sketch.dataflow()


def skew_of(flow: Dataflow) -> np.ndarray:
    """Compute time of each rank, relative to the mean rank, [ranks]."""
    own = is_compute(flow)
    total = np.bincount(flow.rank[own], flow.duration_s[own], minlength=flow.ranks)
    return total / total.mean() if total.sum() > 0 else np.ones(flow.ranks)


def balance_compute(flow: Dataflow) -> Dataflow:
    """Set every rank's compute time to that of the mean rank in this step."""
    own, skew = is_compute(flow), skew_of(flow)
    if (skew <= 0).any():
        raise InputError("a rank computes nothing in a step, so its compute cannot be evened out")
    return replace(
        flow, duration_s=np.where(own, flow.duration_s / skew[np.maximum(flow.rank, 0)], flow.duration_s)
    )


def accumulate_steps(flow: Dataflow, times: int) -> Dataflow:
    """Extend a step to `times` micro-batches: each rank computes the others, without exchange, before the recorded one.

    A micro-batch consists of data, forward and backward of the recorded step with the gaps after them; optimizer and
    gradient exchange occur once, with the last one.

    Raises:
        InputError: The number of micro-batches is below 1.
    """
    if times < 1:
        raise InputError(f"got {times} micro-batches; expected at least 1")
    sketch = GraphSketch.of(flow)
    for rank in range(flow.ranks) if times > 1 else ():
        _add_micro_batches(sketch, rank, times - 1)
    return sketch.dataflow()


def _add_micro_batches(sketch: GraphSketch, rank: int, times: int) -> None:
    own = {op: node for op, node in sketch.nodes.items() if node.rank == rank}
    parts = [node for node in own.values() if node.kind in _MICRO_BATCH]
    if not parts:
        raise InputError(f"rank {rank} computes no batch in a step, so it cannot compute several")
    seconds = times * sum(node.duration_s + node.gap_s for node in parts)
    first = replace(parts[0], name="micro-batches before", kind="forward", duration_s=seconds, size_bytes=0.0)
    added = sketch.add(replace(first, flows=[], after=set(), gap_s=0.0, gradient_bytes=0.0))
    for node in own.values():
        if not node.after & own.keys():
            node.after.add(added)


def with_ranks(
    flow: Dataflow, links: Links, ranks: int, factors: Sequence[float], algorithm: str = "ring"
) -> tuple[Dataflow, Links]:
    """Change the number of ranks; new ranks repeat the current ones cyclically.

    Args:
        flow: Graph whose transfers are collectives of all ranks.
        links: Links of its hosts; new hosts repeat the current ones cyclically.
        ranks: New number of ranks, with equally many per host as now.
        factors: Compute slowdown of each rank beyond the current ones, [ranks - present] or more.
        algorithm: Algorithm of the all-reduces.

    Raises:
        InputError: The number of ranks is below 1, or a transfer is among some of the ranks only.
    """
    if ranks < 1:
        raise InputError(f"got {ranks} ranks; expected at least 1")
    old, belongs = flow.ranks, members(flow)
    transfers = np.flatnonzero(flow.size_bytes > 0).tolist()
    for op in transfers:
        if len(belongs[op]) != old or flow.collective[op] in (0, *map(COLLECTIVES.index, ("send", "recv"))):
            raise InputError(
                f"{flow.names[op]!r} is a transfer among ranks {belongs[op].tolist()}; another number of ranks "
                f"needs collectives of all {old} ranks"
            )
    sketch = GraphSketch.of(flow)
    per_host = max(old // flow.host_count, 1)
    sketch.hosts = [rank // per_host for rank in range(ranks)]
    sketch.remove([op for op, node in sketch.nodes.items() if node.rank >= ranks])
    for rank in range(old, ranks):
        _copy_rank(sketch, rank % old, rank, factors[rank - old])
    for op in transfers:
        node = sketch.nodes[op]
        node.flows, node.rounds = collective_flows(node.collective, sketch.hosts, node.size_bytes, algorithm)
        if not node.flows:
            node.duration_s = 0.0
    hosts = np.arange(max(sketch.hosts) + 1) % links.hosts
    return sketch.dataflow(), links.of_hosts(hosts)


def _copy_rank(sketch: GraphSketch, template: int, rank: int, factor: float) -> None:
    own = {op: node for op, node in sketch.nodes.items() if node.rank == template}
    number: dict[int, int] = {}
    for op, node in own.items():
        resource = f"{node.resource} of new rank {rank}" if node.resource else ""
        if resource:
            sketch.slots[resource] = sketch.slots[node.resource]
        slower = factor if node.kind not in ("communication", "wait") else 1.0
        number[op] = sketch.add(
            replace(node, rank=rank, resource=resource, duration_s=node.duration_s * slower, after=set())
        )
    for op, node in own.items():
        sketch.nodes[number[op]].after = {number.get(before, before) for before in node.after}
    for node in sketch.nodes.values():
        if node.rank < 0:
            node.after |= {number[before] for before in node.after if before in number}


def with_codec(flow: Dataflow, ratio: float, encode_s_per_byte: float, decode_s_per_byte: float) -> Dataflow:
    """Encode the gradients of all-reduces: every rank encodes before and decodes after, on its own thread.

    Args:
        flow: Graph to rewrite.
        ratio: Encoded bytes over original bytes.
        encode_s_per_byte: Seconds for each byte before encoding.
        decode_s_per_byte: Seconds for each byte after decoding.
    """
    sketch = GraphSketch.of(flow)
    for op in all_reduces(flow):
        followers = sketch.followers()
        region, node = TransferRegion(sketch, followers, op), sketch.nodes[op]
        for before, inner in region.entries:
            source = sketch.nodes[before]
            seconds = encode_s_per_byte * node.size_bytes
            made = sketch.add(
                replace(source, name=f"encode {node.name}", kind="encode", duration_s=seconds, after={before},
                        gap_s=0.0, gradient_bytes=0.0)
            )  # fmt: skip
            sketch.nodes[inner].after = (sketch.nodes[inner].after - {before}) | {made}
            for follower in followers[before]:
                # The thread goes on after the encoding.
                if sketch.nodes[follower].resource == source.resource:
                    sketch.nodes[follower].after.add(made)
        for inner, behind in region.exits:
            target = sketch.nodes[behind]
            seconds = decode_s_per_byte * node.size_bytes
            made = sketch.add(
                replace(target, name=f"decode {node.name}", kind="decode", duration_s=seconds, after={inner},
                        gap_s=0.0, gradient_bytes=0.0)
            )  # fmt: skip
            target.after = (target.after - {inner}) | {made}
        node.flows = [(a, b, size * ratio) for a, b, size in node.flows]
        node.size_bytes *= ratio
    return sketch.dataflow()


def rebucket(flow: Dataflow, links: Links, cap_bytes: float | None, algorithm: str = "ring") -> Dataflow:
    """Rebucket the gradients, by the rule of DistributedDataParallel (see `plans.fusion.ddp_buckets`).

    A new bucket is reduced after the backward op that completes its last gradient, and ops that waited for the old
    bucket that ended with the same or a later gradient wait for the new one. The cap defaults to
    DistributedDataParallel's. If the trace does not say which op completes how many bytes, those of an old bucket are
    spread evenly over its ops.

    Raises:
        InputError: There are no buckets, or backward ops differ between ranks.
    """
    gradients = Gradients(flow, links)
    ready = np.flatnonzero(gradients.sizes > 0)
    for bucket in ddp_buckets(gradients.sizes[ready].tolist(), cap_bytes):
        size = float(gradients.sizes[ready[bucket]].sum())
        gradients.put(int(ready[bucket[-1]]), size, algorithm=algorithm)
    return gradients.sketch.dataflow()
