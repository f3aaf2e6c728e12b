"""Editable dataflow graph: built by hand, or converted from and to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from wirewise.trace.arrays import Dataflow
from wirewise.trace.records import COLLECTIVES, KINDS

__all__ = ["GraphSketch", "SketchNode"]


@dataclass(slots=True)
class SketchNode:
    """One op; fields as in `Dataflow`."""

    name: str
    kind: str
    rank: int = -1
    step: int = 0
    duration_s: float = 0.0
    size_bytes: float = 0.0
    flows: list[tuple[int, int, float]] = field(default_factory=list)
    rounds: int = 0
    weight: float = 1.0
    collective: str = ""
    gradient_bytes: float = 0.0
    resource: str = ""
    priority: int = 0
    gap_s: float = 0.0
    after: set[int] = field(default_factory=set)
    """Indices of the ops that it depends on."""


class GraphSketch:
    """Ops by index, hosts of ranks, and slots of each resource.

    Args:
        hosts: Host of each rank.
    """

    def __init__(self, hosts: Sequence[int]) -> None:
        self.hosts = [int(h) for h in hosts]
        self.slots: dict[str, int] = {}
        self.nodes: dict[int, SketchNode] = {}
        self._next = 0

    @classmethod
    def of(cls, flow: Dataflow) -> GraphSketch:
        """Create from a graph; op indices are kept."""
        sketch = cls(flow.hosts.tolist())
        # Two resources may have the same name in a trace.
        names = [f"{name}#{number}" for number, name in enumerate(flow.resource_names)]
        sketch.slots = dict(zip(names, flow.slots.tolist(), strict=True))
        hops = list(
            zip(flow.flow_src.tolist(), flow.flow_dst.tolist(), flow.flow_bytes.tolist(), strict=True)
        )
        for op, name in enumerate(flow.names):
            resource = int(flow.resource[op])
            sketch.nodes[op] = SketchNode(
                name,
                KINDS[flow.kind[op]],
                rank=int(flow.rank[op]),
                step=int(flow.step[op]),
                duration_s=float(flow.duration_s[op]),
                size_bytes=float(flow.size_bytes[op]),
                flows=hops[flow.flow_indptr[op] : flow.flow_indptr[op + 1]],
                rounds=int(flow.rounds[op]),
                weight=float(flow.weight[op]),
                collective=COLLECTIVES[flow.collective[op]],
                gradient_bytes=float(flow.gradient_bytes[op]),
                resource=names[resource] if resource >= 0 else "",
                priority=int(flow.priority[op]),
                gap_s=float(flow.gap_s[op]),
            )
        sketch._next = len(flow.names)
        for op in range(len(flow.names)):
            for follower in flow.indices[flow.indptr[op] : flow.indptr[op + 1]].tolist():
                sketch.nodes[follower].after.add(op)
        return sketch

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    def add(self, node: SketchNode) -> int:
        """Add an op and return its index; an unknown resource gets one slot."""
        number = self._next
        self._next += 1
        self.nodes[number] = node
        if node.resource:
            self.slots.setdefault(node.resource, 1)
        return number

    def add_to(self, resource: str, name: str, kind: str, duration_s: float, *after: int) -> int:
        """Add an op of rank 0 after the last op of a resource and after other ops (-1 for none)."""
        node = SketchNode(name, kind, rank=0, duration_s=duration_s, after={op for op in after if op >= 0})
        node.resource, node.priority = resource, self._next
        return self.add(node)

    def followers(self) -> dict[int, list[int]]:
        """Successors of every op."""
        found: dict[int, list[int]] = {op: [] for op in self.nodes}
        for op, node in self.nodes.items():
            for before in node.after:
                found[before].append(op)
        return found

    def remove(self, ops: Iterable[int]) -> None:
        """Remove ops with their edges."""
        gone = set(ops)
        self.nodes = {op: node for op, node in self.nodes.items() if op not in gone}
        for node in self.nodes.values():
            node.after -= gone

    def dataflow(self) -> Dataflow:
        """Convert to arrays, ops in order of index."""
        nodes = [self.nodes[op] for op in sorted(self.nodes)]
        place = {op: i for i, op in enumerate(sorted(self.nodes))}
        resources = {name: i for i, name in enumerate(self.slots)}
        edges = np.array(
            sorted((place[b], i) for i, node in enumerate(nodes) for b in node.after), dtype=np.int64
        ).reshape(-1, 2)
        hops = [hop for node in nodes for hop in node.flows]
        n = len(nodes)
        return Dataflow(
            names=[node.name for node in nodes],
            kind=np.array([KINDS.index(node.kind) for node in nodes], dtype=np.int8),
            rank=np.array([node.rank for node in nodes], dtype=np.int32),
            step=np.array([node.step for node in nodes], dtype=np.int32),
            duration_s=np.array([node.duration_s for node in nodes], dtype=np.float64),
            size_bytes=np.array([node.size_bytes for node in nodes], dtype=np.float64),
            flow_indptr=np.cumsum([0] + [len(node.flows) for node in nodes], dtype=np.int64),
            flow_src=np.array([a for a, _, _ in hops], dtype=np.int32),
            flow_dst=np.array([b for _, b, _ in hops], dtype=np.int32),
            flow_bytes=np.array([size for *_, size in hops], dtype=np.float64),
            rounds=np.array([node.rounds for node in nodes], dtype=np.int32),
            weight=np.array([node.weight for node in nodes], dtype=np.float64),
            collective=np.array([COLLECTIVES.index(node.collective) for node in nodes], dtype=np.int8),
            gradient_bytes=np.array([node.gradient_bytes for node in nodes], dtype=np.float64),
            resource=np.array([resources.get(node.resource, -1) for node in nodes], dtype=np.int32),
            slots=np.array(list(self.slots.values()), dtype=np.int32),
            priority=np.array([node.priority for node in nodes], dtype=np.int64),
            gap_s=np.array([node.gap_s for node in nodes], dtype=np.float64),
            indptr=np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=n))]).astype(np.int64),
            indices=edges[:, 1].copy(),
            ranks=self.ranks,
            hosts=np.array(self.hosts, dtype=np.int32),
            resource_names=list(self.slots),
        )
