"""X4, X5: what quantized messages do to gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.harness.threads import run_ranks_as_threads
from tests.harness.tiers import slow
from tests.runtime.full_graph.training import build_trainer
from wirewise import graph
from wirewise.runtime import full_graph as fg

DRAWS = 60


def trained_weights(parts: list[graph.Part], epochs: int) -> dict[str, Tensor]:
    """Weights after some epochs of fp32 training."""

    def body(rank: int, group: object, store: object) -> dict[str, Tensor]:
        transport = fg.Transport(group, timeout_s=30, store=store)  # type: ignore[arg-type]
        trainer = build_trainer(parts[rank], transport, "fp32", hidden=64)
        for _ in range(epochs):
            trainer.train_epoch()
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        trainer.close()
        transport.close()
        return weights

    return run_ranks_as_threads(len(parts), body)[0]


def flat_gradients(
    parts: list[graph.Part],
    mode: fg.ExchangeMode | str,
    epochs: int,
    *,
    dropout: float = 0.5,
    exact_forward: bool = False,
    weights: dict[str, Tensor] | None = None,
) -> Tensor:
    """Gradients of `epochs` epochs at fixed weights, [epochs, parameters]; None: the first weights.

    Dropout masks depend on the epoch only, so gradients of two modes can be compared epoch by epoch.
    """

    def body(rank: int, group: object, store: object) -> Tensor:
        transport = fg.Transport(group, timeout_s=30, store=store)  # type: ignore[arg-type]
        trainer = build_trainer(parts[rank], transport, mode, hidden=64, dropout=dropout)
        if weights is not None:
            trainer.model.load_state_dict(weights)
        if exact_forward:
            trainer.exchange.new_lane = _exact_forward
        taken = []
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
        for _ in range(epochs):
            trainer.train_epoch()
            taken.append(
                torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
            )
        trainer.close()
        transport.close()
        return torch.stack(taken)

    return run_ranks_as_threads(len(parts), body)[0]


def _exact_forward(lane: fg.Lane) -> None:
    lane.set_static_bits()
    if lane.name.startswith("forward"):
        lane.set_bits(
            {p: b * 0 + 32 for p, b in lane.send_bits.items()},
            {p: b * 0 + 32 for p, b in lane.receive_bits.items()},
        )


@pytest.fixture(scope="module")
def parts() -> list[graph.Part]:
    data = graph.block_model(graph.BlockModel(nodes=4000))
    return list(graph.split_graph(data, graph.partition(data, 4, seed=1), num_parts=4))


@pytest.fixture(scope="module")
def points(parts: list[graph.Part]) -> list[tuple[dict[str, Tensor] | None, Tensor]]:
    """First weights and those of 60 epochs, each with its exact gradients of five epochs."""
    return [
        (weights, flat_gradients(parts, "fp32", 5, weights=weights))
        for weights in (None, trained_weights(parts, 60))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [slow(2), 4, slow(8)])
@pytest.mark.sample(1)
def test_quantized_gradients_alone_are_unbiased(parts: list[graph.Part], bits: int) -> None:
    exact = flat_gradients(parts, "fp32", 1, dropout=0.0)[0]
    messages_only = replace(fg.mode(f"uniform-{bits}"), gradient_bits=32)
    drawn = flat_gradients(parts, messages_only, DRAWS, dropout=0.0, exact_forward=True)
    error = (drawn.mean(0) - exact).norm() / exact.norm()
    floor = (drawn - drawn.mean(0)).norm(dim=1).pow(2).mean().sqrt() / DRAWS**0.5 / exact.norm()
    assert floor > 0
    assert error <= 1.5 * floor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bits", "at_start", "after_training"),
    [slow((8, 0.9999, 0.999)), (4, 0.999, 0.985), slow((2, 0.99, 0.80))],
)
@pytest.mark.sample(1)
def test_gradient_cosine(
    parts: list[graph.Part],
    points: list[tuple[dict[str, Tensor] | None, Tensor]],
    bits: int,
    at_start: float,
    after_training: float,
) -> None:
    for (weights, exact), threshold in zip(points, (at_start, after_training), strict=True):
        drawn = flat_gradients(parts, f"uniform-{bits}", 5, weights=weights)
        cosines = torch.nn.functional.cosine_similarity(drawn, exact, dim=1)
        assert float(cosines.mean()) >= threshold


def test_gradients_in_sixteen_bits_are_rounded_once_a_rank(parts: list[graph.Part]) -> None:
    exact = flat_gradients(parts, "fp32", 1)[0]
    rounded = flat_gradients(parts, replace(fg.mode("fp32"), gradient_bits=16), 1)[0]
    error = (rounded - exact).norm() / exact.norm()
    assert 0 < error <= len(parts) * 2.0**-9
