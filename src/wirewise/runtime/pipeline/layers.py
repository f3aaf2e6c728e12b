"""A model as a list of modules that a pipeline can cut, with the values that each of them takes."""

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
    """An output of a module that another stage takes; one message carries it however many modules there use it."""

    name: str
    """Name of the module that makes it."""
    source: int
    """Stage of that module."""
    target: int
    """Stage that takes it."""


class LayerGraph:
    """Modules in the order of the forward pass, each of which turns one or several tensors into one tensor.

    Args:
        modules: The modules; those of a mapping and of an `nn.Sequential` by their names, those of a list by number. Or
            a model with a forward pass of its own, from one tensor to one, which `torch.fx` cuts into modules.
        sources: Names of what modules are called with that do not take the output of the one before, in
            order, modules further up or `INPUT`. This is how skip connections are said; a model has its own.
        whole: Submodules of such a model that are not cut, as names with wildcards, such as "encoder.layers.*"; none:
            those that hold less than an eighth of it.
        several: Whether such a model may take several tensors, its targets among them: all arguments without a default.
            Deployments train these, pipelines do not.

    Raises:
        InputError: No modules, sources that do not come before, or a forward pass that cannot be followed.
    """

    def __init__(
        self,
        modules: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
        sources: Mapping[str, Sequence[str]] | None = None,
        *,
        whole: Sequence[str] = (),
        several: bool = False,
    ) -> None:
        self.inputs: tuple[str, ...] = (INPUT,)
        """Names of what the model is given, in order."""
        if isinstance(modules, nn.Module) and not is_list(modules):
            if sources is not None:
                raise InputError(
                    "got sources for a model with a forward pass, which says them itself; leave them out"
                )
            modules, sources, self.inputs = traced_layers(modules, whole, several=several)
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

    def edges(self, cuts: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Pairs of stages between which activations travel, as `StagePlan.by_hand` takes them.

        Args:
            cuts: Number of the first module of each stage but the first.
        """
        stage_of = {name: sum(cut <= n for cut in cuts) for n, name in enumerate(self.modules)}
        return tuple(sorted({(v.source, v.target) for v in self._values(stage_of)}))

    def values(self, plan: StagePlan) -> tuple[Value, ...]:
        """What travels between the stages of a plan, in an order that is the same on all ranks.

        Raises:
            PlanError: The plan has other modules, computes one before what it takes, or moves activations between
                other stages.
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
                if source != INPUT and place[source] > place[name]:
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
                if source != INPUT and stage_of[source] != stage_of[name]:
                    yield Value(source, stage_of[source], stage_of[name])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
