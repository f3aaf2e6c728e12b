"""Random graphs of operators for tests and benchmarks of the search."""

from __future__ import annotations

import numpy as np

from wirewise.errors import InputError
from wirewise.sim.region_costs import Roofline
from wirewise.trace.operators import FusionGraph, Operator

__all__ = ["DEVICE", "random_graph", "random_step"]

DEVICE = Roofline(launch_s=5e-6, s_per_flop=2e-11, s_per_byte=1e-10)
"""A core of a processor: 50 GFLOP/s, 10 GB/s."""

_KINDS = {
    "pointwise": "aten.mul.Tensor",
    "reduction": "aten.sum.dim_IntList",
    "matmul": "aten.mm.default",
    "opaque": "aten.native_dropout.default",
    "view": "aten.view.default",
}


def random_graph(seed: int, operators: int = 8, gradients: int = 3) -> FusionGraph:
    """A small graph without any order of layers: each operator reads one or two random earlier ones.

    Raises:
        InputError: More gradients than operators, or none.
    """
    if not 1 <= gradients <= operators:
        raise InputError(f"got {gradients} gradients of {operators} operators; expected 1 to all of them")
    random, made = np.random.default_rng([seed, operators, gradients]), _Maker()
    last = set(random.choice(operators, gradients, replace=False).tolist())
    for number in range(operators):
        count = min(number, int(random.integers(1, 3)))
        inputs = random.choice(number, count, replace=False).tolist() if number else []
        category = str(
            random.choice(["pointwise", "reduction", "matmul", "opaque"], p=[0.7, 0.15, 0.1, 0.05])
        )
        elements = int(10 ** random.uniform(3.5, 5.5))
        made.add(category, inputs, elements, gradient=f"p{number}" if number in last else "")
    return FusionGraph(operators=tuple(made.operators), model=f"random-{seed}")


def random_step(seed: int, layers: int = 20) -> FusionGraph:
    """Forward and backward pass of layers: a matmul with a bias, pointwise operators, sums, and some short-cuts.

    About 20 operators and two gradients a layer.
    """
    random, made = np.random.default_rng([seed, layers]), _Maker()
    widths = (2 ** random.integers(5, 9, layers)).tolist()
    rows = int(2 ** random.integers(5, 8))
    value = made.add("pointwise", [], rows * widths[0])
    # What each forward operator needs backwards: category, elements, what it read.
    tape: list[tuple[str, int, list[int]]] = []
    earlier = value
    for layer, width in enumerate(widths):
        tape.append((f"matmul {layer}", rows * width, [value]))
        value = made.add("matmul", [value], rows * width, weights=widths[max(layer - 1, 0)] * width)
        for _ in range(int(random.integers(3, 8))):
            category = "reduction" if random.random() < 0.15 else "pointwise"
            inputs = [value, earlier] if random.random() < 0.2 and earlier != value else [value]
            tape.append((category, rows * width, inputs))
            value = made.add("pointwise", inputs, rows * width)
            if category == "reduction":
                value = made.add("pointwise", [value, made.add("reduction", [value], rows)], rows * width)
        earlier = value
    _backward(made, tape, widths, made.add("reduction", [value], 1))
    return FusionGraph(operators=tuple(made.operators), model=f"random-step-{seed}")


def _backward(made: _Maker, tape: list[tuple[str, int, list[int]]], widths: list[int], loss: int) -> None:
    upstream = loss
    for category, elements, inputs in reversed(tape):
        if not category.startswith("matmul"):
            saved = [i for i in inputs if i != upstream]
            if category == "reduction":
                saved.append(made.add("reduction", [upstream], max(elements // 32, 1)))
            upstream = made.add("pointwise", [upstream, *saved], elements)
            continue
        layer = int(category.split()[1])
        weights = widths[max(layer - 1, 0)] * widths[layer]
        made.add("reduction", [upstream], widths[layer], gradient=f"{layer}.bias")
        flat = made.add("view", [upstream], elements)
        made.add(
            "matmul",
            [flat, *inputs],
            weights,
            gradient=f"{layer}.weight",
            flops=2.0 * elements * widths[layer],
        )
        upstream = made.add("matmul", [upstream], elements, weights=weights)


class _Maker:
    """Operators so far."""

    def __init__(self) -> None:
        self.operators = list[Operator]()

    def add(
        self,
        category: str,
        inputs: list[int],
        elements: int,
        *,
        weights: int = 0,
        gradient: str = "",
        flops: float = 0.0,
    ) -> int:
        """The number of a new operator; it computes one or two operations an element, a matmul 256."""
        read = max([elements, *(self.operators[i].elements for i in inputs)])
        number = len(self.operators)
        self.operators.append(
            Operator(
                name=f"{category}_{number}",
                kind=_KINDS[category],
                category=category,
                inputs=tuple(inputs),
                outside_bytes=4 * weights,
                output_bytes=4 * elements,
                elements=elements,
                flops=flops or {"matmul": 256.0 * elements, "view": 0.0}.get(category, float(read)),
                gradient=gradient,
            )
        )
        return number
