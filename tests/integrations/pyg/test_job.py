"""What the user gave reaches the ranks as it was: labels, masks, types, edges, attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.test_pyg_law import NODES, a_graph
from wirewise.errors import WirewiseError


def test_attributes_of_nodes_are_kept_as_given() -> None:
    data = a_graph("loops")
    data.y = torch.rand(NODES) * 3
    data.x = data.x.double()
    data.train_mask = data.train_mask | data.val_mask
    data.val_mask = torch.stack([~data.val_mask, data.val_mask], dim=1)
    data.place = torch.rand(NODES, 3)

    def body(rank: int, group: Any, store: Any) -> None:
        own = job_of(data, rank, group, store, mask_column=1).data
        for name in ("x", "y", "train_mask", "test_mask", "place"):
            assert torch.equal(own[name], data[name][own.n_id])
            assert own[name].dtype == data[name].dtype
        assert torch.equal(own.val_mask, data.val_mask[own.n_id, 1])

    run_ranks_as_threads(2, body)


@pytest.mark.parametrize("kind", ["loops", "duplicates", "directed"])
def test_every_edge_is_on_one_rank_with_its_attributes(kind: str) -> None:
    data = a_graph(kind)
    data.edge_attr = torch.arange(data.edge_index.shape[1])

    def body(rank: int, group: Any, store: Any) -> tuple[torch.Tensor, torch.Tensor]:
        job = job_of(data, rank, group, store)
        part, (source, target) = job.tensors.part, torch.from_numpy(job._pairs)
        ids = torch.cat([torch.from_numpy(part.own_ids), torch.from_numpy(part.halo_ids)])
        assert job.data.edge_index.shape == (2, len(job.data.edge_attr))
        return torch.stack([ids[source], ids[target]]), job.data.edge_attr

    found = run_ranks_as_threads(3, body)
    edges, numbers = torch.cat([f[0] for f in found], dim=1), torch.cat([f[1] for f in found])
    assert torch.equal(numbers.sort().values, data.edge_attr)
    assert torch.equal(edges, data.edge_index[:, numbers])


def hetero() -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.rand(4, 3)
    return data


def several_splits() -> Data:
    data = a_graph("directed")
    data.train_mask = torch.stack([data.train_mask] * 3, dim=1)
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (hetero(), "HeteroData"),
        (several_splits(), "mask_column is None; train_mask has 3 columns"),
        (Data(x=torch.rand(3, 2), adj_t=torch.eye(3)), "adj_t"),
        ([a_graph("directed")], "got a list of 1; expected one Data object"),
        (Data(edge_index=torch.zeros(2, 1, dtype=torch.int64)), "neither x nor y, .* expected num_nodes"),
        (None, "neither data nor parts"),
    ],
)
def test_what_is_no_graph_of_one_kind_is_refused_on_all_ranks(data: Any, message: str) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        with pytest.raises(WirewiseError, match=message if rank == 0 else "rank 0 cannot use the graph"):
            job_of(data, rank, group, store)

    run_ranks_as_threads(2, body)
