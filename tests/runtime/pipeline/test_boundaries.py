"""Stages of several ranks: trained against one process (S5), values whole, in parts or as partial sums."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import alone, batches, loss
from tests.runtime.pipeline.wide import Block, Columns, blocks, groups_of, part_of
from wirewise.cost import Links
from wirewise.errors import InputError, PeerError
from wirewise.plans import StagePlan, ValueSplit
from wirewise.runtime.pipeline import LayerGraph, Pipeline

_LOCK = threading.Lock()
"""Threads share torch's generator."""


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plan_of(cuts: list[int], width: Any, **more: Any) -> StagePlan:
    given = {"style": "1f1b", "microbatches": 3, **more}
    return StagePlan.from_cuts([str(n) for n in range(4)], cuts, microbatch_size=2, width=width, **given)


def trained(plan: StagePlan, build: Any, **more: Any) -> list[Any]:
    """Weights and losses of each rank, and what they should be."""
    updates = 3

    def body(rank: int, group: Any, store: Any) -> Any:
        own = groups_of(plan, rank, store)
        with _LOCK:
            layers = build(own)
        pipeline = Pipeline(
            layers, plan, loss=loss, optimizer=sgd, process_group=group, store=store, timeout_s=60, **more
        )
        losses = [one.loss for one in pipeline.train(batches(updates, plan))]
        pipeline.close()
        return {name: p.detach() for name, p in pipeline.weights.named.items()}, losses

    return run_ranks_as_threads(plan.world_size, body, timeout_s=120.0)


def same_as_alone(plan: StagePlan, build: Any) -> None:
    expected, losses = alone(build, plan, [batches(3, plan)], sgd)
    seen = set()
    for rank, (weights, own) in enumerate(trained(plan, build)):
        position, _, place = plan.place_of(rank)
        for name, weight in weights.items():
            part = part_of(name, expected[name], len(plan.ranks[position][0]), place, weight.shape)
            torch.testing.assert_close(weight, part, rtol=0, atol=1e-12)
        seen |= weights.keys()
        if own[0] is not None:
            torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)
    assert seen == expected.keys()


WIDTHS = [[1, 2], [2, 1], [2, 3]]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("width", WIDTHS, ids=str)
@pytest.mark.parametrize(
    "style",
    [
        "eager-split",
        pytest.param("1f1b", marks=pytest.mark.slow),
        pytest.param("2bw", marks=pytest.mark.slow),
    ],
)
def test_stages_of_other_width_train_as_one_process(style: str, width: list[int]) -> None:
    same_as_alone(plan_of([2], width, style=style), blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "cuts", "width"),
    [
        ("gpipe", [1, 3], [2, 1, 3]),
        ("eager", [1, 3], [1, 3, 2]),
        ("zero-bubble", [1, 3], [2, 2, 2]),
        ("interleaved", [1, 2, 3], [2, 3]),
        ("2bw", [1, 3], [3, 2, 1]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("recompute", [False, True])
def test_three_stages_of_other_width_in_any_timetable(
    style: str, cuts: list[int], width: list[int], recompute: bool
) -> None:
    same_as_alone(plan_of(cuts, width, style=style, recompute=recompute), blocks)


def skipping(group: Any = None) -> LayerGraph:
    """The last module takes the output of the first one over the stages between."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = Block(group)

        def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
            return self.own(x) + skip

    torch.manual_seed(12)
    modules = [Block(group), Block(group), Block(group), Both()]
    return LayerGraph(modules, {"3": ("2", "0")})


def test_skip_connections_between_stages_of_other_width() -> None:
    layers = skipping()
    same_as_alone(plan_of([1, 3], [2, 1, 3], edges=layers.edges([1, 3])), skipping)


def in_parts(group: Any = None) -> LayerGraph:
    """A module gives columns, and the next one takes them."""
    torch.manual_seed(13)
    return LayerGraph([Block(group), Columns(group, gives=True), Columns(group, gives=False), Block(group)])


def split(stage: int) -> ValueSplit:
    return ValueSplit(module="1", stage=stage, dim=1)


@pytest.mark.parametrize(
    ("width", "splits"),
    [
        pytest.param([2, 1], [split(0)], id="gather"),
        pytest.param([1, 4], [split(1)], id="scatter", marks=pytest.mark.slow),
        pytest.param([2, 4], [split(0), split(1)], id="more"),
        pytest.param([4, 2], [split(0), split(1)], id="fewer", marks=pytest.mark.slow),
    ],
)
def test_values_in_parts_on_the_ranks_of_a_stage(width: list[int], splits: list[ValueSplit]) -> None:
    same_as_alone(plan_of([2], width, splits=splits, style="eager-split"), in_parts)


def with_addends(group: Any = None) -> LayerGraph:
    torch.manual_seed(14)
    return LayerGraph([Block(group), Block(group, adds=False), Block(group), Block(group)])


@pytest.mark.parametrize("width", [[2, 1], pytest.param([3, 2], marks=pytest.mark.slow)], ids=str)
def test_addends_are_summed_on_the_way(width: list[int]) -> None:
    same_as_alone(plan_of([2], width, splits=[ValueSplit(module="1", stage=0)]), with_addends)


@pytest.mark.slow
def test_moves_are_planned_on_the_links_that_are_given() -> None:
    plan = plan_of([2], [1, 2])
    links = Links.uniform(3, 1e9, 1e-4)
    expected = trained(plan, blocks)
    for (weights, _), (same, _) in zip(trained(plan, blocks, links=links), expected, strict=True):
        assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_parts_that_are_not_those_of_the_plan_are_refused_by_all_ranks() -> None:
    plan = plan_of([2], [4, 1])

    def body(rank: int, group: Any, store: Any) -> str:
        own = groups_of(plan, rank, store)
        with _LOCK:
            layers = in_parts(own)
        pipeline = Pipeline(layers, plan, loss=loss, optimizer=sgd, process_group=group, store=store)
        with pytest.raises(InputError) as caught:
            list(pipeline.train(batches(1, plan)))
        return str(caught.value)

    for said in run_ranks_as_threads(plan.world_size, body):
        assert "gave float64 [2, 2], float64 [2, 2], float64 [2, 2], float64 [2, 0]" in said
        assert "expected parts [[2, 2], [2, 2], [2, 2], [2, 2]] of [2, 2]" in said


def test_a_norm_of_plain_parts_needs_to_know_them() -> None:
    plan = plan_of([2], [2, 2])

    def body(rank: int, group: Any, store: Any) -> None:
        own = groups_of(plan, rank, store)
        with _LOCK:
            layers = blocks(own)
        with pytest.raises(InputError, match=r"\.up' is a plain tensor on 2 ranks that share its stage"):
            Pipeline(layers, plan, loss=loss, optimizer=sgd, process_group=group, store=store, clip=1.0)

    run_ranks_as_threads(plan.world_size, body)


@pytest.mark.slow
def test_a_silent_rank_of_a_stage_is_named() -> None:
    plan = plan_of([2], [1, 2])
    built = [blocks() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> str:
        pipeline = Pipeline(
            built[rank], plan, loss=loss, optimizer=sgd, process_group=group, store=store, timeout_s=2.0
        )
        if rank == 2:
            time.sleep(12)
            return ""
        with pytest.raises(PeerError) as caught:
            list(pipeline.train(batches(1, plan)))
        return str(caught.value)

    said = run_ranks_as_threads(3, body)
    assert all("stage 1 on ranks 1,2" in one and "rank 2" in one for one in said[:2])
