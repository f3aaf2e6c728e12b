"""Measurement of a list of modules for pipelines: pass times in seconds, saved and output bytes, by module."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from wirewise.errors import InputError
from wirewise.trace.layers import INPUT, layer_sources, named_layers
from wirewise.trace.stages import StageModule, StageTrace

__all__ = ["stage_trace"]


def stage_trace(
    modules: nn.Sequential | nn.ModuleList | Sequence[nn.Module] | Mapping[str, nn.Module],
    batch: Tensor | Mapping[str, Tensor],
    *,
    sizes: Sequence[int] = (1,),
    sources: Mapping[str, Sequence[str]] | None = None,
    repeats: int = 5,
    model: str = "",
) -> StageTrace:
    """Measure every module forward and backward separately, on its device.

    Seconds are medians. Gradients are left unchanged; buffers see the batch a few times. Bytes are those of the
    largest size. Optimizers are not measured.

    Args:
        modules: Modules in forward order; named as in their mapping or `nn.Sequential`, or numbered in a list.
        batch: Input of the model, [at least the largest size, ...]; several inputs by the names under which modules
            read them (`LayerGraph.inputs`).
        sizes: Microbatch sizes to measure, ascending.
        sources: Names of the inputs of modules that do not read the previous module's output, in order: earlier
            modules or "input".
        repeats: Passes per median, after a warm-up pass.
        model: Model name stored in the trace.

    Raises:
        InputError: There are no modules, the batch is too small, or a module does not return one tensor.
    """
    named = named_layers(modules)
    given = {INPUT: batch} if isinstance(batch, Tensor) else dict(batch)
    takes = layer_sources(named, sources, tuple(given))
    rows = min(map(len, given.values()), default=0)
    if not sizes or min(sizes) < 1 or max(sizes) > rows or repeats < 1:
        raise InputError(
            f"got sizes {list(sizes)}, {rows} samples and {repeats} repeats; expected sizes of 1 to {rows} and at "
            "least 1 repeat"
        )
    before = {parameter: parameter.grad for module in named.values() for parameter in module.parameters()}
    try:
        by_size = [
            _measured(named, takes, {name: one[:size] for name, one in given.items()}, repeats)
            for size in sizes
        ]
    finally:
        for parameter, gradient in before.items():
            parameter.grad = gradient
    edges = tuple(
        (source, name) for name, own in takes.items() for source in dict.fromkeys(own) if source not in given
    )
    in_line = tuple(zip(list(named)[:-1], list(named)[1:], strict=True))
    first = next(iter(given.values()))
    device = next((parameter.device for parameter in before), first.device)
    return StageTrace(
        modules=tuple(
            StageModule(
                name=name,
                forward_s=tuple(one[name][0] for one in by_size),
                backward_s=tuple(one[name][1] for one in by_size),
                weight_gradient_s=tuple(one[name][2] for one in by_size),
                output_bytes=by_size[-1][name][3] / sizes[-1],
                saved_bytes=by_size[-1][name][4] / sizes[-1],
                parameter_bytes=float(sum(p.numel() * p.element_size() for p in module.parameters())),
                factor_bytes=by_size[-1][name][5] / sizes[-1],
                factored_bytes=float(
                    sum(p.numel() * p.element_size() for one in _linear(module) for p in one.parameters())
                ),
            )
            for name, module in named.items()
        ),
        sizes=tuple(sizes),
        edges=() if edges == in_line else edges,
        input_bytes=float(first[:1].numel() * first.element_size()),
        model=model,
        device=str(device),
    )


_Figures = tuple[float, float, float, float, float, float]
"""Forward, backward and weight gradient seconds; output and saved bytes, those of sufficient factors."""


def _linear(module: nn.Module) -> list[nn.Linear]:
    """Layers whose gradients are products of inputs and output gradients, and which share them with no other."""
    owners = [p for one in module.modules() for p in one.parameters(recurse=False)]
    return [
        one
        for one in module.modules()
        if type(one) is nn.Linear
        and all(p.requires_grad and sum(p is other for other in owners) == 1 for p in one.parameters())
    ]


def _measured(
    named: Mapping[str, nn.Module],
    takes: Mapping[str, Sequence[str]],
    given: Mapping[str, Tensor],
    repeats: int,
) -> dict[str, _Figures]:
    outputs, found = dict(given), dict[str, _Figures]()
    for name, module in named.items():
        inputs = [outputs[source].detach() for source in takes[name]]
        for source, one in zip(takes[name], inputs, strict=True):
            # Nobody needs the gradient of the batch.
            one.requires_grad_(source not in given and one.is_floating_point())
        found[name], outputs[name] = _module(name, module, inputs, repeats)
    return found


def _module(name: str, module: nn.Module, inputs: list[Tensor], repeats: int) -> tuple[_Figures, Tensor]:
    wanted = [one for one in inputs if one.requires_grad]
    kept: dict[int, int] = {}
    always = {_storage(one) for one in (*module.parameters(), *module.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in always:
            kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    factors: list[int] = []
    hooks = [
        layer.register_forward_hook(
            lambda _, given, made: factors.append(sum(x.numel() * x.element_size() for x in (given[0], made)))
        )
        for layer in _linear(module)
    ]
    try:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = module(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(output, Tensor):
        raise InputError(
            f"module {name!r} returns a {type(output).__name__}; stages hand on one tensor, wrap the module so that it "
            "returns that"
        )
    # Inputs stay with a stage until its backward pass, whether a module needs them or not.
    kept |= {_storage(one): one.untyped_storage().nbytes() for one in inputs}
    wait, weights = _waiting(output), [p for p in module.parameters() if p.requires_grad]
    forward, whole, inner = [], [], []
    for _ in range(repeats + 1):
        begin = _now(wait)
        output = module(*inputs)
        forward.append(_now(wait) - begin)
        whole.append(_backward_s(output, [*wanted, *weights], wait))
        inner.append(_backward_s(module(*inputs), wanted, wait) if weights else whole[-1])
    seconds = [statistics.median(one[1:]) for one in (forward, whole, inner)]
    weight_s = max(seconds[1] - seconds[2], 0.0) if weights else 0.0
    size = float(output.numel() * output.element_size())
    found = (seconds[0], seconds[1], weight_s, size, float(sum(kept.values())), float(sum(factors)))
    return found, output.detach()


def _backward_s(output: Tensor, wanted: list[Tensor], wait: Callable[[], None]) -> float:
    """Seconds of the gradients of these; 0 where the output depends on none."""
    if not wanted or not output.requires_grad:
        return 0.0
    gradient = torch.ones_like(output)
    begin = _now(wait)
    torch.autograd.grad(output, wanted, gradient, allow_unused=True)
    return _now(wait) - begin


def _waiting(output: Tensor) -> Callable[[], None]:
    if output.device.type == "cpu":
        return lambda: None
    return lambda: torch.accelerator.synchronize(output.device)


def _now(wait: Callable[[], None]) -> float:
    wait()
    return time.perf_counter()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
