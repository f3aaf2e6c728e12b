"""Modules by name, what they take, and what travels between stages."""

from __future__ import annotations

import pytest
from torch import nn

from tests.runtime.pipeline.examples import chain, plan_for, unet
from wirewise.errors import InputError, PlanError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import LayerGraph


def test_a_chain_passes_one_value_from_stage_to_stage() -> None:
    layers = chain(6)
    found = layers.values(plan_for(layers, 3, style="1f1b", microbatches=2))
    assert [tuple(value) for value in found] == [("1", 0, 1), ("3", 1, 2)]


def test_skip_connections_go_from_their_source_to_their_user() -> None:
    layers = unet()
    found = layers.values(plan_for(layers, 4, style="1f1b", microbatches=2))
    assert [tuple(value) for value in found] == [
        ("down1", 0, 1), ("down0", 0, 3), ("down1", 0, 3), ("down2", 1, 2), ("down3", 1, 2), ("up1", 2, 3),
    ]  # fmt: skip
    assert layers.edges([2, 4, 6]) == ((0, 1), (0, 3), (1, 2), (2, 3))


def test_a_value_that_two_modules_of_a_stage_take_travels_once() -> None:
    modules = {name: nn.Identity() for name in "abc"}
    layers = LayerGraph(modules, {"c": ("a", "b"), "b": ("a",)})
    plan = StagePlan.from_cuts("abc", [1], style="1f1b", microbatches=2)
    assert [value.name for value in layers.values(plan)] == ["a"]


@pytest.mark.parametrize("sources", [{"b": ("c",)}, {"b": ()}, {"z": ("a",)}, {"a": ("a",)}])
def test_sources_that_do_not_come_before_are_refused(sources: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(InputError, match="expected"):
        LayerGraph({name: nn.Identity() for name in "abc"}, sources)


def test_a_plan_for_other_modules_is_refused() -> None:
    plan = plan_for(chain(5), 2, style="1f1b", microbatches=2)
    with pytest.raises(PlanError, match=r"is for the modules 0, 1, 2, 3, 4; the model has 0, 1, 2, 3, 4, 5"):
        chain(6).values(plan)


def test_a_plan_without_the_edges_of_skip_connections_is_refused() -> None:
    layers = unet()
    plan = StagePlan.from_cuts(layers.names, [4], style="1f1b", microbatches=2)
    assert layers.values(plan)
    plan = StagePlan.from_cuts(layers.names, [2, 4, 6], style="1f1b", microbatches=2)
    with pytest.raises(PlanError, match=r"make the plan with edges=\[\(0, 1\), \(0, 3\)"):
        layers.values(plan)


def test_a_plan_that_computes_a_module_before_what_it_takes_is_refused() -> None:
    layers = chain(4)
    plan = StagePlan.from_cuts(("0", "2", "1", "3"), [2], style="1f1b", microbatches=2)
    with pytest.raises(PlanError, match="computes module '2' before '1', whose output it takes"):
        layers.values(plan)
