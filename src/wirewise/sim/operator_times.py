"""Operator times from device figures: launch overhead plus the larger of compute and memory time."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wirewise.errors import InputError
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["DEVICES", "VIEW_OPS", "DeviceFigures", "moves_nothing", "roofline_times"]

_REACHED = 0.7
"""Fraction of published peaks that is counted with, as AutoParallel does."""
VIEW_OPS = frozenset(
    f"aten.{name}"
    for name in "view.default _unsafe_view.default t.default transpose.int permute.default unsqueeze.default "
    "squeeze.dim squeeze.dims squeeze.default expand.default slice.Tensor select.int split.Tensor "
    "split_with_sizes.default chunk.default unbind.int alias.default detach.default as_strided.default "
    "diagonal.default unfold.default".split()
)
"""Operators whose output is a view of an input."""


class DeviceFigures(NamedTuple):
    """Achieved speeds of a device."""

    flops_per_s: float
    """FLOP/s on elements of 4 bytes and more."""
    half_flops_per_s: float
    """FLOP/s on elements of 2 bytes and less."""
    bytes_per_s: float
    """Memory bandwidth, in bytes per second."""
    launch_s: float = 7e-6
    """Seconds of the smallest operator."""

    def seconds(self, flops: float, moved_bytes: float, item_bytes: int) -> float:
        """Time of an operator, in seconds."""
        rate = self.flops_per_s if item_bytes > 2 else self.half_flops_per_s
        return max(self.launch_s, flops / rate, moved_bytes / self.bytes_per_s)


DEVICES = {
    name: DeviceFigures(*(_REACHED * figure for figure in figures))
    for name, figures in {
        "v100": (15.7e12, 125e12, 0.9e12),
        "a100": (19.5e12, 312e12, 2.04e12),
        "h100": (67e12, 989e12, 3.35e12),
    }.items()
}
"""Devices by name: 70 % of the peaks that NVIDIA publishes for V100-SXM2, A100-SXM4-80GB and H100-SXM5."""


def moves_nothing(node: OperatorNode) -> bool:
    """Whether a node is a view, a part of an output, or no operator."""
    return not node.computes or node.op in VIEW_OPS


def roofline_times(graph: OperatorGraph, device: str | DeviceFigures) -> OperatorGraph:
    """Set the operator times of a graph by a roofline model of a device.

    Args:
        graph: Training step to time.
        device: One of `DEVICES`, or its figures.

    Raises:
        InputError: No device has that name.
    """
    if isinstance(device, str):
        if device not in DEVICES:
            raise InputError(f"unknown device {device!r}; expected one of: {', '.join(DEVICES)}")
        figures, name = DEVICES[device], device
    else:
        figures, name = device, "figures"
    nodes = []
    for node in graph.nodes:
        nothing = moves_nothing(node)
        seconds, fixed = (0.0, 0.0) if nothing else (_seconds(graph, node, figures), figures.launch_s)
        nodes.append(msgspec.structs.replace(node, time_s=seconds, fixed_s=fixed))
    return msgspec.structs.replace(graph, nodes=tuple(nodes), device=name)


def _seconds(graph: OperatorGraph, node: OperatorNode, figures: DeviceFigures) -> float:
    moved = node.output_bytes + sum(graph.nodes[one].output_bytes for one in node.inputs)
    return figures.seconds(node.flops, moved, node.item_bytes)
