"""Repeated blocks in an operator graph, such as the layers of a transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from wirewise.trace.operator_graph import OperatorNode, RepeatedBlocks

__all__ = ["repeated_blocks"]


def repeated_blocks(nodes: Sequence[OperatorNode]) -> tuple[RepeatedBlocks, ...]:
    """Find modules of a list (`blocks.0`, `blocks.1`, ...) with identical operators; outermost only.

    Operators are the same where kind, arguments, shapes, phase and place within the module are, and where what they
    read is the same operator of the module or, from outside of it, has the same shape. Modules that fit no other one
    are left out, such as a first block without what the others have.

    Args:
        nodes: Nodes of a graph in topological order.
    """
    members: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        for prefix in _prefixes(node.module):
            members.setdefault(prefix, []).append(number)
    listed: dict[str, list[str]] = {}
    for prefix in sorted(members, key=lambda one: (one.count("."), members[one][0])):
        parent, _, last = prefix.rpartition(".")
        if last.isdecimal():
            listed.setdefault(parent, []).append(prefix)
    found: list[RepeatedBlocks] = []
    taken: set[str] = set()
    for prefixes in listed.values():
        alike: dict[bytes, list[str]] = {}
        for prefix in sorted(prefixes, key=lambda one: int(one.rpartition(".")[2])):
            if taken.intersection(_prefixes(prefix)):
                continue
            alike.setdefault(_described(prefix, members[prefix], nodes), []).append(prefix)
        for own in alike.values():
            if len(own) > 1:
                found.append(
                    RepeatedBlocks(prefixes=tuple(own), nodes=tuple(tuple(members[one]) for one in own))
                )
                taken.update(own)
    return tuple(found)


def _prefixes(path: str) -> Iterator[str]:
    """The path of each module that a path leads through, itself among them."""
    words = path.split(".")
    for end in range(1, len(words) + 1):
        yield ".".join(words[:end])


def _described(prefix: str, members: Sequence[int], nodes: Sequence[OperatorNode]) -> bytes:
    """All that makes a block what it is."""
    places = {number: place for place, number in enumerate(members)}
    return msgspec.json.encode(
        [
            (
                node.op, node.arguments, node.shape, node.parts, node.dtype, node.phase, node.roles,
                node.module.removeprefix(prefix), node.source.removeprefix(prefix) if node.source else "",
                [places.get(one, (nodes[one].op == "parameter", nodes[one].shape)) for one in node.inputs],
            )
            for node in (nodes[number] for number in members)
        ]
    )  # fmt: skip
