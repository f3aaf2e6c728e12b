"""Stages of torch.distributed.pipelining under wirewise's timetables, against torch's own schedule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, pipe_split, pipeline
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.harness.processes import run_ranks_as_processes
from tests.runtime.pipeline.examples import outputs
from wirewise.errors import InputError
from wirewise.integrations.torch_pipelining import StageSchedule
from wirewise.runtime.pipeline import LayerGraph

WIDTH, MICROBATCHES = 8, 4


def _parts(count: int = 4) -> list[nn.Module]:
    torch.manual_seed(2)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)]


def _batches() -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(4)
    return [tuple(torch.randn(2 * MICROBATCHES, WIDTH, generator=random) for _ in "xy") for _ in range(3)]  # type: ignore[misc]


def _trained(schedule: Any, parameters: list[nn.Parameter], first: bool, last: bool) -> Any:
    optimizer, found = torch.optim.SGD(parameters, lr=0.1, momentum=0.9), []
    for x, y in _batches():
        optimizer.zero_grad()
        losses: list[Tensor] = []
        output = schedule.step(*([x] if first else []), **({"target": y, "losses": losses} if last else {}))
        optimizer.step()
        found.append(([float(loss) for loss in losses], output.detach() if last else None))
    return found, [p.detach().clone() for p in parameters]


def _two(rank: int) -> Any:
    found = []
    for make in (Schedule1F1B, StageSchedule):
        part = nn.Sequential(*_parts()[2 * rank : 2 * rank + 2])
        stage = PipelineStage(part, rank, 2, torch.device("cpu"))
        schedule = make(stage, MICROBATCHES, nn.functional.mse_loss)
        found.append(_trained(schedule, list(part.parameters()), rank == 0, rank == 1))
    schedule.close()
    return found


@pytest.mark.dist
@pytest.mark.slow
def test_losses_outputs_and_weights_are_those_of_torchs_own_schedule() -> None:
    for rank, (expected, found) in enumerate(run_ranks_as_processes(2, _two)):
        for (own, output), (losses, whole) in zip(found[0], expected[0], strict=True):
            torch.testing.assert_close(own, losses, rtol=0, atol=1e-6)
            assert len(own) == MICROBATCHES * rank
            if rank:
                torch.testing.assert_close(output, whole)
        torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6)


def _interleaved(rank: int) -> Any:
    parts = _parts()[rank::2]
    stages = [PipelineStage(part, rank + 2 * n, 4, torch.device("cpu")) for n, part in enumerate(parts)]
    schedule = StageSchedule(stages, MICROBATCHES, nn.functional.mse_loss, style="interleaved")
    parameters = [p for part in parts for p in part.parameters()]
    found = _trained(schedule, parameters, rank == 0, rank == 1)
    schedule.close()
    return found


class _Parallel(nn.Module):
    """A tensor-parallel stage whose input and output are DTensors in parts of the rows."""

    def __init__(self, part: nn.Module, mesh: Any, first: bool, last: bool) -> None:
        super().__init__()
        outer = {"input_layouts": Shard(0)} if not first else {}
        inner = {"output_layouts": Shard(0), "use_local_output": False} if not last else {}
        plan = {"0": ColwiseParallel(**outer), "2": RowwiseParallel(**inner)}
        self.part = parallelize_module(part, mesh, plan)

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


def _lanes(rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    place, lane = mesh.get_local_rank("pp"), mesh["tp"]
    part = _Parallel(_parts(2)[place], lane, place == 0, place == 1)
    stage = PipelineStage(part, place, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = StageSchedule(stage, MICROBATCHES, nn.functional.mse_loss, boundary=(lane, [Shard(0)]))
    found, weights = _trained(schedule, list(part.parameters()), place == 0, place == 1)
    schedule.close()
    return found, [w.full_tensor() for w in weights]


def _alone(count: int) -> Any:
    model = nn.Sequential(*_parts(count))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in _batches():
        optimizer.zero_grad()
        own = [nn.functional.mse_loss(model(a), b) for a, b in zip(x.split(2), y.split(2), strict=True)]
        (sum(own) / MICROBATCHES).backward()  # type: ignore[union-attr]
        optimizer.step()
        losses.append([float(loss.detach()) for loss in own])
    return losses, [[p.detach() for p in part.parameters()] for part in model]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("body", "ranks", "count"), [(_interleaved, 2, 4), (_lanes, 4, 2)])
def test_several_stages_a_rank_and_stages_of_dtensors_train_as_one_process(
    body: Any, ranks: int, count: int
) -> None:
    losses, weights = _alone(count)
    found = run_ranks_as_processes(ranks, body)
    torch.testing.assert_close([own for own, _ in found[-1][0]], losses, rtol=0, atol=1e-6)
    for rank, (_, own) in enumerate(found):
        parts = weights[rank::2] if body is _interleaved else [weights[rank // 2]]
        torch.testing.assert_close(own, [w for part in parts for w in part], rtol=0, atol=1e-6)


class Marked(nn.Module):
    """A model with a split of torch's in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.a(x))
        pipe_split()
        return self.b(x)


class Skipping(Marked):
    """A last stage that takes the model's input too."""

    def forward(self, x: Tensor) -> Tensor:
        x, y = torch.tanh(self.a(x)), x
        pipe_split()
        return self.b(x) + y


# Torch itself calls what it has deprecated.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", [Marked, Skipping])
def test_what_torchs_pipeline_cut_are_layers(kind: type[nn.Module]) -> None:
    model, x = kind(), torch.randn(2, WIDTH)
    layers = LayerGraph(pipeline(model, (x,)).split_gm, whole=("submod_*",))
    assert layers.names == ("submod_pp_0", "submod_pp_1")
    assert torch.equal(outputs(layers, x), model(x))
    parameters = {p.data_ptr() for m in layers.modules.values() for p in m.parameters()}
    assert parameters == {p.data_ptr() for p in model.parameters()}


def test_what_are_no_stages_is_refused() -> None:
    for wrong in ([], nn.Linear(2, 2)):
        with pytest.raises(InputError, match=r"expected stages of torch.distributed.pipelining"):
            StageSchedule(wrong, 2, nn.functional.mse_loss)  # type: ignore[arg-type]
