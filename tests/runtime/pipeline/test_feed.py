"""Batches of pipelines: several inputs, a smaller last one, and groups of parameters by name, as one process trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import LayerGraph, Pipeline

WIDTH, ROWS = 6, 8


class Attention(nn.Module):
    """Rows of words, of which a mask says which are there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None], -1e9)
        result: torch.Tensor = self.norm(x + self.layer(scores.softmax(-1) @ x))
        return result


class Encoder(nn.Module):
    """A model as users write it, with a mask that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, scale: float = 1.0, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.first(x) * scale
        for block in self.blocks:
            x = block(x, mask)
        result: torch.Tensor = self.last(x)
        return result


def encoder() -> Encoder:
    torch.manual_seed(2)
    return Encoder().double()


def cut(model: Encoder) -> LayerGraph:
    return LayerGraph(model, extra_inputs=("mask",))


def as_list(model: Encoder) -> LayerGraph:
    modules = {
        "first": model.first,
        **{f"blocks.{n}": one for n, one in enumerate(model.blocks)},
        "last": model.last,
    }
    before = ["first", "blocks.0", "blocks.1"]
    sources = {f"blocks.{n}": (before[n], "input:mask") for n in range(3)}
    return LayerGraph(modules, sources, extra_inputs=("mask",))


def batches(sizes: tuple[int, ...]) -> list[Any]:
    own = torch.Generator().manual_seed(5)
    found = []
    for rows in sizes:
        x = torch.randn(rows, 4, WIDTH, generator=own, dtype=torch.float64)
        mask = torch.rand(rows, 4, generator=own) > 0.3
        mask[:, 0] = True
        found.append(({"x": x, "mask": mask}, torch.randn(rows, 4, 1, generator=own, dtype=torch.float64)))
    return found


def groups(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """No weight decay on biases and norms."""
    plain = [p for name, p in named if name.endswith("bias") or ".norm." in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or ".norm." in name)]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.5}, {"params": plain, "weight_decay": 0.0}], lr=0.02
    )


def trained(sizes: tuple[int, ...]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """One process."""
    model = encoder()
    optimizer = groups(list(model.named_parameters()))
    losses = []
    for inputs, target in batches(sizes):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(**inputs), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("build", [cut, as_list])
@pytest.mark.parametrize("style", ["1f1b", "zero-bubble"])
def test_masks_smaller_batches_and_groups_train_as_one_process(build: Any, style: str) -> None:
    sizes = (8, 8, 5, 1)
    layers = build(encoder())
    cuts = [len(layers.names) // 2]
    plan = StagePlan.from_cuts(
        layers.names, cuts, style=style, microbatches=4, microbatch_size=2, edges=layers.edges(cuts)
    )
    models = [encoder() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> Any:
        layers = build(models[rank])
        pipeline = Pipeline(
            layers,
            plan,
            loss=functional.mse_loss,
            optimizer=groups,
            by_name=True,
            process_group=group,
            store=store,
            timeout_s=20,
        )
        losses = [result.loss for result in pipeline.train(batches(sizes))]
        outputs = [one.output for one in pipeline.evaluate(inputs for inputs, _ in batches((3,)))]
        pipeline.close()
        named = {layers.plain_name(name, p): p for name, p in pipeline.weights.named.items()}
        return losses, outputs, named

    ranks = run_ranks_as_threads(2, body)
    wanted, parameters = trained(sizes)
    assert ranks[1][0] == pytest.approx(wanted)
    found = {**ranks[0][2], **ranks[1][2]}
    assert found.keys() == parameters.keys()
    for name, own in found.items():
        torch.testing.assert_close(own.detach(), parameters[name], msg=name)
    model = encoder()
    model.load_state_dict(found)
    torch.testing.assert_close(ranks[1][1][0], model(**batches((3,))[0][0]).detach())


def alone(modules: list[nn.Module], batch: Any, **further: Any) -> None:
    layers = LayerGraph(modules, **further)
    plan = StagePlan.from_cuts(layers.names, [], style="1f1b", microbatches=2, microbatch_size=2)

    def body(rank: int, group: Any, store: Any) -> None:
        pipeline = Pipeline(
            layers,
            plan,
            loss=functional.mse_loss,
            optimizer=torch.optim.SGD,
            process_group=group,
            store=store,
        )
        try:
            list(pipeline.train([batch]))
        finally:
            pipeline.close()

    run_ranks_as_threads(1, body)


@pytest.mark.parametrize(
    ("modules", "rows", "said"),
    [
        ([nn.Linear(3, 3)], 5, "expected 4 rows, 2 microbatches of 2 as the plan says"),
        ([nn.Linear(3, 3), nn.BatchNorm1d(3)], 3, "not fewer: module '1' normalises over rows"),
    ],
)
def test_batches_of_other_sizes_are_refused(modules: Any, rows: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        alone(modules, (torch.randn(rows, 3), torch.randn(rows, 3)))


def test_other_inputs_are_refused() -> None:
    target = torch.randn(4, 3)
    for given, said in (
        ((target, target), r"inputs 2; expected 1: input"),
        ({"x": target, "mask": target}, r"inputs \['x', 'mask'\]; expected 1"),
    ):
        with pytest.raises(InputError, match=said):
            alone([nn.Linear(3, 3)], (given, target))
    sources = {"0": ("input", "input:mask")}
    with pytest.raises(InputError, match=r"have \[4, 1\] rows"):
        alone([nn.Bilinear(3, 3, 3)], ((target, target[:1]), target), sources=sources, extra_inputs=("mask",))
    with pytest.raises(InputError, match=r"further inputs are \['masks'\]; expected arguments"):
        LayerGraph(encoder(), extra_inputs=("masks",))
