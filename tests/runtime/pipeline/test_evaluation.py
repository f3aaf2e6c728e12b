"""Evaluations between updates: outputs and losses of one process in evaluation mode, batches of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import WIDTH, batches, loss, outputs, plan_for, unet
from wirewise.errors import InputError
from wirewise.runtime.pipeline import LayerGraph, Pipeline


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def normed() -> LayerGraph:
    torch.manual_seed(3)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.3))
        for _ in range(8)
    ]
    return LayerGraph(nn.ModuleList(layers).double())


def whole(models: list[LayerGraph], pipelines: list[Any]) -> LayerGraph:
    """One model with the weights and buffers of all stages."""
    found = models[0]
    for pipeline in pipelines:
        for stage in pipeline.stages.values():
            for name, module in stage.modules.items():
                found.modules[name].load_state_dict(module.state_dict())
    return found


def sizes() -> list[torch.Tensor]:
    own = torch.Generator().manual_seed(7)  # ranks are threads, which share torch's own
    return [torch.randn(rows, WIDTH, generator=own, dtype=torch.float64) for rows in (8, 3, 13)]


@pytest.mark.parametrize("build", [normed, unet])
@pytest.mark.parametrize("style", ["1f1b", "interleaved", "2bw"])
@pytest.mark.parametrize("first", [False, True], ids=["after updates", "before any"])
def test_batches_are_evaluated_as_by_one_process(build: Any, style: str, first: bool) -> None:
    plan = plan_for(build(), 2, style=style, microbatches=4)
    models = [build() for _ in range(2)]
    pipelines: list[Any] = [None, None]

    def body(rank: int, group: Any, store: Any) -> Any:
        pipeline = pipelines[rank] = Pipeline(
            models[rank], plan, loss=loss, optimizer=adamw, process_group=group, store=store, timeout_s=20
        )
        found = []
        for last in (False, True):
            if last or not first:
                list(pipeline.train(batches(2, plan)))
            found = list(pipeline.evaluate((x, x * 2) for x in sizes()))
            bare = list(pipeline.evaluate(sizes()))
            assert [one.loss for one in bare] == [None] * 3
            assert all(
                module.training
                for module in pipeline.layers.modules["up0" if build is unet else "0"].modules()
            )
        pipeline.close()
        return found

    ranks = run_ranks_as_threads(2, body)
    assert ranks[0] == [(None, None)] * 3 or style == "interleaved"
    model = whole([build()], pipelines)
    for module in model.modules.values():
        module.eval()
    results = next(found for found in reversed(ranks) if found[0].output is not None)
    with torch.no_grad():
        for x, (of_batch, output) in zip(sizes(), results, strict=True):
            wanted = outputs(model, x.clone())
            torch.testing.assert_close(output, wanted)
            assert of_batch == pytest.approx(float(loss(wanted, x * 2)))


def test_a_pipeline_whose_messages_match_by_their_order_does_not_evaluate() -> None:
    plan = plan_for(normed(), 2, style="1f1b", microbatches=2)
    models = [normed() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        pipeline = Pipeline(
            models[rank], plan, loss=loss, optimizer=adamw, process_group=group, store=store, in_order=True
        )
        with pytest.raises(InputError, match="where those of an evaluation have no place"):
            list(pipeline.evaluate(sizes()))
        pipeline.close()

    run_ranks_as_threads(2, body)
