"""Mixture-of-experts dispatch: rows that each microbatch sorts by expert and restores separately.

A sort of rows needs the whole batch, and its result has another order in microbatches. Its use does not: rows are
gathered in this order, computed independently or with the weights of their expert, and scattered back or summed. A
tensor in such an order is therefore tracked as rows in that order. It may be combined only with rows of the same
order, and leaves the order by its inverse or by sums over all rows. Row counts, which differ between microbatches and
the batch, may only be used to gather and scatter rows of the microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from wirewise.errors import PlanError
from wirewise.planners.parallel.rhino.layouts import PARTIAL, REPLICATED
from wirewise.planners.parallel.rhino.loop_records import operator_name
from wirewise.planners.parallel.rhino.loops import FACTORIES, VIEWS
from wirewise.plans.parallel import DimPlacement
from wirewise.trace.operator_graph import OperatorGraph, OperatorNode

__all__ = ["Dispatch", "Order"]

ROWS = DimPlacement("S", 0)
_COPIES = ("_to_copy", "clone", "alias", "detach")
_PICKS = ("index", "index_select")
_PUTS = ("index_put", "index_add", "scatter_add", "scatter")
_PRODUCTS = {
    "transformers.grouped_mm_fallback.default": ("input", "weight", "offs"),
    "transformers.grouped_mm_fallback_backward.default": ("input", "weight", "offs", "grad_output"),
    "_grouped_mm": ("self", "mat2", "offs"),
}
"""Products of rows with the weights of their expert, with the roles of their inputs."""


class Order(NamedTuple):
    """Role of a tensor in the order produced by a sort."""

    sort: int
    """Index of the sort or of a numbering; for counts, the node that computed the keys."""
    kind: Literal["rows", "numbers", "places", "counts"]
    """Role: rows in the order; numbers of rows in the order; positions in the order of each row; rows of each
    expert."""
    divisor: int = 1
    """Number of copies of each selected row, by which indices were divided."""


Orders = tuple["Order | None", ...]


class Dispatch:
    """Orders of the nodes of a step, found in one pass over the graph.

    Args:
        graph: Step of the whole batch.
        count: Number of microbatches.
    """

    def __init__(self, graph: OperatorGraph, count: int) -> None:
        self.graph, self.count = graph, count
        self._orders: dict[int, Orders] = {}
        self._numberings = self._of_rows()

    def _of_rows(self) -> set[int]:
        """Numbers from 0 that are put by an order, and nothing else: those of a microbatch's rows."""
        users: dict[int, list[int]] = {}
        for number, node in enumerate(self.graph.nodes):
            for source in node.inputs:
                users.setdefault(source, []).append(number)
        return {
            number
            for number, node in enumerate(self.graph.nodes)
            if operator_name(node) == "arange" and not node.inputs and _from_zero(node) and users.get(number)
            if all(self._puts_values(self.graph.nodes[user], number) for user in users[number])
        }

    def _puts_values(self, node: OperatorNode, number: int) -> bool:
        inputs = _by_role(node)
        values = inputs.get("values", inputs.get("src"))
        return operator_name(node) in ("index_put", "scatter") and values == number

    def order_of(self, number: int) -> Order | None:
        """Order of a node's first output. None if it is in batch order."""
        return self._orders.get(number, (None,))[0]

    def touches(self, node: OperatorNode) -> bool:
        """Whether some input has a role in an order."""
        return any(self.order_of(i) for i in node.inputs)

    def part(self, number: int, source: int, index: int) -> None:
        """Record which output of another node a node reads."""
        orders = self._orders.get(source, ())
        if index < len(orders) and orders[index] is not None:
            self._orders[number] = (orders[index],)

    def placed(
        self, number: int, node: OperatorNode, available: Sequence[DimPlacement], grounded: bool
    ) -> tuple[DimPlacement, ...] | None:
        """Placements of a node that creates, uses or ends an order. None for other nodes."""
        found = self._sorted(number, node, available, grounded) or self._used(node, available)
        if found is None:
            return None
        placements, orders = found
        if any(orders):
            self._orders[number] = orders
        return placements

    def _sorted(
        self, number: int, node: OperatorNode, given: Sequence[DimPlacement], grounded: bool
    ) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        if number in self._numberings and node.shape[0] % self.count == 0:
            return (ROWS,), (Order(number, "numbers"),)
        if operator_name(node) != "sort" or len(node.parts[0]) != 1:
            return None
        order = self.order_of(node.inputs[0])
        if order is not None and order.kind == "numbers" and order.divisor == 1:
            # The sort of an order is its inverse; the sorted numbers are those of a microbatch, and unlike the batch's.
            descending = bool(node.arguments.get("descending"))
            return (
                None
                if descending
                else ((ROWS, ROWS), (Order(number, "numbers"), order._replace(kind="places")))
            )
        if order is not None or grounded or given[0] != ROWS:
            return None
        return (ROWS, ROWS), (Order(number, "rows"), Order(number, "numbers"))

    def _used(
        self, node: OperatorNode, given: Sequence[DimPlacement]
    ) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        name, inputs = operator_name(node), _by_role(node)
        placed = dict(zip(node.inputs, given, strict=True))
        if name == "histc" and given[0] == ROWS and len(self.graph.nodes[node.inputs[0]].shape) == 1:
            return self._counted(node)
        if not self.touches(node):
            return None
        first = self.order_of(node.inputs[0])
        if first is not None and len(node.inputs) == 1:
            return self._of_one(node, first)
        if name in _PICKS and set(inputs) == {"self", _index_role(node)}:
            return self._picked(inputs["self"], inputs[_index_role(node)], placed)
        if name in _PUTS:
            return self._put(node, inputs, placed)
        if name in _PRODUCTS and all(role in _PRODUCTS[name] for role in node.roles):
            return self._multiplied(node, inputs, placed)
        return None

    def _counted(self, node: OperatorNode) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        """Rows of each expert, by keys of which none is below the first bin; bins do not depend on the values."""
        order, keys = self.order_of(node.inputs[0]), self._keys(node.inputs[0])
        low, high = (float(node.arguments.get(name) or 0.0) for name in ("min", "max"))
        if low or high <= low or (order is not None and order.kind != "rows") or not self._not_negative(keys):
            return None
        return (PARTIAL,), (Order(keys, "counts"),)

    def _keys(self, number: int) -> int:
        """The node that made keys, which others copied, sorted or picked in order."""
        while True:
            node, order = self.graph.nodes[number], self.order_of(number)
            name = operator_name(node)
            sorted_ = node.op == "getitem" and order is not None and node.inputs[0] == order.sort
            picked = name in _PICKS and order is not None and order.kind == "rows"
            if sorted_:
                number = self.graph.nodes[node.inputs[0]].inputs[0]
            elif name in (*VIEWS, *_COPIES) or picked:
                number = node.inputs[0]
            else:
                return number

    def _not_negative(self, number: int) -> bool:
        """Whether a node's values are known to be numbers of places, from 0."""
        node = self.graph.nodes[number]
        if node.op == "getitem" and int(node.arguments.get("index", 0)) == 1:
            return operator_name(self.graph.nodes[node.inputs[0]]) in ("topk", "sort", "max", "min")
        return operator_name(node) in ("argmax", "argmin")

    def _of_one(self, node: OperatorNode, order: Order) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        name = operator_name(node)
        if order.kind == "counts":
            keeps = name == "_to_copy" or (name == "cumsum" and len(node.shape) == 1)
            return ((PARTIAL,), (order,)) if keeps else None
        if order.kind != "numbers":
            return None
        if name in _COPIES:
            return (ROWS,), (order,)
        divisor = node.arguments.get("other")
        down = name == "floor_divide" or node.arguments.get("rounding_mode") == "floor"
        if not isinstance(divisor, int) or divisor < 1 or order.divisor > 1:
            return None
        if node.shape[0] % (divisor * self.count):
            return None
        if name in ("floor_divide", "div") and down:
            return (ROWS,), (order._replace(divisor=divisor),)
        # Which copy of a row it is: the same in a microbatch, whose rows have all of their copies.
        return ((ROWS,), (order._replace(kind="rows"),)) if name == "remainder" else None

    def _picked(
        self, source: int, index: int, placed: dict[int, DimPlacement]
    ) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        own, order = self.order_of(source), self.order_of(index)
        if order is None or placed[source] != ROWS or len(self.graph.nodes[index].shape) != 1:
            return None
        if own is None and order.kind == "numbers" and self._has_rows(source, index, order):
            return (ROWS,), (order._replace(kind="rows", divisor=1),)
        if own == order._replace(kind="rows") and order.kind == "places":
            return (ROWS,), (None,)
        return None

    def _has_rows(self, source: int, index: int, order: Order) -> bool:
        """Whether a tensor has a row for each number of an order."""
        return self.graph.nodes[source].shape[0] * order.divisor == self.graph.nodes[index].shape[0]

    def _put(
        self, node: OperatorNode, inputs: dict[str, int], placed: dict[int, DimPlacement]
    ) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        """Rows put to where numbers or places tell, into equal elements."""
        name = operator_name(node)
        index = inputs.get(_index_role(node))
        values = inputs.get("values", inputs.get("source", inputs.get("src")))
        to = inputs.get("self")
        if index is None or values is None or to is None or int(node.arguments.get("dim", 0)) != 0:
            return None
        order, own = self.order_of(index), self.order_of(values)
        fills = operator_name(self.graph.nodes[to]) in FACTORIES and self.order_of(to) is None
        adds = name in ("index_add", "scatter_add") or bool(node.arguments.get("accumulate"))
        if order is None or not fills or placed[values] != ROWS or len(self.graph.nodes[index].shape) != 1:
            return None
        if order.kind == "numbers" and self._has_rows(to, index, order):
            if values in self._numberings and not adds and order.divisor == 1:
                return (ROWS,), (order._replace(kind="places"),)
            if own == order._replace(kind="rows", divisor=1) and (adds or order.divisor == 1):
                return (ROWS,), (None,)
        if order.kind == "places" and own is None and values not in self._numberings:
            if self._has_rows(to, index, order):
                return (ROWS,), (order._replace(kind="rows"),)
        return None

    def _multiplied(
        self, node: OperatorNode, inputs: dict[str, int], placed: dict[int, DimPlacement]
    ) -> tuple[tuple[DimPlacement, ...], Orders] | None:
        first, second, ends = _PRODUCTS[operator_name(node)][:3]
        if not {first, second, ends} <= inputs.keys():
            return None
        order, counts = self.order_of(inputs[first]), self.order_of(inputs[ends])
        if order is None or order.kind != "rows" or counts is None or counts.kind != "counts":
            return None
        sort = self.graph.nodes[order.sort]
        if counts.sort != self._keys(sort.inputs[0]) or sort.arguments.get("descending"):
            return None
        if "grad_output" in inputs:
            back = self.order_of(inputs["grad_output"]) == order and placed[inputs["grad_output"]] == ROWS
            alone = back and placed[inputs[first]] == ROWS and placed[inputs[second]] == REPLICATED
            return ((ROWS, PARTIAL), (order, None)) if alone else None
        if placed[inputs[first]] == ROWS and placed[inputs[second]] == REPLICATED:
            return (ROWS,), (order,)
        # Of rows with rows: a sum for each expert.
        both = placed[inputs[first]] == DimPlacement("S", 1) and placed[inputs[second]] == ROWS
        return ((PARTIAL,), (None,)) if both and self.order_of(inputs[second]) == order else None

    def follow(
        self,
        number: int,
        node: OperatorNode,
        needs: Sequence[DimPlacement],
        produced: Sequence[DimPlacement],
        available: Sequence[DimPlacement],
    ) -> None:
        """Propagate the order through an operator on ordered rows.

        Args:
            number: Index of the node.
            node: Node with some input in an order.
            needs: Placements of its inputs as required.
            produced: Placements of its outputs.
            available: Placements of its inputs as available.

        Raises:
            PlanError: Rows of one order meet others, or row counts are used in arithmetic.
        """
        if operator_name(node) in FACTORIES:
            return
        orders = {order for i in node.inputs if (order := self.order_of(i)) is not None}
        rows = next(iter(orders))
        alone = len(orders) == 1 and rows.kind == "rows"
        for source, need, own in zip(node.inputs, needs, available, strict=True):
            equal = operator_name(self.graph.nodes[source]) in FACTORIES
            if need.kind == "S" and self.order_of(source) is None and not equal:
                alone = False
            if need.kind == "S" and own.kind != "S" and not equal:
                alone = False
        outputs = node.parts or (node.shape,)
        first = self.graph.nodes[rows.sort]
        length = (first.parts or (first.shape,))[0][0] if alone else 0
        for one, shape in zip(produced, outputs, strict=True):
            if one.kind == "S" and (one.factor != 1 or shape[one.dim] != length):
                alone = False
        if not alone:
            raise PlanError(
                f"{node.name} ({node.op}) of module {node.module!r} computes with the order of rows by {first.name} "
                f"({first.op}): {self.count} microbatches would train another model than the batch; expected one "
                "microbatch, or rows that are computed each for itself until they are put back"
            )
        self._orders[number] = tuple(rows if one.kind == "S" else None for one in produced)


def _by_role(node: OperatorNode) -> dict[str, int]:
    return dict(zip(node.roles, node.inputs, strict=False)) if len(set(node.roles)) == len(node.roles) else {}


def _index_role(node: OperatorNode) -> str:
    return next((role for role in node.roles if role.startswith("ind")), "")


def _from_zero(node: OperatorNode) -> bool:
    starts, step = node.arguments.get("start") or 0, node.arguments.get("step") or 1
    return starts == 0 and step == 1
