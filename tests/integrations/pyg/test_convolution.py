"""Convolutions on own and halo rows: loops that they add, weights of edges, and what cannot be split."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError

with warnings.catch_warnings():
    # PyG scripts functions at import, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import ChebConv, GATConv, GATv2Conv, GraphConv, SAGEConv

    from wirewise.integrations import pyg
from tests.integrations.pyg.graphs import Net, whole_graph


def test_models_that_cannot_be_split_are_refused() -> None:
    data = whole_graph()

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = SAGEConv(8, 4), nn.BatchNorm2d(4)

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        with pytest.raises(InputError, match=r"second is a ChebConv|first is a ChebConv"):
            job.distribute(Net(lambda i, o: ChebConv(i, o, K=3)))
        with pytest.raises(InputError, match="no torch_geometric"):
            job.distribute(nn.Linear(3, 3))
        with pytest.raises(InputError, match="norm is a BatchNorm2d"):
            job.distribute(Normed())

    run_ranks_as_threads(1, body)


def gat_with_loops(inputs: int, outputs: int) -> nn.Module:
    return GATConv(inputs, outputs, heads=2, concat=False)


def gatv2_with_loops(inputs: int, outputs: int) -> nn.Module:
    return GATv2Conv(inputs, outputs, heads=2, concat=False)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("make", [gat_with_loops, gatv2_with_loops])
def test_loops_that_attention_adds_join_nodes_to_themselves(make: Callable[..., Any], directed: bool) -> None:
    data = whole_graph(directed)
    torch.manual_seed(1)
    model = Net(make)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)

    def body(rank: int, group: Any, store: Any) -> tuple[Tensor, Tensor]:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store)
        mine = job.distribute(copy.deepcopy(model))
        return job.data.n_id, mine(job.data.x, job.data.edge_index).detach()

    for n_id, out in run_ranks_as_threads(3, body):
        assert torch.allclose(out, expected[n_id], rtol=1e-5, atol=1e-5)


class Weighted(nn.Module):
    """A convolution that is given something for its edges."""

    def __init__(self, given: Callable[[Tensor], dict[str, Any]]) -> None:
        super().__init__()
        self.conv, self.given = GraphConv(8, 4), given

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index, **self.given(edge_index))


def test_weights_of_edges_are_carried_out_or_refused_by_name() -> None:
    data = whole_graph()
    ones = Weighted(lambda edges: {"edge_weight": torch.ones(edges.shape[1])})
    twos = Weighted(lambda edges: {"edge_weight": 2 * torch.ones(edges.shape[1])})
    twos.load_state_dict(ones.state_dict())

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        own = job.data
        with torch.no_grad():
            for model in (ones, twos):
                expected = model(data.x, data.edge_index)[own.n_id]
                assert torch.allclose(
                    job.distribute(model)(own.x, own.edge_index), expected, rtol=1e-5, atol=1e-5
                )
        for given, word in (
            ({"edge_weight": torch.ones(3)}, "edge_weight"),
            ({"edge_weight": [1.0]}, "edge_weight"),
            ({"size": (3, 3)}, "size"),
        ):
            with pytest.raises(InputError, match=f"conv is a GraphConv, which was called with {word}"):
                job.distribute(Weighted(lambda edges, given=given: given))(own.x, own.edge_index)

    run_ranks_as_threads(1, body)
