"""Execution traces of torch (Chakra): the calls between operators, without times.

With a Kineto file of the same run, they reveal the call of each execution of a gloo collective, which a Kineto file
alone does not.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from wirewise.errors import TraceError
from wirewise.trace.profiles import collective_name, read_json

__all__ = ["ExecutionNode", "ExecutionTrace", "read"]

_SCHEMA = "1.1."


class ExecutionNode(msgspec.Struct):
    """Operator in the file."""

    id: int
    name: str
    parent: int
    """Node that called it."""
    record_id: int
    """Id shared with the run's Kineto file ("Record function id"), or -1 for none."""


class ExecutionTrace(msgspec.Struct):
    """All operators of one rank."""

    schema: str
    nodes: dict[int, ExecutionNode]

    def calls(self) -> dict[int, int]:
        """Record id of the call of each gloo collective's execution, by the execution's record id."""
        found = {}
        for node in self.nodes.values():
            if not node.name.startswith("gloo:"):
                continue
            caller = self.nodes.get(node.parent)
            while caller is not None and not caller.name.startswith("c10d::") and caller.parent != caller.id:
                caller = self.nodes.get(caller.parent)
            if caller is not None and caller.name.startswith("c10d::"):
                found[node.record_id] = caller.record_id
        return found

    def collectives(self) -> list[ExecutionNode]:
        """Calls of collectives, in order."""
        ordered = sorted(self.nodes.values(), key=lambda node: node.id)
        return [node for node in ordered if node.name.startswith("c10d::") and collective_name(node.name)]


def read(path: str | os.PathLike[str]) -> ExecutionTrace:
    """Read the output of `torch.profiler.ExecutionTraceObserver`, plain or compressed.

    Raises:
        TraceError: The file is unreadable, truncated, or of another schema than 1.1.
    """
    head: Any = read_json(path)
    schema = head.get("schema") if isinstance(head, dict) else None
    if not isinstance(schema, str) or not isinstance(head.get("nodes"), list):
        raise TraceError(
            f"{os.fspath(path)} is no execution trace; expected a file of torch.profiler.ExecutionTraceObserver"
        )
    if not schema.startswith(_SCHEMA):
        raise TraceError(
            f"{os.fspath(path)} has schema {schema}; expected {_SCHEMA}x: record it with torch 2.2 or later"
        )
    nodes: dict[int, ExecutionNode] = {}
    for raw in head["nodes"]:
        try:
            attributes = {one["name"]: one.get("value") for one in raw.get("attrs", [])}
            record = attributes.get("rf_id")
            node = ExecutionNode(
                id=int(raw["id"]),
                name=str(raw["name"]),
                parent=int(raw.get("ctrl_deps", 0)),
                record_id=-1 if record is None else int(record),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as cause:
            raise TraceError(
                f"{os.fspath(path)}, node {len(nodes)}: {type(cause).__name__} {cause}; the file is damaged"
            ) from cause
        nodes[node.id] = node
    return ExecutionTrace(schema, nodes)
