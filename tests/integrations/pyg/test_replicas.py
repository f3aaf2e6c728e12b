"""Ranks whose parameters or buffers drift apart hear of it within a step, by the name of what differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError
from wirewise.integrations.pyg.replicas import Replicas

Drift = Callable[[nn.Module, Any, int], None]


def step(model: Any, data: Any, rate: float = 0.1) -> None:
    out = model(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= rate * p.grad
    model.zero_grad()


def reset(model: Any, data: Any, rank: int) -> None:
    """Draw parameters for a second run under a seed of this rank, like `reset_parameters()`."""
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=torch.Generator().manual_seed(rank))


def loaded_on_one_rank(model: Any, data: Any, rank: int) -> None:
    if rank == 1:
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})


def own_learning_rate(model: Any, data: Any, rank: int) -> None:
    step(model, data, 0.1 / (rank + 1))


def noise(model: Any, data: Any, rank: int) -> None:
    with torch.no_grad():
        model.head.bias += 1e-4 * torch.randn(
            model.head.bias.shape, generator=torch.Generator().manual_seed(rank)
        )


def a_buffer(model: Any, data: Any, rank: int) -> None:
    model.seen.fill_(rank)


def made() -> nn.Module:
    model = a_model()
    model.register_buffer("seen", torch.zeros(2))
    return model


@pytest.mark.parametrize(
    ("drift", "name"),
    [
        (reset, "first.lin_l.weight"),
        (loaded_on_one_rank, "first.lin_l.weight"),
        (own_learning_rate, "first.lin_l.weight"),
        (noise, "head.bias"),
        (a_buffer, "seen"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_drift_is_named_on_all_ranks(drift: Drift, name: str, training: bool) -> None:
    data, models = a_graph("directed"), [made() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine, own = job.distribute(models[rank]), job.data
        step(mine, own)
        mine.eval()(own.x, own.edge_index)
        mine.train()
        drift(mine, own, rank)
        with pytest.raises(
            InputError, match=rf"(?s)\b{name} is not the same on all ranks .*job\.synchronize"
        ):
            if training:
                step(mine, own)
            # A step under rates of the ranks' own is one before that which notices.
            mine.eval()(own.x, own.edge_index)
        job.synchronize()
        step(mine.train(), own)

    run_ranks_as_threads(3, body)


def test_which_ranks_hold_which_is_told() -> None:
    data, models = a_graph("directed"), [made() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        loaded_on_one_rank(mine, job.data, rank)
        with pytest.raises(InputError, match=r"ranks 0, 2; rank 1"):
            step(mine, job.data)

    run_ranks_as_threads(3, body)


def test_rounding_is_taken_from_rank_0() -> None:
    """Processors of other kinds may add in another order."""
    data, models = a_graph("directed"), [made() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> Tensor:
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        step(mine, job.data)
        with torch.no_grad():
            mine.head.weight.mul_(1 + rank * 2e-7)
        step(mine, job.data)
        return mine.head.weight.detach().clone()

    one, other = run_ranks_as_threads(2, body)
    assert torch.equal(one, other)


def test_every_window_of_a_large_tensor_is_looked_at() -> None:
    data, models = a_graph("directed"), [made() for _ in range(2)]
    for model in models:
        model.register_buffer("large", torch.zeros(100_000))

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine = job.distribute(models[rank])
        step(mine, job.data)
        mine.large[-1] = rank
        with pytest.raises(InputError, match="large is not the same"):
            for _ in range(8):
                step(mine, job.data)

    run_ranks_as_threads(2, body)


@pytest.mark.parametrize("size", [0, 3, 8, 16_384, 16_387, 100_001])
def test_each_change_of_a_tensor_changes_the_checksum_of_some_turn(size: int) -> None:
    """Changes are made in place, by other memory, by another shape, and in the last bytes, which fill no word."""
    module = nn.Module()
    module.register_parameter("p", nn.Parameter(torch.arange(size, dtype=torch.float32)))
    module.register_buffer("q", torch.arange(size, dtype=torch.uint8))
    replicas = Replicas(module, transport=None)  # type: ignore[arg-type]

    def sums() -> list[int]:
        return [replicas.checksum(turn) for turn in range(8)]

    before = sums()
    assert before == sums()
    if not size:
        return
    with torch.no_grad():
        module.p[-1] += 1.0
        assert sums() != before
        module.p[-1] -= 1.0
        assert sums() == before
        module.q[-1] ^= 1
        assert sums() != before
        module.q[-1] ^= 1
    module.p.data = torch.arange(size, dtype=torch.float32) + 1.0
    assert sums() != before
    module.p.data = torch.arange(size, dtype=torch.float32)
    assert sums() == before
    module.p = nn.Parameter(torch.zeros(size))
    assert size == 1 or sums() != before
