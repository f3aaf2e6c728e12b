"""Built-in models as layers and as stage traces: times by operation counts, real sizes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from wirewise.profile.stages import stage_trace
from wirewise.runtime.pipeline import LayerGraph
from wirewise.trace.stages import StageModule, StageTrace
from wirewise_papers.parallel_models import MODELS, Example
from wirewise_papers.tag.job import SIZES, WHOLE, DeploymentJob, TagOptions

__all__ = ["example_of", "layers_of", "measured_trace", "timed_trace", "trace_of"]

_PER_ELEMENT = 10.0
"""Operations that stand for the reading and writing of an element of an output."""


def example_of(job: DeploymentJob | TagOptions) -> Example:
    """Model of a job with its weights, and its batch."""
    return MODELS[job.model](batch=job.batch, seed=job.seed, **SIZES[job.model])


def layers_of(job: DeploymentJob | TagOptions, model: nn.Module) -> LayerGraph:
    """Model split into layers; outputs the loss."""
    return LayerGraph(model, whole=WHOLE[job.model], several=True)


def trace_of(job: DeploymentJob | TagOptions) -> StageTrace:
    """Stage trace of a job's model on a device of speed 1, scaled to the total time of the job.

    The time of a module is proportional to its operations, and a backward pass takes twice as long as a forward pass.
    """
    example = example_of(job)
    layers = layers_of(job, example.model)
    values = dict(zip(layers.inputs, example.inputs, strict=True))
    operations: dict[str, float] = {}
    factors: dict[str, float] = {}
    with torch.no_grad():
        for name, module in layers.modules.items():
            factors[name] = 0.0
            hooks = [
                layer.register_forward_hook(partial(_add_factors, factors, name)) for layer in _linear(module)
            ]
            with FlopCounterMode(display=False) as counter:
                values[name] = module(*(values[source] for source in layers.sources[name]))
            operations[name] = counter.get_total_flops() + _PER_ELEMENT * values[name].numel()
            for hook in hooks:
                hook.remove()
    whole_s = 1e-3 * job.compute_ms / sum(operations.values())
    modules = tuple(
        StageModule(
            name=name,
            forward_s=(whole_s * operations[name] / 3,),
            backward_s=(whole_s * operations[name] * 2 / 3,),
            output_bytes=_row_bytes(values[name], job.batch),
            saved_bytes=sum(_row_bytes(values[source], job.batch) for source in layers.sources[name]),
            parameter_bytes=float(sum(p.nbytes for p in module.parameters())),
            factor_bytes=factors[name] / job.batch,
            factored_bytes=float(sum(p.nbytes for one in _linear(module) for p in one.parameters())),
        )
        for name, module in layers.modules.items()
    )
    edges = tuple(
        (source, name)
        for name, sources in layers.sources.items()
        for source in dict.fromkeys(sources)
        if source not in layers.inputs
    )
    return StageTrace(
        modules=modules, sizes=(job.batch,), edges=edges, state_factor=2.0, model=job.model, device="emulated"
    )


def measured_trace(job: DeploymentJob | TagOptions) -> StageTrace:
    """Measured stage trace of a job's model on one thread, for fractions of the batch."""
    example = example_of(job)
    return timed_trace(layers_of(job, example.model), example.inputs, job.model, repeats=9)


def timed_trace(layers: LayerGraph, inputs: Sequence[Tensor], model: str, *, repeats: int) -> StageTrace:
    """Measure the modules of a model on one thread, for quarters of the batch and all of it.

    Args:
        layers: Modules of the model.
        inputs: The whole batch, in the order of `layers.inputs`.
        model: Name of the model.
        repeats: Number of passes of each module for the median.
    """
    batch, threads = len(inputs[0]), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return stage_trace(
            layers.modules,
            dict(zip(layers.inputs, inputs, strict=True)),
            sizes=sorted({max(batch * quarters // 4, 1) for quarters in (1, 2, 4)}),
            sources=layers.sources,
            repeats=repeats,
            model=model,
        )
    finally:
        torch.set_num_threads(threads)


def _linear(module: nn.Module) -> list[nn.Module]:
    return [one for one in module.modules() if type(one) is nn.Linear]


def _add_factors(found: dict[str, float], name: str, _: nn.Module, inputs: Any, output: Tensor) -> None:
    found[name] += inputs[0].nbytes + output.nbytes


def _row_bytes(value: Tensor, batch: int) -> float:
    return value.nbytes / batch if value.dim() and len(value) == batch else 0.0
