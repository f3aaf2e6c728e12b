"""Losses over the nodes of all ranks: what one process computes, or an error on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.spread import a_model
from tests.integrations.pyg_models import CLASSES
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError
from wirewise.instruments import observer
from wirewise.integrations import pyg

WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])


def each(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


def penalty(model: nn.Module) -> Tensor:
    return 0.1 * sum((p.square().sum() for p in model.parameters()), torch.zeros(()))


def classes(out: Tensor, data: Any, **options: Any) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask], **options)


Loss = Callable[[nn.Module, Tensor, Any, Any], Tensor]
"""Loss of model, output, data and job (None on one process)."""


def validation(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    if job is None:
        return F.cross_entropy(out[data.val_mask], data.y[data.val_mask])
    return job.mean(each(out, data.y), data.val_mask)


def summed(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    if job is None:
        return classes(out, data, reduction="sum")
    return job.sum(each(out, data.y), data.train_mask)


def weighted(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    if job is None:
        return classes(out, data, weight=WEIGHTS)
    return job.mean(each(out, data.y), data.train_mask, weights=WEIGHTS[data.y])


def mixed(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    other = out.square().sum(1)
    wide = out.square().mean() if job is None else job.mean(out.square())
    far = other[data.val_mask].sum() if job is None else job.sum(other, data.val_mask)
    return validation(model, out, data, job) + 0.3 * wide + 1e-3 * far + penalty(model)


def plain(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return classes(out, data) + penalty(model)


def plain_and_declared(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return classes(out, data) + 0.5 * validation(model, out, data, job)


def by_product(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return (each(out, data.y) * data.train_mask).sum() / data.train_mask.sum()


def gradients(model: nn.Module, data: Any, loss: Loss, job: Any) -> tuple[float, list[Tensor]]:
    value = loss(model, model(data.x, data.edge_index), data, job)
    value.backward()
    return float(value.detach()), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.sweep
@pytest.mark.parametrize("one_node", [False, True])
@pytest.mark.parametrize("loss", [plain, validation, summed, weighted, mixed, plain_and_declared, by_product])
def test_losses_count_every_node_once(loss: Loss, one_node: bool) -> None:
    data = a_graph("directed")
    if one_node:
        # All ranks but one have no training node.
        data.train_mask = torch.arange(len(data.y)) == int(data.train_mask.nonzero()[0])
    model = a_model()
    value, expected = gradients(copy.deepcopy(model), data, loss, None)
    copies = [copy.deepcopy(model) for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        found, grads = gradients(job.distribute(copies[rank]), job.data, loss, job)
        assert distance(grads, expected) < 1e-5
        if loss in (validation, summed, weighted, mixed):
            assert found == pytest.approx(value, rel=1e-5)

    run_ranks_as_threads(3, body)


def all_nodes(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return F.cross_entropy(out, data.y)


def plain_validation(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return F.cross_entropy(out[data.val_mask], data.y[data.val_mask])


def on_one_rank(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return all_nodes(model, out, data, job) if job.transport.rank == 1 else plain(model, out, data, job)


@pytest.mark.parametrize("loss", [all_nodes, plain_validation, on_one_rank])
def test_plain_losses_over_other_nodes_are_refused_on_all_ranks(loss: Loss) -> None:
    data, copies = a_graph("undirected"), [a_model() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        with pytest.raises(
            InputError, match=r"rank \d depends on outputs of nodes outside its train_mask.*job.mean"
        ):
            gradients(job.distribute(copies[rank]), job.data, loss, job)

    run_ranks_as_threads(3, body)


def test_what_cannot_be_weighed_is_refused() -> None:
    data, model = a_graph("undirected"), a_model()

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        mine, own = job.distribute(model), job.data
        out = mine(own.x, own.edge_index)
        with pytest.raises(InputError, match="outside its forward"):
            job.mean((out @ model.head.weight).sum(1), own.val_mask)
        with pytest.raises(InputError, match="outside the model's forward"):
            mine.head(torch.zeros(3, 16))
        with pytest.raises(InputError, match="a SAGEConv of a distributed model was called outside"):
            mine.first(own.x, own.edge_index)
        with pytest.raises(InputError, match="requires a gradient"):
            mine(nn.Parameter(own.x.clone()), own.edge_index)
        with pytest.raises(InputError, match="no node of any rank"):
            job.mean(out.sum(1), torch.zeros(len(out), dtype=torch.bool))
        with pytest.raises(InputError, match="reduction='none'"):
            job.sum(out.sum())
        with pytest.raises(InputError, match=r"labels are torch\.float32"):
            job.data.y = torch.zeros(len(out), CLASSES)
            job.accuracy(out, own.val_mask)

    run_ranks_as_threads(1, body)


def test_layers_outside_the_model_are_refused_by_name() -> None:
    data, model, head = a_graph("undirected"), a_model(), nn.Linear(CLASSES, CLASSES)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        out = job.distribute(model)(job.data.x, job.data.edge_index)
        with pytest.raises(InputError, match=r"parameters that no distributed model holds \(\[5, 5\]\)"):
            job.mean(each(head(out), job.data.y), job.data.train_mask)

    run_ranks_as_threads(1, body)


def by_autograd_grad(model: nn.Module, data: Any) -> None:
    torch.autograd.grad(classes(model(data.x, data.edge_index), data), list(model.parameters()))


def with_another_head(model: nn.Module, data: Any) -> None:
    model.head = nn.Linear(16, CLASSES)
    model(data.x, data.edge_index)


def with_a_layer_frozen(model: nn.Module, data: Any) -> None:
    model.second.requires_grad_(False)
    model(data.x, data.edge_index)


def with_a_layer_thawed(model: nn.Module, data: Any) -> None:
    model.first.requires_grad_(True)
    model(data.x, data.edge_index)


def with_a_hook(model: nn.Module, data: Any) -> None:
    model.head.bias.register_hook(lambda grad: grad.clamp(-1, 1))
    model(data.x, data.edge_index)


def with_an_optimizer_in_backward(model: nn.Module, data: Any) -> None:
    model.head.bias.register_post_accumulate_grad_hook(lambda p: None)
    model(data.x, data.edge_index)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            by_autograd_grad,
            r"torch\.autograd\.grad of a distributed model's output would return the part of this rank",
        ),
        (with_another_head, r"head\.weight was replaced, frozen or made trainable after job\.distribute"),
        (with_a_layer_frozen, r"second\.lin_l\.weight was replaced, frozen"),
        (with_a_layer_thawed, r"first\.lin_l\.weight was replaced, frozen"),
        (with_a_hook, r"head\.bias has a hook, which would see the gradient of one rank"),
        (with_an_optimizer_in_backward, r"head\.bias has a hook"),
    ],
)
def test_gradients_that_would_not_be_summed_are_refused_on_all_ranks(
    train: Callable[[nn.Module, Any], None], message: str
) -> None:
    data, copies = a_graph("undirected"), [a_model() for _ in range(2)]
    for model in copies:
        model.first.requires_grad_(train is not with_a_layer_thawed)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        with pytest.raises(InputError, match=message):
            train(job.distribute(copies[rank]), job.data)

    run_ranks_as_threads(2, body)


def plain_of_outputs(model: nn.Module, out: Tensor, data: Any, job: Any) -> Tensor:
    return classes(out, data)


def test_parameters_without_a_gradient_have_none() -> None:
    """An optimizer decays what has a gradient, be it zero."""
    data, copies = a_graph("undirected"), [a_model() for _ in range(2)]
    for model in copies:
        model.unused = nn.Linear(3, 3)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(copies[rank])
        assert all(p.grad is None for p in mine.parameters())
        for _ in range(2):
            gradients(mine, job.data, plain_of_outputs, job)
            assert [name for name, p in mine.named_parameters() if p.grad is None] == [
                "unused.weight",
                "unused.bias",
            ]

    run_ranks_as_threads(2, body)


def test_hooks_that_only_observe_are_let_pass() -> None:
    """A recording notes when gradients are ready, with hooks that are added and removed while a script trains."""
    data, copies = a_graph("undirected"), [a_model() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20)
        mine = job.distribute(copies[rank])
        _, plain = gradients(mine, job.data, plain_of_outputs, job)
        mine.zero_grad()
        ready: list[Tensor] = []
        handle = mine.head.bias.register_post_accumulate_grad_hook(observer(ready.append))
        _, observed = gradients(mine, job.data, plain_of_outputs, job)
        assert distance(observed, plain) == 0.0 and len(ready) == 1
        handle.remove()
        gradients(mine, job.data, plain_of_outputs, job)
        assert len(ready) == 1

    run_ranks_as_threads(2, body)
