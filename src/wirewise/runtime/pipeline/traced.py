"""Model other than a list, as layers: `torch.fx` traces its forward pass, and splits it wherever one tensor flows.

Submodules are traced where possible; those that cannot be traced, such as ones that branch on values, stay whole, as
do small ones with a single output tensor. Code between them becomes a separate layer, or part of the previous layer if
that one has no other consumer. Sizes and parameters are read again by every layer that needs them.
"""

from __future__ import annotations

import inspect
import operator
import threading
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import fx, nn

from wirewise.errors import InputError
from wirewise.runtime.python_state import TRACING, UntracedStateError, trace_stable
from wirewise.trace.layers import INPUT

__all__ = ["traced_layers"]

_SMALL = 1 / 8
"""Largest share of a model's parameters, and of its operations, of a submodule that stays whole by itself."""
_SIZES = {"shape", "ndim", "device", "dtype", "is_cuda", "layout", "requires_grad"}
_SIZE_METHODS = {"size", "dim", "numel", "nelement", "stride", "is_contiguous", "is_floating_point"}
_VIEWS = {
    "view", "reshape", "transpose", "permute", "t", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "narrow",
    "select", "chunk", "split", "unbind", "detach", "contiguous", "getitem",
}  # fmt: skip
"""Operations whose result may be the same memory."""
_PLAIN = ("_operator", "builtins", "math")
_HELP = (
    "move these lines into a submodule, which then stays whole, give what torch.export makes of the model "
    "(`torch.export.export(model, (x,)).module(check_guards=False)`), or a list of modules and `sources`"
)

Sources = dict[str, tuple[str, ...]]


def traced_layers(
    model: nn.Module, whole: Sequence[str] = (), *, several: bool = False, extra_inputs: Sequence[str] = ()
) -> tuple[dict[str, nn.Module], Sources, tuple[str, ...]]:
    """Trace a model into named layers; return them, the inputs of each by name, and the model's inputs.

    Args:
        model: Model that maps one tensor to one; further arguments keep their defaults. It is traced in its current
            mode, training or evaluation.
        whole: Submodules to keep whole, as names with wildcards, such as "encoder.layers.*"; others are split if they
            are large.

        several: Whether all arguments without a default are input tensors; those after the first are called `INPUT`
            and their name, such as "input:target".
        extra_inputs: Names of further arguments that are tensors, with or without a default.

    Raises:
        InputError: The forward pass cannot be traced, with the place in its source; or a submodule of `whole` does
            not exist.
    """
    names = [name for name, _ in model.named_modules()]
    unknown = [one for one in whole if not any(fnmatchcase(name, one) for name in names)]
    if unknown:
        raise InputError(f"whole has {unknown}, which no submodule is called; there are: {_some(names[1:])}")
    leaves = {name for name in names if any(fnmatchcase(name, one) for one in whole)}
    with _attributes_kept(model):
        tracer, inputs = _followed(model, leaves, several, extra_inputs)
        if small := _small(model, tracer, inputs):
            tracer, _ = _followed(model, leaves | small, several, extra_inputs)
        cut = _Cut(model, tracer.graph, inputs)
        return *cut.layers(), tuple(cut.inputs.values())


class _Tracer(fx.Tracer):
    """Follows a model, and notes submodules that cannot be followed."""

    proxy_buffer_attributes = True

    def __init__(self, leaves: set[str]) -> None:
        super().__init__(param_shapes_constant=True)
        self.leaves, self.returned = leaves, dict[str, list[fx.Node | None]]()
        self._state = _state()
        # torch sends every thread's modules here while one traces.
        self._thread = threading.get_ident()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        # torch takes what has constant shapes for a parameter, and refuses a buffer.
        self.param_shapes_constant = isinstance(attr_val, nn.Parameter)
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        hooks = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
        own = super().is_leaf_module(m, module_qualified_name)
        return own or module_qualified_name in self.leaves or bool(hooks)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _state() != self._state:
            raise InputError("gradients or autocast are switched in the forward pass")
        return super().create_node(*args, **kwargs)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        try:
            found = super().call_module(m, forward, args, kwargs)
        except _AgainError:
            raise
        except Exception as error:
            if path in self.leaves:
                raise
            self.leaves.add(path)
            raise _AgainError from error
        self.returned.setdefault(path, []).append(found.node if isinstance(found, fx.Proxy) else None)
        return found


class _AgainError(Exception):
    """The model is to be followed again, with a further submodule whole."""


def _state() -> tuple[bool, ...]:
    devices = ("cpu", "cuda")
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(device) for device in devices)


@contextmanager
def _attributes_kept(model: nn.Module) -> Iterator[None]:
    """Undo what a forward pass over stand-ins leaves in the modules."""
    kept = [(module, dict(module.__dict__)) for module in model.modules()]
    try:
        yield
    finally:
        for module, own in kept:
            module.__dict__.clear()
            module.__dict__.update(own)


def _followed(
    model: nn.Module, leaves: set[str], several: bool, extra_inputs: Sequence[str]
) -> tuple[_Tracer, set[str]]:
    """Trace of a model, and the names of its tensor arguments."""
    _, *others = inspect.signature(type(model).forward).parameters.values()  # `self` comes first
    given = [p for p in others if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p for p in given if p.default is p.empty]
    if unknown := set(extra_inputs) - {p.name for p in given}:
        raise InputError(
            f"further inputs are {sorted(unknown)}; expected arguments of the forward pass of {type(model).__name__}: "
            f"{', '.join(p.name for p in given)}"
        )
    if not given or (len([p for p in needed if p.name not in extra_inputs]) > 1 and not several):
        raise InputError(
            f"the forward pass of {type(model).__name__} takes {[p.name for p in given]}; expected one tensor, others "
            "with defaults: name further ones in `extra_inputs`, join them into one, or wrap the model"
        )
    inputs = {p.name for p in needed or given[:1]} | set(extra_inputs)
    defaults = {p.name: p.default for p in given if p.name not in inputs}
    leaves = set(leaves)

    def trace() -> _Tracer:
        found = _Tracer(set(leaves))
        try:
            with TRACING:
                found.trace(model, defaults or None)
        except _AgainError:
            leaves.update(found.leaves)
            raise
        return found

    while True:
        try:
            tracer = trace_stable(model, (), trace, lambda made: str(made.graph), tensors=False)
        except UntracedStateError:
            raise
        except _AgainError:
            continue
        except Exception as error:
            raise InputError(f"{_place(model, error)}; {_HELP}") from error
        stored = {
            path
            for path, module in model.named_modules()
            if any(isinstance(value, fx.Proxy) for value in module.__dict__.values())
        }
        if "" in stored or stored & leaves:
            raise InputError(
                f"{type(model).__name__} keeps a tensor of its forward pass as an attribute, which a layer on another "
                f"rank would not see; {_HELP}"
            )
        if not stored:
            return tracer, inputs
        leaves = tracer.leaves | stored


def _place(model: nn.Module, error: Exception) -> str:
    """Where in the user's code the forward pass cannot be followed, and why."""
    inside = (fx.__path__[0], nn.__path__[0], __file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(inside)]
    at = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    said = str(error).partition("\n")[0] or type(error).__name__
    return f"the forward pass of {type(model).__name__} cannot be followed{at} ({said})"


def _small(model: nn.Module, tracer: _Tracer, inputs: set[str]) -> set[str]:
    """Submodules that stay whole: each call hands on one tensor, and they are a small part of the model."""
    flow = _Flow(model, tracer.graph, inputs)
    calls: dict[str, list[list[fx.Node]]] = {}
    for node in flow.real:
        for key in node.meta.get("nn_module_stack", {}):
            path, _, again = key.partition("@")
            number = int(again or 0)
            own = calls.setdefault(path, [])
            own.extend([] for _ in range(number + 1 - len(own)))
            own[number].append(node)
    total = sum(p.numel() for p in model.parameters()) or 1
    found: set[str] = set()
    for path, module in model.named_modules():
        if not path or path in tracer.leaves or any(path.startswith(one + ".") for one in found):
            continue
        own = calls.get(path, [])
        share = max(
            sum(p.numel() for p in module.parameters()) / total,
            sum(map(len, own)) / len(flow.real),
        )
        returned = tracer.returned.get(path, [])
        if own and share <= _SMALL and len(own) == len(returned):
            if all(
                node is not None
                and flow.leaving(nodes) == [node]
                and flow.ends(node)
                and not flow.changes(nodes)
                for nodes, node in zip(own, returned, strict=True)
            ):
                found.add(path)
    return found


class _Flow:
    """Which operations of a graph make and take tensors; sizes and parameters aside, which are read again anywhere."""

    def __init__(self, model: nn.Module, graph: fx.Graph, inputs: set[str]) -> None:
        given = [node for node in graph.nodes if node.op == "placeholder"]
        self.inputs = [node for node in given if node.target in inputs]
        others = set(given) - set(self.inputs)
        plain: set[fx.Node] = set()
        self._further = set(self.inputs[1:])
        """Further inputs, and what is made of them alone, which layers make again as they need it."""
        for node in graph.nodes:
            # What only checks that further arguments have their defaults.
            if node.op not in ("placeholder", "output") and others & set(node.all_input_nodes):
                others.add(node)
            elif _is_plain(node, plain):
                plain.add(node)
            elif self._is_further(node, plain):
                plain.add(node)
                self._further.add(node)
        self.plain = plain
        self.real = [
            n
            for n in graph.nodes
            if n not in plain and n not in others and n.op not in ("placeholder", "output")
        ]
        self.output = next(node for node in graph.nodes if node.op == "output")
        self.needs = {node: self._needs(node) for node in (*self.real, self.output)}
        self.users: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.inputs}
        for node, sources in self.needs.items():
            for source in sources:
                self.users.setdefault(source, []).append(node)
        self._kept: set[fx.Node] = set()
        """Tensors that are changed in place later on, which nobody else may have."""
        for node in self.real:
            if _in_place(model, node):
                self._keep(node.all_input_nodes[0])

    def _is_further(self, node: fx.Node, plain: set[fx.Node]) -> bool:
        sources = set(node.all_input_nodes)
        operation = node.op in ("call_method", "call_function")
        return operation and bool(sources & self._further) and sources <= self._further | plain

    def _needs(self, node: fx.Node) -> list[fx.Node]:
        """Tensors that an operation needs, in order, through sizes."""
        found: dict[fx.Node, None] = {}
        for source in node.all_input_nodes:
            for one in self._needs(source) if source in self.plain else [source]:
                found[one] = None
        return list(found)

    def _keep(self, node: fx.Node) -> None:
        if node in self.inputs:
            raise InputError(
                "the forward pass changes the model's input in place, which other layers take as it was; copy it first"
            )
        self._kept.add(node)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_method", "call_function") and name in _VIEWS and node.all_input_nodes:
            self._keep(node.all_input_nodes[0])

    def leaving(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Operations among the given ones whose results others take."""
        own = set(nodes)
        return [node for node in nodes if any(user not in own for user in self.users.get(node, []))]

    def changes(self, nodes: Sequence[fx.Node]) -> bool:
        """Whether some operations change a tensor of others in place, or one that others change."""
        own = set(nodes)
        return any(source in self._kept for node in nodes for source in self.needs[node] if source not in own)

    def ends(self, node: fx.Node) -> bool:
        """Whether a layer may hand a result on: one tensor, as far as its users tell, that nobody changes."""
        users = [user for user in node.users if user.op != "output"]
        several = bool(users) and all(
            user.target is getattr
            or (user.target is operator.getitem and isinstance(user.args[1], int | str))
            for user in users
        )
        return not several and node not in self._kept


def _is_plain(node: fx.Node, plain: set[fx.Node]) -> bool:
    """Whether an operation reads a parameter or a size."""
    if node.op == "get_attr" or (node.op == "call_method" and node.target in _SIZE_METHODS):
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in _SIZES
    sources = node.all_input_nodes
    inside = getattr(node.target, "__module__", "") in _PLAIN
    return bool(sources) and inside and all(s in plain and s.op != "get_attr" for s in sources)


def _in_place(model: nn.Module, node: fx.Node) -> bool:
    """Whether an operation changes its first tensor."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    named = name.endswith("_") and not name.endswith("__")
    return bool(node.all_input_nodes) and (
        named
        or node.kwargs.get("inplace") is True
        or "out" in node.kwargs
        or (name[:1] == "i" and hasattr(operator, name[1:]) and hasattr(operator, f"__{name}__"))
    )


class _Cut:
    """Makes the layers of a graph.

    Args:
        model: Owner of modules and parameters.
        graph: What its forward pass does.
        inputs: Names of its arguments that are tensors.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, inputs: set[str]) -> None:
        self._model, self._flow = model, _Flow(model, graph, inputs)
        first, *others = self._flow.inputs
        self.inputs = {first: INPUT, **{one: f"{INPUT}:{one.target}" for one in others}}
        """Names of what the model is given, in order."""

    def layers(self) -> tuple[dict[str, nn.Module], Sources]:
        """Modules and their sources."""
        runs = self._joined(self._runs())
        names: dict[fx.Node, str] = dict(self.inputs)
        modules, sources = dict[str, nn.Module](), Sources()
        for run in runs:
            (result,) = self._flow.leaving(run)
            taken = list(dict.fromkeys(s for n in run for s in self._flow.needs[n] if s not in run))
            taken = taken or self._flow.inputs[:1]
            name = self._name(run, names.values())
            names[result] = name
            modules[name] = self._module(run, result, taken)
            sources[name] = tuple(names[one] for one in taken)
        return modules, sources

    def _runs(self) -> list[list[fx.Node]]:
        """The shortest rows of operations that hand on one tensor each."""
        flow, found, run = self._flow, list[list[fx.Node]](), list[fx.Node]()
        for node in flow.real:
            run.append(node)
            leaving = flow.leaving(run)
            # What takes no tensor, such as an embedding of places, has no rows: it stays with what comes next.
            takes = any(source not in run for one in run for source in flow.needs[one])
            if takes and len(leaving) == 1 and flow.ends(leaving[0]):
                found.append(run)
                run = []
        (given,) = flow.output.args
        # What torch has exported returns a tuple of all that it returns.
        given = given[0] if isinstance(given, tuple | list) and len(given) == 1 else given
        if not isinstance(given, fx.Node) or run or not found or flow.leaving(found[-1]) != [given]:
            raise InputError(
                f"{type(self._model).__name__} returns {_said(given)}; expected one tensor that its last operations "
                "make: wrap the model so that it returns that"
            )
        return found

    def _joined(self, runs: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """Rows without parameters stand with the row before, where only they take what that makes."""
        found: list[list[fx.Node]] = []
        for run in runs:
            before = self._flow.leaving(found[-1])[0] if found else None
            if before is not None and all(user in run for user in self._flow.users[before]):
                if not any(self._has_parameters(node) for node in run):
                    found[-1] = found[-1] + run
                    continue
            found.append(run)
        return found

    def _has_parameters(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return next(self._model.get_submodule(str(node.target)).parameters(), None) is not None
        return any(source.op == "get_attr" for source in node.all_input_nodes)

    def _name(self, run: list[fx.Node], known: Collection[str]) -> str:
        """The first submodule of a layer, or its last operation."""
        path = next((str(node.target) for node in run if node.op == "call_module"), run[-1].name)
        name, number = path, 1
        while name in known:
            name, number = f"{path}@{number}", number + 1
        return name

    def _module(self, run: list[fx.Node], result: fx.Node, taken: list[fx.Node]) -> nn.Module:
        """A submodule as it is where that is all; else a module that does these operations."""
        if len(run) == 1 and run[0].op == "call_module" and list(run[0].args) == taken and not run[0].kwargs:
            return self._model.get_submodule(str(run[0].target))
        graph = fx.Graph()
        made = {node: graph.placeholder(node.name) for node in taken}

        def copied(node: fx.Node) -> fx.Node:
            if node not in made:
                for source in node.all_input_nodes:
                    copied(source)
                made[node] = graph.node_copy(node, made.__getitem__)
            return made[node]

        for node in run:
            copied(node)
        graph.output(made[result])
        return fx.GraphModule(self._model, graph, "Layer")


def _said(given: Any) -> str:
    return "a tensor of earlier operations" if isinstance(given, fx.Node) else f"a {type(given).__name__}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
