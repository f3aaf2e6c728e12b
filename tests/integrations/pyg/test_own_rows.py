"""Statistics over rows of job.data: refused where they are those of one rank, or computed over all."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError
from wirewise.integrations.pyg.own_rows import OwnRows, plain_rows

STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "mean(0)": lambda x: x - x.mean(0),
    "mean(0), as many columns as rows": lambda x: x[:, :4][:4].mean(0),
    "mean of a column": lambda x: x[:, 0].mean(),
    "mean after a logarithm": lambda x: (x.abs() + 1).log().mean(dim=0, keepdim=True),
    "mean of some rows": lambda x: x[torch.tensor([0, 2])].mean(0),
    "sum": lambda x: x.sum(),
    "std": lambda x: torch.std(x, 0),
    "var": lambda x: x.var(dim=0),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "max": lambda x: x.max(0),
    "amin": lambda x: torch.amin(x, (0, 1)),
    "norm": lambda x: x.norm(),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "quantile": lambda x: x.quantile(0.5, 0),
    "median": lambda x: x.median(),
    "softmax(0)": lambda x: x.softmax(0),
    "normalize(dim=0)": lambda x: F.normalize(x, dim=0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "covariance": lambda x: x.T @ x,
    "similarity": lambda x: x @ x.T,
    "centroids": lambda x: torch.zeros(3, x.shape[1]).index_add_(
        0, torch.zeros(len(x), dtype=torch.int64), x
    ),
    "sums of classes": lambda x: torch.ones(2, len(x)) @ x,
    "transposed": lambda x: x.t().mean(1),
    "count": lambda x: (x > 0).sum(),
    "moved": lambda x: x.unsqueeze(0).mean(1),
}
OF_EACH_ROW: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x - 0.5) / 2 + x.exp(),
    "of columns": lambda x: x / x.sum(-1, keepdim=True).clamp(min=1),
    "norm of rows": lambda x: F.normalize(x, dim=1),
    "linear": lambda x: x @ torch.ones(x.shape[1], 2),
    "einsum": lambda x: torch.einsum("nf,fk->nk", x, torch.ones(x.shape[1], 2)),
    "softmax": lambda x: x.softmax(-1),
    "concatenation": lambda x: torch.cat([x, x[:, :1]], 1),
    "largest column": lambda x: x.max(1).values,
    "there and back": lambda x: (x.t() - 1).t(),
}


def rows(count: int = 6) -> OwnRows:
    return OwnRows.of(torch.randn(count, 5, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_a_statistic_over_own_rows_is_refused_with_what_to_do(statistic: Callable[[Tensor], Any]) -> None:
    with pytest.raises(InputError, match=r"takes rows of job.data together.*job\.statistics\(job\.data\.x\)"):
        statistic(rows())


@pytest.mark.parametrize("function", OF_EACH_ROW.values(), ids=OF_EACH_ROW)
def test_what_is_computed_of_each_row_stays_one_and_has_the_same_bits(
    function: Callable[[Tensor], Any],
) -> None:
    result = function(rows())
    assert type(result) is OwnRows and torch.equal(plain_rows(result), function(plain_rows(rows())))
    with pytest.raises(InputError, match="takes rows"):
        result.mean(0)


def test_what_is_no_statistic_is_left_alone() -> None:
    x = rows()
    assert not x.isnan().any() and x.shape == (6, 5) and len(x) == 6
    assert type(x[0]) is Tensor and float(x[0].sum()) == float(plain_rows(x)[0].sum())
    assert [type(row) for row in x] == [Tensor] * 6
    assert type(torch.rand_like(x)) is Tensor and type(x.new_zeros(3)) is Tensor
    assert isinstance(x.numpy(), np.ndarray) and "OwnRows(" in repr(x)
    assert type(x.as_subclass(torch.Tensor).mean(0)) is Tensor
    parameter = nn.Linear(5, 2)
    assert type(parameter(x)) is Tensor
    for copied in (copy.deepcopy(x), torch.load(stored(x), weights_only=True)):
        assert torch.equal(plain_rows(copied), plain_rows(x))
    # A model says that it takes no such input, and must not be given another tensor in its place.
    assert plain_rows(x.requires_grad_()).requires_grad and plain_rows(nn.Parameter(rows())).requires_grad
    assert type(plain_rows(OwnRows.of(rows()))) is Tensor


def stored(x: Tensor) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    return buffer


class Net(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.first = SAGEConv(columns, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.first(x, edge_index)


def standardized(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (x - mean) / std


@pytest.mark.parametrize("when", ["passed", "set before", "in place before", "set after"])
def test_features_that_are_standardized_over_all_ranks_give_the_outputs_of_one_process(when: str) -> None:
    whole = a_graph("directed")
    torch.manual_seed(0)
    net = Net(whole.x.shape[1])
    mean, std = whole.x.mean(0), whole.x.std(0)

    def body(rank: int, group: Any, store: Any) -> tuple[Tensor, Tensor]:
        job = job_of(whole, rank, group, store)
        data = job.data
        s = job.statistics(data.x)
        assert s.rows == len(whole.x) and type(s.mean) is Tensor
        for found, expected in (
            (s.mean, mean), (s.std, std), (s.minimum, whole.x.amin(0)), (s.maximum, whole.x.amax(0)),
            (s.norm, whole.x.norm(dim=0)), (s.sum, whole.x.sum(0)),
        ):  # fmt: skip
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        masked = job.statistics(data.x, data.train_mask)
        torch.testing.assert_close(masked.mean, whole.x[whole.train_mask].mean(0), rtol=1e-4, atol=1e-5)
        changed = standardized(data.x, s.mean, s.std)
        if when == "in place before":
            data.x.sub_(s.mean).div_(s.std)
        elif when == "set before":
            data.x = changed
        model = job.distribute(net)
        if when == "set after":
            data.x = changed
        with pytest.raises(InputError, match=r"takes rows of job\.data together"):
            data.x.mean(0)
        with torch.no_grad():
            return data.n_id, model(changed if when == "passed" else data.x, data.edge_index)

    expected = net(standardized(whole.x, mean, std), whole.edge_index)
    for ids, out in run_ranks_as_threads(2, body):
        torch.testing.assert_close(out, expected[ids], rtol=1e-4, atol=1e-5)


class Standardizing(nn.Module):
    """A model that takes the whole Data, and whose norm takes rows together."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.norm, self.net = nn.BatchNorm1d(columns), Net(columns)

    def forward(self, data: Any) -> Tensor:
        data.seen = type(data.x)
        return self.net(self.norm(data.x), data.edge_index)


def test_inside_a_model_rows_are_ordinary_tensors() -> None:
    whole = a_graph("directed")
    torch.manual_seed(0)
    model = Standardizing(whole.x.shape[1])
    alone = copy.deepcopy(model)
    expected = alone(whole)

    def body(rank: int, group: Any, store: Any) -> tuple[Tensor, Tensor]:
        job = job_of(whole, rank, group, store)
        data, ranked = job.data, job.distribute(copy.deepcopy(model))
        out = ranked(data).detach()
        assert data.seen is Tensor and type(data.x) is OwnRows
        return data.n_id, out

    for ids, out in run_ranks_as_threads(2, body):
        torch.testing.assert_close(out, expected[ids], rtol=1e-4, atol=1e-5)
