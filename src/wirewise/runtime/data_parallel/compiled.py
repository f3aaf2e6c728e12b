"""Training step executed under a plan: regions as compiled kernels, all-reduces in the middle of the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch._inductor
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.capture import Capture, Loss, capture
from wirewise.runtime.data_parallel.changes import compiler_obstacle
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.exchanges import AllReduces
from wirewise.runtime.data_parallel.matching import (
    check_agreement,
    check_capturable,
    check_ranks,
    parameters_of,
)
from wirewise.runtime.data_parallel.regions import Segment, cut, module_of
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["CompiledStep", "Compiler", "Rest", "compile_step"]

Compiler = Literal["inductor", "none"]
Rest = Literal["eager", "compiled"]

_ATEN = torch.ops.aten


def compile_step(
    model: nn.Module,
    loss: Loss,
    example_batch: Any,
    plan: FusionPlan,
    process_group: dist.ProcessGroup | Transport | None = None,
    *,
    compiler: Compiler = "inductor",
    rest: Rest = "eager",
    collective: Callable[[Tensor], None] | None = None,
    broadcast_buffers: bool = True,
    timeout_s: float = 120.0,
    store: Any = None,
) -> CompiledStep:
    """Compile a training step as one graph, fused and reduced under the plan (DisCo, TPDS 2022).

    Parameters and buffers become those of rank 0. The loop calls `loss = step(batch)`, then `optimizer.step()`.
    `parallel(model, plan, optimizer, step=...)` offers it beside all other plans.

    Args:
        model: Model whose parameters are named by the plan's buckets. Its mode (`train`, `eval`) is fixed.
        loss: Function `loss(model, batch)` that returns a scalar, from tensors of both alone.
        example_batch: Nested tensors; all batches must have their shapes.
        plan: Plan that is the same on all ranks. Its regions name operators of `capture` of the same arguments.
        process_group: Process group of gloo or NCCL. Defaults to the default group.
        compiler: Compiler of regions with several operators: "inductor", or "none" to run them one by one.
        rest: Execution of operators outside regions: "eager", one by one, or "compiled" up to the next region,
            all-reduce or uncompilable operator, such as random ones.
        collective: Function that sums a flat tensor over all ranks in place, instead of the group's all-reduce.
        broadcast_buffers: Whether to broadcast buffers from rank 0 at every step, as in DistributedDataParallel.
        timeout_s: Timeout of a bucket, in seconds. An NCCL group has its own timeout.
        store: Torch store shared by all ranks, for a group that is not the default one.

    Raises:
        InputError: The step cannot be captured.
        PlanError: The plan does not fit the model, the graph or the group, or makes decisions that a captured step
            cannot execute.
        PeerError: A peer is gone.
    """
    if compiler not in get_args(Compiler) or rest not in get_args(Rest):
        raise InputError(
            f"got compiler={compiler!r} and rest={rest!r}; expected {get_args(Compiler)} and {get_args(Rest)}"
        )
    plan.check_itself()
    check_capturable(plan)
    transport = transport_of(process_group, timeout_s=timeout_s, store=store)
    check_ranks(plan, transport.world_size)
    check_agreement(transport, model, plan, Compression())
    transport.broadcast(dict([*model.named_parameters(), *model.named_buffers()]))
    captured = capture(model, loss, example_batch)
    return CompiledStep(
        model, captured, plan, AllReduces(transport, collective), compiler, rest, broadcast_buffers
    )


@dataclass(frozen=True)
class _Flat:
    """The mean of gradients of one bucket and one type, one behind the other."""

    bucket: int
    nodes: tuple[fx.Node, ...]
    """Operators that make it, the last one gives it."""
    parameters: tuple[str, ...]

    @property
    def node(self) -> fx.Node:
        return self.nodes[-1]


@dataclass(frozen=True)
class _Call:
    """A part as it runs; values are known by number."""

    function: Callable[..., Sequence[Tensor]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]
    launches: tuple[int, ...]
    """Buckets that can travel once the part has run."""


class CompiledStep:
    """Result of `compile_step`: `loss = step(batch)`; gradients are then the mean over all ranks.

    Gradients replace those of the previous step; they do not accumulate.
    """

    def __init__(
        self,
        model: nn.Module,
        captured: Capture,
        plan: FusionPlan,
        reduces: AllReduces,
        compiler: Compiler,
        rest: Rest,
        broadcast_buffers: bool,
    ) -> None:
        self.model, self.plan, self.captured = model, plan, captured
        self.transport, self._reduces = reduces.transport, reduces
        self.fallbacks: dict[str, str] = {}
        """Why parts run operator by operator though the compiler was to make them, by their first operator."""
        self._mode = model.training
        self._broadcast_buffers = broadcast_buffers
        self._named = dict(model.named_parameters())
        self._flats = _flatten(captured, self._buckets(), self.transport.world_size)
        parts = cut(captured.module, plan.regions, [flat.nodes for flat in self._flats])
        functions = self._functions(parts, compiler, rest)
        self._number: dict[fx.Node, int] = {}
        self._constants: dict[int, Tensor] = {}
        self._number_values(parts)
        self._calls = self._program(parts, functions)
        (end,) = captured.module.graph.find_nodes(op="output")
        *self._changed, self._loss = [self._number[node] for node in end.args[0][: len(captured.changed) + 1]]

    def _buckets(self) -> list[list[str]]:
        """A shared parameter goes by its first name in the graph, and by any in the plan."""
        name = {p: name for name, p in self._named.items()}
        return [[name[p] for p in bucket.values()] for bucket in parameters_of(self.model, self.plan)]

    def supports_mode(self, model: nn.Module) -> bool:
        """Whether a model is in the mode (`train` or `eval`) in which the step was captured."""
        return model.training == self._mode

    def __call__(self, batch: Any) -> Tensor:
        """Run the step; returns the loss of this rank's batch, detached.

        Raises:
            InputError: The batch has other shapes than the example, or the model is in another mode.
            PeerError: A peer is gone.
        """
        if not self.supports_mode(self.model):
            raise InputError(
                f"the step was captured with model.training={self._mode}, which is {self.model.training} now; call "
                "model.train() or model.eval() before it, or make another step"
            )
        if self._broadcast_buffers:
            buffers = dict(self.model.named_buffers())
            self.transport.broadcast(buffers, "the broadcast of the buffers", compared=True)
        # No input asks for gradients, so autograd records nothing. Its mode stays on: oneDNN's recurrent layer
        # keeps what its backward operator reads only then.
        with torch.enable_grad():
            return self._run(self.captured.inputs(self.model, batch))

    def _run(self, inputs: list[Tensor]) -> Tensor:
        values: list[Any] = [*inputs, *[None] * (len(self._number) - len(inputs))]
        for number, constant in self._constants.items():
            values[number] = constant
        self._reduces.forget()
        for call in self._calls:
            given = call.function(*[values[i] for i in call.inputs])
            for number, value in zip(call.outputs, given, strict=True):
                values[number] = value
            for number in call.dead:
                values[number] = None
            for bucket in call.launches:
                self._launch(bucket, values)
        self._store(values)
        self._reduces.wait()
        return values[self._loss]

    def _launch(self, bucket: int, values: Sequence[Any]) -> None:
        for flat in self._flats:
            if flat.bucket == bucket and self.transport.world_size > 1:
                pieces = values[self._number[flat.node]].tensor_split(self.plan.buckets[bucket].chunks)
                for piece in pieces:
                    if piece.numel():
                        self._reduces.start(piece, f"the all-reduce of bucket {bucket}")

    def _store(self, values: Sequence[Any]) -> None:
        """Gradients are views of the buffers, also while those still travel."""
        buffers = dict(self.model.named_buffers())
        for name, number in zip(self.captured.changed, self._changed, strict=True):
            buffers[name].copy_(values[number])
        for flat in self._flats:
            parameters = [self._named[name] for name in flat.parameters]
            pieces = values[self._number[flat.node]].split([p.numel() for p in parameters])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.grad = piece.view(parameter.shape)

    def _functions(
        self, parts: Sequence[Segment], compiler: Compiler, rest: Rest
    ) -> list[Callable[..., Any]]:
        device = self.captured.operators.device.partition(":")[0]
        reason = compiler_obstacle(device) if compiler == "inductor" else ""
        functions: list[Callable[..., Any]] = []
        for part in parts:
            module, wanted = module_of(part), part.region or (rest == "compiled" and not part.eager)
            if compiler == "none" or not wanted or len(part.nodes) == 1:
                functions.append(module.forward)
            else:
                functions.append(self._compiled(part, module, reason))
        if self.fallbacks:
            name, reason = next(iter(self.fallbacks.items()))
            warnings.warn(
                f"{len(self.fallbacks)} of {len(parts)} parts run operator by operator; that of {name!r}: {reason}",
                RuntimeWarning,
                stacklevel=4,
            )
        return functions

    def _compiled(self, part: Segment, module: fx.GraphModule, reason: str) -> Callable[..., Any]:
        if not reason:
            try:
                return _inductor(module, [node.meta["val"] for node in part.inputs])
            except Exception as error:
                first = str(error).strip().splitlines() or [""]
                reason = f"{type(error).__name__}: {first[0][:200]}"
        self.fallbacks[part.nodes[0].name] = reason
        return module.forward

    def _number_values(self, parts: Sequence[Segment]) -> None:
        module = self.captured.module
        inputs = module.graph.find_nodes(op="placeholder")
        constants = module.graph.find_nodes(op="get_attr")
        outputs = [node for part in parts for node in part.outputs]
        self._number = {node: i for i, node in enumerate([*inputs, *constants, *outputs])}
        self._constants = {self._number[node]: getattr(module, str(node.target)) for node in constants}

    def _program(self, parts: Sequence[Segment], functions: Sequence[Callable[..., Any]]) -> list[_Call]:
        (end,) = self.captured.module.graph.find_nodes(op="output")
        kept = set(end.all_input_nodes)
        last = {node: place for place, part in enumerate(parts) for node in (*part.outputs, *part.inputs)}
        maker = {node: place for place, part in enumerate(parts) for node in part.outputs}
        launches = self._launch_places(maker)
        return [
            _Call(
                function,
                tuple(self._number[node] for node in part.inputs),
                tuple(self._number[node] for node in part.outputs),
                tuple(
                    self._number[node]
                    for node in dict.fromkeys((*part.outputs, *part.inputs))
                    if last[node] == place and node in maker and node not in kept
                ),
                tuple(bucket for bucket, at in enumerate(launches) if at == place),
            )
            for place, (part, function) in enumerate(zip(parts, functions, strict=True))
        ]

    def _launch_places(self, maker: dict[fx.Node, int]) -> list[int]:
        """Part after which each bucket starts: all its gradients are there, and the buckets before it started."""
        places = [0] * len(self.plan.buckets)
        for flat in self._flats:
            places[flat.bucket] = max(places[flat.bucket], maker[flat.node])
        for bucket in range(1, len(places)):
            places[bucket] = max(places[bucket], places[bucket - 1])
        return places


def _flatten(captured: Capture, buckets: Sequence[Sequence[str]], ranks: int) -> list[_Flat]:
    """Let the graph return flat buffers of each bucket, divided by the number of ranks, instead of gradients."""
    (end,) = captured.module.graph.find_nodes(op="output")
    results = list(end.args[0])  # type: ignore[arg-type]
    first = len(results) - len(captured.trained)
    gradient = dict(zip(captured.trained, results[first:], strict=True))
    flats = []
    for number, names in enumerate(buckets):
        for dtype in dict.fromkeys(gradient[name].meta["val"].dtype for name in names):
            group = tuple(name for name in names if gradient[name].meta["val"].dtype == dtype)
            with captured.module.graph.inserting_before(end):
                flats.append(_Flat(number, _flat([gradient[name] for name in group], ranks), group))
    end.args = ((*results[:first], *(flat.node for flat in flats)),)
    captured.module.recompile()
    return flats


def _flat(gradients: Sequence[fx.Node], ranks: int) -> tuple[fx.Node, ...]:
    nodes = [_call(_ATEN.reshape.default, node, [-1]) for node in gradients]
    if len(gradients) > 1:
        nodes.append(_call(_ATEN.cat.default, list(nodes)))
    if ranks > 1:
        nodes.append(_call(_ATEN.div.Tensor, nodes[-1], ranks))
    return tuple(nodes)


def _call(function: Any, *args: Any) -> fx.Node:
    """A new operator, with what it returns for the values that the captured ones had."""
    graph = next(node for node in pytree.tree_leaves(args) if isinstance(node, fx.Node)).graph
    node = graph.call_function(function, args)
    node.meta["val"] = function(*fx.map_arg(args, lambda read: read.meta["val"]))
    return node


def _inductor(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    # Random operators draw the numbers that they draw in eager mode.
    return torch._inductor.compile(module, inputs, options={"fallback_random": True})
