"""Graphs of operators: the forward and backward pass of a captured step, with what each operator moves and computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import InputError

__all__ = ["CATEGORIES", "FusionGraph", "MemoryLayout", "Operator", "read_fusion_graph"]

CATEGORIES = ("pointwise", "view", "reduction", "matmul", "opaque")
"""Categories of operators for fusion; an opaque operator (random numbers, in-place writes, control flow) is never
fused."""


class MemoryLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Memory access pattern of an operator, which decides whether its loop is vectorised."""

    inner: int = 0
    """Length of the contiguous dimension; 0 if unknown."""
    reduced: int = 1
    """Number of values read per value written."""
    reduces_inner: bool = False
    """Whether it reduces that dimension."""
    strided: int = 0
    """Number of input tensors that are not contiguous along that dimension."""
    repeated: int = 0
    """Number of input tensors that are broadcast, with fewer values than the loop."""
    least_bytes: int = 4
    """Bytes of the smallest value that it reads or writes."""
    most_bytes: int = 4
    """Bytes of the largest value that it reads or writes."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of a captured step."""

    name: str
    """Unique name, of the FX node."""
    kind: str
    """Name of the operation, such as "aten.mul.Tensor"."""
    category: str
    """One of `CATEGORIES`."""
    inputs: tuple[int, ...] = ()
    """Indices of the operators that it reads, unique and below its own."""
    outside_bytes: int = 0
    """Bytes read from parameters and the batch instead of operators."""
    output_bytes: int
    elements: int = 0
    """Number of elements of the output."""
    flops: float = 0.0
    time_s: float = 0.0
    """Measured seconds of the operator alone; 0 if not measured."""
    layout: MemoryLayout = MemoryLayout()
    gradient: str = ""
    """Name of the parameter whose gradient the output is."""


class FusionGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The operators of a step in an order in which they can run."""

    operators: tuple[Operator, ...]
    model: str = ""
    device: str = ""

    @property
    def gradients(self) -> list[int]:
        """Indices of the operators whose outputs are gradients."""
        return [number for number, one in enumerate(self.operators) if one.gradient]

    def check_itself(self) -> None:
        """Raise if an edge is dangling or not topological, a name is not unique, or a value is out of range.

        Raises:
            InputError: An operator is invalid, which the message names, or none has a gradient.
        """
        if not self.gradients:
            raise InputError(
                f"none of {len(self.operators)} operators has a gradient - at `$.operators`; expected at least one"
            )
        names, gradients = set[str](), set[str]()
        for number, one in enumerate(self.operators):
            for fault in _faults(one, number, names, gradients):
                raise InputError(f"operator {one.name!r} - at `$.operators[{number}]`: {fault}")
            names.add(one.name)
            gradients.add(one.gradient)

    def to_json(self) -> str:
        """The graph as JSON text."""
        return msgspec.json.encode(self).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as JSON; `read_fusion_graph` reads it back equal."""
        Path(path).write_text(self.to_json() + "\n")


def read_fusion_graph(path: str | os.PathLike[str]) -> FusionGraph:
    """Read a graph from JSON.

    Raises:
        InputError: The file cannot be read or is not a sound graph; names the file and the place.
    """
    try:
        found = decode_json(Path(path).read_bytes(), FusionGraph)
        found.check_itself()
    except (OSError, msgspec.MsgspecError, InputError) as cause:
        raise InputError(
            f"cannot read operators from {os.fspath(path)}: {cause}; mend the file or capture the step again"
        ) from cause
    return found


def _faults(one: Operator, number: int, names: set[str], gradients: set[str]) -> Iterator[str]:
    if not one.name or one.name in names:
        yield "an empty name, or one that stands twice; expected each name once"
    if one.gradient and one.gradient in gradients:
        yield f"the gradient of {one.gradient!r} is another operator's already; expected one for each parameter"
    if one.category not in CATEGORIES:
        yield f"category is {one.category!r}; expected one of {', '.join(CATEGORIES)}"
    if len(set(one.inputs)) < len(one.inputs) or any(not 0 <= i < number for i in one.inputs):
        yield f"inputs are {list(one.inputs)}; expected numbers of earlier operators, 0 to {number - 1}, each once"
    values = {"outside_bytes": one.outside_bytes, "output_bytes": one.output_bytes, "elements": one.elements}
    for name, value in {**values, "flops": one.flops, "time_s": one.time_s}.items():
        if not isfinite(value) or value < 0:
            yield f"{name} is {value}; expected a finite figure of at least 0"
    layout = one.layout
    if layout.reduced < 1 or min(layout.inner, layout.strided, layout.repeated, layout.least_bytes) < 0:
        yield f"{layout} has values below their least; expected 1 of reduced and 0 of the others"
    if one.gradient and one.output_bytes < 1:
        yield f"output_bytes is {one.output_bytes}; expected at least 1 of a gradient"
