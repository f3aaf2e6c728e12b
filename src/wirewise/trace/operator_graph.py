"""Operator graphs of a whole training step, with shapes and arguments: input of parallel planners."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from math import isfinite, prod
from typing import Any, Literal

import msgspec

from wirewise.errors import InputError
from wirewise.trace.record_files import read_record, write_record
from wirewise.units import ITEM_BYTES

__all__ = [
    "BOUNDARY_OPS",
    "OperatorGraph",
    "OperatorNode",
    "RepeatedBlocks",
    "read_operator_graph",
    "write_operator_graph",
]

BOUNDARY_OPS = ("input", "parameter", "buffer", "constant", "output")
"""Kinds of nodes without computation: a tensor of the batch, of the model's state, a constant of the model's code, or
the end of the step."""


class OperatorNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Operator of a training step, or an input tensor."""

    name: str
    """Unique name, of the FX node."""
    op: str
    """ATen name such as "aten.mm.default", "getitem" for one output of an operator with several, "module.CLASS" and
    "module.CLASS.backward" for an opaque module, or one of `BOUNDARY_OPS`."""
    inputs: tuple[int, ...] = ()
    """Indices of the nodes that it reads, below its own, in the order of the arguments; lists are flattened."""
    roles: tuple[str, ...] = ()
    """Schema name of the argument that each input is passed as, [inputs]."""
    arguments: dict[str, Any] = {}
    """All other arguments by schema name, including defaults: numbers, sizes, dimensions, names of types. An omitted
    optional tensor is null. In a list of tensors and other entries, tensors are given as positions in `inputs`. For
    a getitem, `index`."""
    shape: tuple[int, ...] = ()
    """Shape of the output, or of the first of several."""
    dtype: str = "float32"
    """Type of the output's elements by torch's name."""
    parts: tuple[tuple[int, ...], ...] = ()
    """Shapes of all outputs of an operator with several, which getitem nodes take."""
    flops: float = 0.0
    """Floating-point operations of one run."""
    phase: Literal["forward", "backward"] = "forward"
    module: str = ""
    """Qualified name of the module whose forward pass computes it, or which owns the parameter; for a backward
    operator, that of its forward operator. Empty for the model itself, or the loss."""
    source: str = ""
    """Qualified name of a parameter or buffer, place of an input in the batch, or name of a constant."""
    time_s: float = 0.0
    """Seconds of one run on one device, alone; 0 until costs are filled in."""
    fixed_s: float = 0.0
    """Part of `time_s` that sharding the operator does not reduce, such as its launch."""

    def seconds(self, share: float) -> float:
        """Time of a fraction of the operator's work, in seconds."""
        return self.fixed_s + (self.time_s - self.fixed_s) * share

    @property
    def elements(self) -> int:
        """Number of elements of all outputs."""
        return sum(map(prod, self.parts or (self.shape,)))

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of the output."""
        return ITEM_BYTES[self.dtype]

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        return self.elements * self.item_bytes

    @property
    def computes(self) -> bool:
        """Whether the node is an operator that computes, not a boundary or a view of another's output."""
        return self.op not in (*BOUNDARY_OPS, "getitem")


class RepeatedBlocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Modules with the same forward and backward operators, except for the parameters that they read."""

    prefixes: tuple[str, ...]
    """Qualified names of the modules, in the order of the forward pass."""
    nodes: tuple[tuple[int, ...], ...]
    """Indices of the nodes of each module, including parameters and buffers, [modules, nodes]; entry i corresponds to
    entry i of the first module."""


class OperatorGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The operators of a training step, forward and backward, in an order in which they can run.

    Raises:
        InputError: A value is invalid; the message names the place.
    """

    nodes: tuple[OperatorNode, ...]
    """Inputs, parameters, buffers and operators in topological order; the last node is the output."""
    loss: int
    """Index of the node that computes the loss, a scalar."""
    gradients: dict[str, int]
    """Index of the node that computes the gradient of each trained parameter, by parameter name."""
    buffers: dict[str, int] = {}
    """Index of the node that computes the new value of each buffer that the step changes, by buffer name."""
    repeats: tuple[RepeatedBlocks, ...] = ()
    """Blocks that occur several times, outermost only and disjoint."""
    model: str = ""
    """Name of the model's class."""
    device: str = ""
    """Device for which the nodes' `time_s` holds; empty if no times are filled in."""
    notes: tuple[str, ...] = ()
    """Notes of the capture, such as opaque modules."""

    def __post_init__(self) -> None:
        for fault in (*self._node_faults(), *self._end_faults(), *self._repeat_faults()):
            raise InputError(fault)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the consumers of each node, ascending and unique, [nodes]."""
        found: list[dict[int, None]] = [{} for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in node.inputs:
                found[source][number] = None
        return tuple(map(tuple, found))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Index of each node, by name."""
        return {node.name: number for number, node in enumerate(self.nodes)}

    @cached_property
    def digest(self) -> str:
        """Digest of the computation, independent of times."""
        bare = [msgspec.structs.replace(node, time_s=0.0, fixed_s=0.0, flops=0.0) for node in self.nodes]
        what = (bare, self.loss, sorted(self.gradients.items()), sorted(self.buffers.items()))
        return hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:16]

    @cached_property
    def parameter_bytes(self) -> int:
        """Size of all parameters, in bytes."""
        return sum(node.output_bytes for node in self.nodes if node.op == "parameter")

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of the step."""
        return sum(node.flops for node in self.nodes)

    @cached_property
    def time_s(self) -> float:
        """Sequential time of the step on one device, in seconds."""
        return sum(node.time_s for node in self.nodes)

    def to_json(self) -> str:
        """The graph as JSON text."""
        return msgspec.json.encode(self).decode()

    def _node_faults(self) -> Iterator[str]:
        names: set[str] = set()
        for number, node in enumerate(self.nodes):
            where = f"node {node.name!r} - at `$.nodes[{number}]`"
            if not node.name or node.name in names:
                yield f"{where}: an empty name, or one that stands twice; expected each name once"
            names.add(node.name)
            if any(not 0 <= source < number for source in node.inputs):
                yield f"{where}: inputs are {list(node.inputs)}; expected numbers of earlier nodes, 0 to {number - 1}"
            if len(node.roles) != len(node.inputs):
                yield f"{where}: {len(node.roles)} roles for {len(node.inputs)} inputs; expected one for each"
            if any(size < 0 for shape in (node.shape, *node.parts) for size in shape):
                yield f"{where}: the shape is {list(node.shape)}; expected sizes of at least 0"
            if node.dtype not in ITEM_BYTES:
                yield f"{where}: dtype is {node.dtype!r}; expected one of: {', '.join(ITEM_BYTES)}"
            for name in ("flops", "time_s"):
                if not isfinite(getattr(node, name)) or getattr(node, name) < 0:
                    yield f"{where}: {name} is {getattr(node, name)}; expected a finite figure of at least 0"
            if not 0 <= node.fixed_s <= node.time_s:
                yield f"{where}: fixed_s is {node.fixed_s}; expected 0 to the {node.time_s} of time_s"

    def _end_faults(self) -> Iterator[str]:
        if not self.nodes or self.nodes[-1].op != "output":
            yield "the last of the nodes is no output - at `$.nodes`; expected one node `output`, the last"
        elif any(node.op == "output" for node in self.nodes[:-1]):
            yield "a node before the last is an output - at `$.nodes`; expected one node `output`, the last"
        if not self.gradients:
            yield "no parameter has a gradient - at `$.gradients`; expected at least one"
        ends = {"loss": self.loss}
        for kind in ("gradients", "buffers"):
            ends |= {f"{kind}[{name!r}]": number for name, number in getattr(self, kind).items()}
        for name, number in ends.items():
            if not 0 <= number < len(self.nodes) - 1:
                yield f"got node {number} - at `$.{name}`; expected a number from 0 to {len(self.nodes) - 2}"
        known = {node.source: node for node in self.nodes if node.op in ("parameter", "buffer")}
        ends_inside = range(len(self.nodes))
        for name, number in self.gradients.items():
            if number in ends_inside and (name not in known or known[name].shape != self.nodes[number].shape):
                yield (
                    f"node {self.nodes[number].name!r} - at `$.gradients[{name!r}]` - is not of the shape of a "
                    "parameter of that name; expected a gradient for each trained parameter"
                )

    def _repeat_faults(self) -> Iterator[str]:
        seen: set[int] = set()
        for number, one in enumerate(self.repeats):
            where = f"at `$.repeats[{number}]`"
            lengths = {len(nodes) for nodes in one.nodes}
            if len(one.nodes) != len(one.prefixes) or len(one.nodes) < 2 or len(lengths) > 1:
                yield f"{len(one.prefixes)} modules with {sorted(lengths)} nodes - {where}; expected as many of each"
                continue
            for nodes in one.nodes:
                if any(not 0 <= node < len(self.nodes) or node in seen for node in nodes):
                    yield f"a node that does not exist, or stands in two blocks - {where}; expected each node once"
                    return
                seen.update(nodes)
                for first, own in zip(one.nodes[0], nodes, strict=True):
                    if (self.nodes[first].op, self.nodes[first].shape) != (
                        self.nodes[own].op, self.nodes[own].shape,
                    ):  # fmt: skip
                        yield (
                            f"{self.nodes[own].name!r} is not what {self.nodes[first].name!r} is in the first block - "
                            f"{where}; expected equal operators and shapes"
                        )
                        return


def read_operator_graph(path: str | os.PathLike[str]) -> OperatorGraph:
    """Read a graph from JSON.

    Raises:
        InputError: The file cannot be read or is not a sound graph; names the file and the place.
    """
    return read_record(path, OperatorGraph, "a graph of operators")


def write_operator_graph(graph: OperatorGraph, path: str | os.PathLike[str]) -> None:
    """Write a graph as JSON; `read_operator_graph` reads it back equal.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    write_record(graph, path)
