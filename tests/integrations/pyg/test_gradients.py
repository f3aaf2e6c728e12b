"""What ranks compare before gradients flow: steps, exchanges, constants, the way backward was called."""

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
from tests.integrations.pyg_models import CLASSES, FEATURES, g
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError

Step = Callable[[Any, Any, Any], None]


def ce(model: Any, data: Any) -> Tensor:
    return F.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])


def other_constants(model: Any, job: Any, data: Any) -> None:
    (ce(model, data) * (1 + job.transport.rank)).backward()


def other_gradient(model: Any, job: Any, data: Any) -> None:
    ce(model, data).backward(torch.tensor(1.0 + job.transport.rank))


def other_constants_of_a_global_mean(model: Any, job: Any, data: Any) -> None:
    out = model(data.x, data.edge_index)
    value = job.mean(out.square().sum(1), data.val_mask)
    (value * (1 + job.transport.rank)).backward()


def function_of_own_loss(model: Any, job: Any, data: Any) -> None:
    """The weight of one term follows this rank's own loss."""
    loss = ce(model, data)
    (loss + loss.detach() * ce(model, data)).backward()


def by_autograd_backward(model: Any, job: Any, data: Any) -> None:
    torch.autograd.backward(ce(model, data))


def by_create_graph(model: Any, job: Any, data: Any) -> None:
    ce(model, data).backward(create_graph=True)


def by_custom_function(model: Any, job: Any, data: Any) -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    Same.apply(ce(model, data)).backward()


def parameters_on_rows(model: Any, job: Any, data: Any) -> None:
    """A consistency term beside the model's forward."""
    (ce(model, data) + 0.1 * (data.x @ model.first.lin_r.weight.t()).square().mean()).backward()


def parameters_on_rows_beside_a_global_mean(model: Any, job: Any, data: Any) -> None:
    value = job.mean(model(data.x, data.edge_index).square().sum(1), data.train_mask)
    (value + 0.1 * (data.x @ model.first.lin_r.weight.t()).square().mean()).backward()


def other_penalties(model: Any, job: Any, data: Any) -> None:
    (ce(model, data) + job.transport.rank * model.head.weight.square().sum()).backward()


def of_rows(model: Any, job: Any, data: Any) -> None:
    out = model(data.x, data.edge_index)
    out.backward(torch.ones_like(out))


def nested(model: Any, job: Any, data: Any) -> None:
    out = model(data.x, data.edge_index)
    job.mean(out.square().sum(1) * job.mean(out.sum(1)), data.train_mask).backward()


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (other_constants, "another weight on each rank"),
        (other_gradient, "another weight on each rank"),
        (other_constants_of_a_global_mean, "job.mean or job.sum another weight on each rank"),
        (function_of_own_loss, "the loss of rank"),
        (parameters_on_rows, "a part without outputs.*another gradient on each rank"),
        (parameters_on_rows_beside_a_global_mean, "a part without outputs.*another gradient on each rank"),
        (other_penalties, "a part without outputs.*another gradient on each rank"),
        (by_autograd_backward, r"without loss\.backward\(\)"),
        (by_custom_function, "the loss of rank"),
        (by_create_graph, "create_graph=True"),
        (of_rows, "outside its train_mask"),
        (nested, "depend on the result of another job.mean"),
    ],
)
def test_losses_that_differ_over_ranks_are_refused(step: Step, message: str) -> None:
    data, copies = a_graph("directed"), [a_model() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        with pytest.raises(InputError, match=message):
            step(job.distribute(copies[rank]), job, job.data)

    run_ranks_as_threads(3, body)


class OneConvolution(nn.Module):
    """It reads stored features only, so that no exchange tells ranks apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = g.SAGEConv(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.other(x) if id(self) in DROPPED else self.other(x) + self.conv(x, edge_index)


DROPPED: set[int] = set()
"""Models that leave a layer out; as a global variable it is no attribute that is watched."""


def skips_backward(model: Any, rank: int, number: int) -> bool:
    return rank == 1 and number == 2


def drops_a_layer(model: Any, rank: int, number: int) -> bool:
    if rank == 1 and number == 2:
        DROPPED.add(id(model))
    return False


@pytest.mark.parametrize("does", [skips_backward, drops_a_layer])
def test_ranks_in_different_steps_are_told(does: Callable[[Any, int, int], bool]) -> None:
    data, copies = a_graph("directed"), [OneConvolution() for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        mine = job.distribute(copies[rank])
        mine(job.data.x, job.data.edge_index)
        with pytest.raises(
            InputError, match="ranks are in different steps, or their models made other exchanges"
        ):
            for number in range(5):
                skips = does(mine, rank, number)
                loss = ce(mine, job.data)
                if not skips:
                    loss.backward()

    run_ranks_as_threads(2, body)


def test_accumulated_and_repeated_back_propagations() -> None:
    data, copies = a_graph("directed"), [a_model() for _ in range(3)]
    whole = a_model()

    def gradients(model: Any, where: Any) -> list[Tensor]:
        loss = ce(model, where)
        loss.backward(retain_graph=True)
        loss.backward()
        (ce(model, where) / 2).backward(inputs=list(model.parameters()))
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients(whole, data)

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        assert distance(gradients(job.distribute(copies[rank]), job.data), expected) < 1e-5

    run_ranks_as_threads(3, body)


def test_lbfgs_with_a_loss_that_is_equal_on_all_ranks() -> None:
    data, copies, whole = a_graph("directed"), [a_model() for _ in range(2)], a_model()

    def train(model: Any, where: Any, job: Any) -> list[Tensor]:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            out = model(where.x, where.edge_index)
            loss = ce(model, where) if job is None else job.cross_entropy(out, where.y, where.train_mask)
            loss.backward()
            return loss

        optimizer.step(closure)
        return [p.detach().clone() for p in model.parameters()]

    expected = train(whole, data, None)

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        assert distance(train(job.distribute(copies[rank]), job.data, job), expected) < 1e-3

    run_ranks_as_threads(2, body)


def test_outputs_that_a_script_has_dropped_are_none_of_a_loss() -> None:
    data = a_graph("undirected")

    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(data, rank, group, store)
        model, own = job.distribute(a_model()), job.data
        sums = model._wirewise_step.bundle.gradients
        # As in an evaluation that forgets torch.no_grad(), each time anew.
        for _ in range(3):
            model(own.x, own.edge_index)
        assert sums.outputs() == [] and len(sums.opened) <= 1
        out = model(own.x, own.edge_index)
        other = model(own.x, own.edge_index)
        assert len(sums.outputs()) == 2
        F.cross_entropy((out + other)[own.train_mask], own.y[own.train_mask]).backward()
        assert sums.outputs() == []

    run_ranks_as_threads(1, body)
