"""Model as a list of modules that can be split into pipeline stages, with the inputs of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from wirewise.errors import InputError, PlanError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline.traced import traced_layers
from wirewise.trace.layers import INPUT, is_list, layer_sources, named_layers

__all__ = ["INPUT", "LayerGraph", "Value"]


class Value(NamedTuple):
    """Module output read by another stage; one message carries it for all modules there."""

    name: str
    """Name of the module that produces it."""
    source: int
    """Stage of that module."""
    target: int
    """Stage that takes it."""


class LayerGraph:
    """Modules in forward order, each of which maps one or several tensors to one tensor.

    Args:
        modules: Modules; named as in their mapping or `nn.Sequential`, or numbered in a list. Or a model with its own
            forward pass, from one tensor to one, which `torch.fx` splits into modules.
        sources: Names of the inputs of modules that do not read the previous module's output, in order: earlier
            modules or `INPUT`. This expresses skip connections; a traced model has its own.
        whole: Submodules of such a model to keep whole, as names with wildcards, such as "encoder.layers.*". Defaults
            to those with less than an eighth of it.
        several: Whether such a model may take several tensors, including targets: all arguments without a default.
            For deployments; pipelines pass the targets to the loss alone.
        extra_inputs: Names of further input tensors of the model, such as ("mask",), called "input:mask" in sources:
            arguments of its forward pass, with or without a default.

    Raises:
        InputError: There are no modules, sources are not earlier modules, or the forward pass cannot be traced.
    """

    def __init__(
        self,
        modules: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
        sources: Mapping[str, Sequence[str]] | None = None,
        *,
        whole: Sequence[str] = (),
        several: bool = False,
        extra_inputs: Sequence[str] = (),
    ) -> None:
        self.inputs: tuple[str, ...] = (INPUT, *(f"{INPUT}:{name}" for name in extra_inputs))
        """Names of what the model is given, in order."""
        self._plain: dict[nn.Parameter, str] = {}
        if isinstance(modules, nn.Module) and not is_list(modules):
            self._plain = {parameter: name for name, parameter in modules.named_parameters()}
            if sources is not None:
                raise InputError(
                    "got sources for a model with a forward pass, which says them itself; leave them out"
                )
            modules, sources, self.inputs = traced_layers(
                modules, whole, several=several, extra_inputs=extra_inputs
            )
        elif whole:
            raise InputError(
                f"got whole={list(whole)} for a list of modules, none of which is cut; leave it out"
            )
        self.modules: dict[str, nn.Module] = named_layers(modules)
        self.sources = layer_sources(self.modules, sources, self.inputs)
        self.output = self.names[-1]
        """Name of the last module, whose output the loss is of."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all modules, in order."""
        return tuple(self.modules)

    def plain_name(self, name: str, parameter: nn.Parameter) -> str:
        """Name of a parameter in the original model.

        Args:
            name: Module name here and the parameter's name in it, which a list of modules keeps.
            parameter: Parameter of a module.
        """
        return self._plain.get(parameter, name)

    def edges(self, cuts: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Pairs of stages between which activations are sent, for `StagePlan.from_cuts`.

        Args:
            cuts: Index of the first module of each stage but the first.
        """
        stage_of = {name: sum(cut <= n for cut in cuts) for n, name in enumerate(self.modules)}
        return tuple(sorted({(v.source, v.target) for v in self._values(stage_of)}))

    def values(self, plan: StagePlan) -> tuple[Value, ...]:
        """Values sent between the stages of a plan, in an order that is the same on all ranks.

        Raises:
            PlanError: The plan has other modules, computes one before its inputs, or sends activations between other
                stages.
        """
        planned = tuple(name for stage in plan.stages for name in stage.modules)
        if sorted(planned) != sorted(self.names):
            raise PlanError(
                f"the plan by {plan.planner!r} is for the modules {_some(planned)}; the model has {_some(self.names)}; "
                "make the plan again with the names of this model"
            )
        # Arms of a graph may be computed in another order than that of the list.
        place = {name: number for number, name in enumerate(planned)}
        for name, sources in self.sources.items():
            for source in sources:
                if source not in self.inputs and place[source] > place[name]:
                    raise PlanError(
                        f"the plan by {plan.planner!r} computes module {name!r} before {source!r}, whose output it "
                        "takes; make the plan again with both in the order of this model"
                    )
        stage_of = {name: number for number, stage in enumerate(plan.stages) for name in stage.modules}
        found = tuple(
            sorted(set(self._values(stage_of)), key=lambda v: (v.source, v.target, planned.index(v.name)))
        )
        needed, moved = {(v.source, v.target) for v in found}, set(plan.all_edges)
        if needed != moved:
            raise PlanError(
                f"the modules need activations from one stage for another along {sorted(needed)}, the plan moves them "
                f"along {sorted(moved)}; make the plan with edges={sorted(needed)} (`LayerGraph.edges`)"
            )
        return found

    def _values(self, stage_of: Mapping[str, int]) -> Iterator[Value]:
        for name, sources in self.sources.items():
            for source in sources:
                if source not in self.inputs and stage_of[source] != stage_of[name]:
                    yield Value(source, stage_of[source], stage_of[name])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
