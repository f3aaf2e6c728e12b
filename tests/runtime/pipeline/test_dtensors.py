"""Stages whose modules are made tensor-parallel by torch: trained against one process (S5), clipped, resumed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.processes import run_ranks_as_processes
from tests.runtime.pipeline.examples import WIDTH, alone, batches, loss
from wirewise.plans import StagePlan, ValueSplit
from wirewise.runtime.pipeline import LayerGraph, Pipeline

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def model() -> LayerGraph:
    torch.manual_seed(21)
    layers = [
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        for _ in range(4)
    ]
    return LayerGraph(nn.ModuleList(layers).double())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    # torch has no loops over plain tensors and DTensors together.
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, foreach=False)


def parallel(rank: int, plan: StagePlan, *, sequence: bool) -> LayerGraph:
    """The model with this rank's stages spread over the ranks that share them."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    # Every rank takes part in making every mesh.
    meshes = [[DeviceMesh("cpu", list(own)) for own in ranks] for ranks in plan.ranks]
    position, replica, _ = plan.place_of(rank)
    layers, mesh = model(), meshes[position][replica]
    for stage in plan.stages:
        if stage.position == position and mesh.size() > 1:
            for name in stage.modules:
                last = sequence and name == stage.modules[-1] and name != layers.output
                how = {
                    "1": ColwiseParallel(input_layouts=Replicate()),
                    "3": RowwiseParallel(
                        output_layouts=Shard(0) if last else Replicate(), use_local_output=not last
                    ),
                }
                parallelize_module(layers.modules[name], mesh, how)
    return layers


def whole(tensor: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(rank: int, plan: StagePlan, clip: float | None, sequence: bool) -> Any:
    def make() -> Pipeline:
        layers = parallel(rank, plan, sequence=sequence)
        return Pipeline(layers, plan, loss=loss, optimizer=adamw, clip=clip, shards=(), timeout_s=60)

    feed = batches(4, plan, plan.place_of(rank)[1])
    pipeline, losses, state = make(), [], None
    for one in pipeline.train(feed):
        losses.append(one.loss)
        if one.update == 1:
            state = pipeline.state_dict()
    again = make()
    again.load_state_dict(state)
    list(again.train(feed[2:]))
    for name, parameter in pipeline.weights.named.items():
        assert torch.equal(whole(parameter), whole(again.weights.named[name]))
    found = {name: whole(p) for name, p in pipeline.weights.named.items()}
    pipeline.close()
    again.close()
    return found, losses


@pytest.mark.parametrize(
    ("style", "width", "replicas", "clip", "sequence"),
    [
        ("2bw", [2, 1], 2, 0.05, False),
        ("eager-split", [1, 2], 1, 0.05, False),
        ("2bw", [2, 2], 1, None, True),
    ],
)
def test_tensor_parallel_stages_train_as_one_process(
    style: str, width: list[int], replicas: int, clip: float | None, sequence: bool
) -> None:
    plan = StagePlan.from_cuts(
        [str(n) for n in range(4)],
        [2],
        style=style,
        microbatches=3,
        microbatch_size=2,
        replicas=replicas,
        width=width,
        exchange="hidden" if style == "2bw" else "end",
        splits=[ValueSplit(module="1", stage=0, dim=0)] if sequence else [],
    )
    feeds = [batches(4, plan, replica) for replica in range(replicas)]
    expected, _ = alone(model, plan, feeds, adamw, clip=clip)
    seen = set()
    for found, _ in run_ranks_as_processes(plan.world_size, train, plan, clip, sequence):
        for name, weight in found.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-12)
        seen |= found.keys()
    assert seen == expected.keys()
