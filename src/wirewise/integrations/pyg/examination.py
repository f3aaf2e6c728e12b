"""Check of a loss before its back-propagation: it can be weighted across ranks, or all ranks learn why not.

A fault of one rank must be raised on all of them, or the others would block. It is therefore kept as a code until the
gradients reach the first output, where the ranks compare their codes.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from wirewise.integrations.pyg.budget import CheckBudget
from wirewise.integrations.pyg.loss_graph import PLAIN, LossGraph, plain_edges
from wirewise.integrations.pyg.loss_rows import rows_mix
from wirewise.integrations.pyg.loss_signs import common_gradient_sum, signs_of
from wirewise.integrations.pyg.watch import CheckInterval

__all__ = ["FAULTS", "Examination", "examine"]

_MEAN = (
    "a plain loss is a mean over all own training nodes, times constants; make other losses from values of each node "
    "by job.mean(values, mask), job.sum(values, mask) or job.cross_entropy(logits, y, mask, weight=...), and functions "
    "of a mean from their results"
)
FAULTS = {
    1: "depends on outputs of nodes outside its train_mask, which a plain loss cannot weigh among ranks. Expected a "
    "mean over all own training nodes; make other losses from values of each node by job.mean(values, mask) or "
    "job.sum(values, mask)",
    2: "comes from a rank without training nodes and is not a number in its plain part; make every part of the loss by "
    "job.mean(values, mask) or job.sum(values, mask)",
    3: "reached the outputs without loss.backward(), by torch.autograd.backward or grad, a scripted function or a "
    "tensor that no torch function returned; expected loss.backward() of a loss that torch computed from the "
    "outputs or job.mean",
    4: f"is no mean over own training nodes; {_MEAN}",
    5: f"reads rows of the outputs other than each training node by itself; {_MEAN}",
    6: "reaches parameters or tensors that require a gradient and belong to no distributed model, so that their "
    "gradients would be those of one rank; distribute all modules in one call: model, head = "
    "job.distribute(model, head)",
    7: "is used with create_graph=True, whose second gradients would not be summed over ranks; expected backward() "
    "without it",
    8: "uses rows of another job, or of several jobs in one mean; expected a mean over the nodes of one job",
}
"""Faults of the loss of a rank, by the number that ranks exchange."""

_HALVES = 3
"""Random halves of a proof: a single repeated row is missed by one of them in two, by three in eight."""
_PHI = 0.618033988749895


class Examination:
    """Findings about a loss before its back-propagation, and measurements during it."""

    code, detail = 0, ""
    plain = 0.0
    """Weights of the means over training nodes, combined to one number that is equal on all ranks."""
    declared = 0.0
    """Weights of the results of `Job.mean` and `Job.sum`, combined likewise."""
    penalty = float("nan")
    """Value of the gradient of terms that use parameters and no outputs, if it was checked."""

    def __init__(self) -> None:
        self._outputs: list[Any] = []
        self._handles: list[Any] = []

    def note(self, code: int, detail: str = "") -> None:
        """Record the first fault."""
        if not self.code:
            self.code, self.detail = code, detail

    def assume_known(self, outputs: list[Any]) -> Examination:
        """Treat a loss as the known one of an earlier step, whose weights are not checked."""
        self.plain = self.declared = float("nan")
        self._tie(outputs)
        return self

    def _tie(self, outputs: list[Any]) -> None:
        self._outputs = outputs
        for output in outputs:
            output.examination = self

    def begin(self, graph: LossGraph) -> None:
        """Attach the outputs to this examination, and measure the weights of the means."""
        self._tie([output for _, output in graph.outputs])
        for number, term in enumerate(graph.terms):
            self._measure(term.node, "plain", term.scale * (1 + number * _PHI))
        for number, node in enumerate(graph.sums):
            self._measure(node, "declared", 1 + number * _PHI)

    def _measure(self, node: Any, name: str, factor: float) -> None:
        me = weakref.ref(self)

        def arrived(gradients: tuple[Tensor | None, ...]) -> None:
            examination, gradient = me(), gradients[0]
            if examination is not None and gradient is not None:
                weight = float(gradient.detach().double().mean()) * factor
                setattr(examination, name, getattr(examination, name) + weight)

        self._handles.append(node.register_prehook(arrived))

    def leave(self, error: Exception) -> None:
        """Notify the other ranks that this one aborted its backward pass with an error."""
        for transport in {id(t): t for t in (output.contract.transport for output in self._outputs)}.values():
            transport.leave(error, "the back-propagation of the loss")

    def end(self) -> None:
        """Detach the outputs, so that the next backward pass is examined again."""
        for handle in self._handles:
            handle.remove()
        for output in self._outputs:
            output.examination = None
        self._handles, self._outputs = [], []


def examine(loss: Tensor, *, create_graph: bool = False, mixes: str = "") -> Examination:
    """Examine the graph of a loss; call `end` after the back-propagation.

    Args:
        loss: Scalar to back-propagate.
        create_graph: Whether second-order gradients are requested.
        mixes: Function that combined own rows of an output without gradient, if the loss depends on its result.
    """
    root = loss.grad_fn
    if root is None:
        return Examination()
    plainly = not create_graph and not mixes
    # Without a walk to the outputs: one node of autograd takes some 10 microseconds in Python, once an epoch.
    if plainly and (opened := common_gradient_sum()) is not None and opened.matches_known(root):
        return opened.trusted.assume_known(opened.outputs())
    path = signs_of(root) if plainly else None
    if path is not None and path[0].gradients.knows(root, path[1]):
        return path[0].gradients.trusted.assume_known(path[0].gradients.outputs())
    budget = path[0].gradients.budget if path else CheckBudget()
    with budget.spending():
        found, graph = Examination(), LossGraph.of(root)
        if not graph.outputs:
            return found
        if create_graph:
            found.note(7)
        if mixes:
            found.note(5, f"depends on {mixes}() over own rows of an output without gradient, as by detach()")
        _visit(graph, root, found)
    gradients = graph.outputs[0][1].gradients
    with gradients.budget.exclude():
        _prove(graph, found)
    # Another bundle's outputs are not among its opened ones.
    only = {output for _, output in graph.outputs} == set(gradients.outputs())
    gradients.known_loss = gradients.signs_of(root, path[1]) if path and only and not found.code else None
    return found


def _visit(graph: LossGraph, root: Any, found: Examination) -> None:
    """Find out whether the loss can be weighed, and measure weights as its gradients flow."""
    if graph.unknown:
        shapes = ", ".join(str(list(v.shape)) for v in graph.unknown[:4])
        found.note(6, f"{len(graph.unknown)} of them, of shapes {shapes}")
    contracts = {id(output.contract): output.contract for _, output in graph.outputs}
    if graph.reaches[root] & PLAIN and all(contract.trains for contract in contracts.values()):
        _decompose(graph, root, found, list(contracts.values()))
    if graph.known and graph.outputs[0][1].gradients.penalty_recheck.due(tuple(graph.names)):
        found.penalty = _penalty(graph, root)
    found.begin(graph)


def _penalty(graph: LossGraph, root: Any) -> float:
    """A number of the gradient of penalties, equal on all ranks if they depend on parameters alone."""
    edges = [GradientEdge(node, place) for node, place in graph.penalties(root)]
    if not edges:
        return 0.0
    sent = [
        torch.ones(e.node._input_metadata[e.output_nr].shape, dtype=e.node._input_metadata[e.output_nr].dtype)
        for e in edges
    ]
    parameters = list({id(p): p for p in graph.known}.values())
    grads = torch.autograd.grad(edges, parameters, sent, retain_graph=True, allow_unused=True)
    flat = [g.detach().double().flatten() for g in grads if g is not None]
    return sum(
        float(g @ torch.arange(len(g), dtype=torch.float64).cos()) * (1 + n * _PHI)
        for n, g in enumerate(flat)
    )


def _decompose(graph: LossGraph, root: Any, found: Examination, contracts: list[Any]) -> None:
    if len({contract.count for contract in contracts}) > 1:
        found.note(8)
        return
    contract = contracts[0]
    graph.decompose(root, contract.count, len(contract.train_mask))
    if graph.fault:
        found.note(4, graph.fault)


def _prove(graph: LossGraph, found: Examination) -> None:
    """Prove now and then that means read rows by themselves."""
    recheck: CheckInterval = graph.outputs[0][1].gradients.loss_recheck
    if graph.terms and not found.code and recheck.due(tuple(graph.names)):
        for turn in range(_HALVES):
            if fault := _mixing(graph, recheck.calls + turn):
                found.note(5, fault)


def _mixing(graph: LossGraph, seed: int) -> str:
    """The reason for which a mean, or what feeds another model, mixes rows."""
    for term in graph.terms:
        outputs = LossGraph.of(term.node).outputs
        if _feeds_another(outputs):
            return "reads outputs of a model and of the model that they feed in one mean"
        allowed = outputs[0][1].contract.train_mask
        edges = list(plain_edges(term, graph.reaches))
        fault = rows_mix(edges, term.rows, [node for node, _ in outputs], allowed, seed)
        if fault:
            return fault
    return _fed_mixing(graph, seed)


def _feeds_another(outputs: list[Any]) -> bool:
    """Whether a gradient of some outputs would go through others of them, whose models would exchange rows."""
    read, left = {id(output) for _, output in outputs}, [output for _, output in outputs]
    while left:
        for node in left.pop().fed_by:
            below = [output for _, output in LossGraph.of(node).outputs]
            if any(id(output) in read for output in below):
                return True
            left += below
    return False


def _fed_mixing(graph: LossGraph, seed: int) -> str:
    for _, output in graph.outputs:
        for node in output.fed_by:
            between = LossGraph.of(node)
            nodes = [inner for inner, _ in between.outputs]
            everything = output.contract.train_mask.new_ones(len(output.rows))
            edges = [edge for edge in node.next_functions if edge[0] is not None]
            fault = rows_mix(edges, len(output.rows), nodes, everything, seed) or _fed_mixing(between, seed)
            if fault:
                return f"(between two distributed models) {fault}"
    return ""
