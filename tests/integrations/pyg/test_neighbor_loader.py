"""Batches of nodes: those of PyG, the whole graph at full fan-out, and one process with the seeds of all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import trim_to_layer

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.all_neighbors import assert_equal_batches, node_batches
from tests.integrations.pyg_models import CLASSES, FEATURES, g
from tests.integrations.test_pyg_law import LIMIT, NODES, a_graph, distance
from wirewise.errors import InputError
from wirewise.integrations.pyg import NeighborLoader


class Net(nn.Module):
    """Two convolutions."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(FEATURES, 16), make(16, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(F.relu(self.first(x, edge_index)), edge_index)
        return out


def a_net(make: Callable[[int, int], nn.Module] = g.SAGEConv) -> Net:
    torch.manual_seed(3)
    return Net(make)


def gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


@pytest.mark.parametrize("kind", ["loops", "duplicates", "isolated"])
@pytest.mark.parametrize("form", ["mask", "ids", "all"])
def test_batches_are_those_of_pyg(kind: str, form: str) -> None:
    data = a_graph(kind)
    data.rate, data.name, data.place = torch.rand(3), "a graph", np.arange(NODES)
    nodes = {"mask": data.train_mask, "ids": torch.tensor([7, 3, 90, 12, 55]), "all": None}[form]
    loader = NeighborLoader(data, [-1, -1], input_nodes=nodes, batch_size=9)
    expected = node_batches(data, 2, input_nodes=nodes, batch_size=9)
    batches = list(loader)
    assert len(loader) == len(batches) == len(expected)
    for ours, theirs in zip(batches, expected, strict=True):
        assert_equal_batches(ours, theirs)


def test_batches_of_a_batch_keep_the_ids_of_the_larger_graph() -> None:
    (data,) = NeighborLoader(a_graph("loops"), [4, 4], input_nodes=range(0, 60, 2), batch_size=30)
    del data.scale, data.num_sampled_nodes, data.num_sampled_edges
    for ours, theirs in zip(
        NeighborLoader(data, [-1], batch_size=20), node_batches(data, 1, batch_size=20), strict=True
    ):
        assert_equal_batches(ours, theirs)
        assert torch.equal(ours.n_id[: ours.batch_size], data.n_id[ours.input_id])


@pytest.mark.parametrize(
    ("make", "hops"),
    # A convolution that takes degrees of sources needs all their edges: a hop more.
    [(g.SAGEConv, 2), (g.GATConv, 2), (g.GCNConv, 3)],
    ids=["SAGE", "GAT", "GCN"],
)
def test_all_neighbours_are_the_whole_graph(make: Any, hops: int) -> None:
    data, model = a_graph("duplicates"), a_net(make)
    alone = copy.deepcopy(model)
    out = alone(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask], reduction="sum").backward()
    for batch in NeighborLoader(data, [-1] * hops, data.train_mask, batch_size=11):
        found = model(batch.x, batch.edge_index)[: batch.batch_size]
        assert distance([found.detach()], [out[batch.input_id].detach()]) < LIMIT
        F.cross_entropy(found, batch.y[: batch.batch_size], reduction="sum").backward()
    assert distance(gradients(model), gradients(alone)) < LIMIT


def test_hop_sizes_trim_a_batch() -> None:
    data, model = a_graph("loops"), a_net()
    for batch in NeighborLoader(data, [4, 3], batch_size=20):
        x, edges = batch.x, batch.edge_index
        sizes = batch.num_sampled_nodes, batch.num_sampled_edges
        expected = model(x, edges)[: batch.batch_size]
        for number, layer in enumerate((model.first, model.second)):
            x, edges, _ = trim_to_layer(number, *sizes, x, edges)
            x = layer(x, edges) if number else F.relu(layer(x, edges))
        assert distance([x[: batch.batch_size].detach()], [expected.detach()]) < LIMIT


@pytest.mark.parametrize("kind", ["directed", "loops", "duplicates"])
def test_sampled_edges_are_edges_of_the_data(kind: str) -> None:
    data, fanouts = a_graph(kind), [3, 2]
    degree = torch.bincount(data.edge_index[1], minlength=NODES)
    for batch in NeighborLoader(data, fanouts, batch_size=16, shuffle=True):
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert len(batch.e_id.unique()) == len(batch.e_id)
        for name in ("x", "y", "train_mask"):
            assert torch.equal(batch[name], data[name][batch.n_id])
        for name in ("edge_attr", "edge_weight"):
            assert torch.equal(batch[name], data[name][batch.e_id])
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        ends = np.cumsum(batch.num_sampled_nodes).tolist()
        drawn = torch.bincount(batch.edge_index[1], minlength=len(batch.n_id))
        for begin, end, fanout in zip([0, *ends], ends[:2], fanouts, strict=False):
            assert torch.equal(drawn[begin:end], degree[batch.n_id[begin:end]].clamp(max=fanout))
        assert not drawn[ends[1] :].any()


def test_epochs_have_every_seed_once_in_orders_and_samples_of_their_own() -> None:
    data = a_graph("undirected")
    loader = NeighborLoader(data, [2], data.train_mask, batch_size=7, shuffle=True, seed=4)
    epochs = [list(loader) for _ in range(3)]
    orders = [torch.cat([batch.input_id for batch in epoch]) for epoch in epochs]
    for order in orders:
        assert torch.equal(order.sort().values, data.train_mask.nonzero().flatten())
    assert not torch.equal(orders[0], orders[1])
    still = NeighborLoader(data, [2], data.train_mask, batch_size=40)
    (first,), (second,) = list(still), list(still)
    assert torch.equal(first.input_id, second.input_id)
    assert not torch.equal(first.e_id, second.e_id)
    loader.set_epoch(1)
    for again, before in zip(loader, epochs[1], strict=True):
        assert torch.equal(again.e_id, before.e_id)
    other = NeighborLoader(data, [2], data.train_mask, batch_size=7, shuffle=True, seed=5)
    assert not torch.equal(next(iter(other)).input_id, epochs[0][0].input_id)


def test_any_number_of_threads_makes_the_same_batches() -> None:
    data = a_graph("undirected")
    made = [
        list(NeighborLoader(data, [3, 2], batch_size=8, shuffle=True, num_workers=threads))
        for threads in (0, 1, 3)
    ]
    for one, *others in zip(*made, strict=True):
        for other in others:
            assert torch.equal(one.e_id, other.e_id)
            assert torch.equal(one.x, other.x)


def test_a_loop_that_is_left_early_leaves_no_thread_and_the_next_begins_anew() -> None:
    loader = NeighborLoader(a_graph("undirected"), [3], batch_size=4, num_workers=2)
    for _ in loader:
        break
    assert sum(batch.batch_size for batch in loader) == NODES


def test_drop_last_and_the_number_of_seeds() -> None:
    loader = NeighborLoader(a_graph("undirected"), [1], batch_size=30, drop_last=True)
    assert [batch.batch_size for batch in loader] == [30, 30, 30]
    assert len(loader) == 3
    assert len(loader.dataset) == NODES


def test_a_transform_sees_batches_in_their_order_in_the_thread_that_iterates() -> None:
    seen: list[int] = []

    def transform(batch: Data) -> Data:
        seen.append(int(batch.input_id[0]))
        batch.x = batch.x * 2
        return batch

    data = a_graph("undirected")
    for number, batch in enumerate(
        NeighborLoader(data, [1], batch_size=10, transform=transform, num_workers=3)
    ):
        assert len(seen) == number + 1
        assert torch.equal(batch.x, 2 * data.x[batch.n_id])
    assert seen == list(range(0, NODES, 10))


def test_rows_that_are_trained_are_read_when_they_are_needed() -> None:
    data = a_graph("undirected")
    data.x = nn.Parameter(data.x)
    for batch in NeighborLoader(data, [2], batch_size=25):
        assert torch.equal(batch.x, data.x[batch.n_id])
        batch.x.sum().backward()
        with torch.no_grad():
            data.x += 1
    assert data.x.grad is not None and (data.x.grad > 0).all()
    with pytest.raises(InputError, match="x of the data requires gradients, and 2 threads"):
        NeighborLoader(data, [2], num_workers=2)


@pytest.mark.parametrize(("world", "batch_size"), [(2, 7), (3, 13)])
def test_ranks_share_the_seeds_and_compute_what_one_process_computes(world: int, batch_size: int) -> None:
    data, model = a_graph("loops"), a_net()
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": 2}

    def body(rank: int, group: Any, store: Any) -> list[tuple[Tensor, list[Tensor]]]:
        own, steps = copy.deepcopy(model), []
        for batch in NeighborLoader(data, [-1, -1], data.train_mask, group=group, **options):
            own.zero_grad()
            out = own(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="sum") * batch.scale
            loss.backward()
            steps.append((batch.input_id, [p.grad.clone() for p in own.parameters()]))
        return steps

    ranks = run_ranks_as_threads(world, body)
    assert len({len(steps) for steps in ranks}) == 1
    seeds = torch.cat([ids for steps in ranks for ids, _ in steps])
    assert torch.equal(seeds.sort().values, data.train_mask.nonzero().flatten())
    for step in zip(*ranks, strict=True):
        union = torch.cat([ids for ids, _ in step])
        assert max(len(ids) for ids, _ in step) - min(len(ids) for ids, _ in step) <= 1
        model.zero_grad()
        F.cross_entropy(model(data.x, data.edge_index)[union], data.y[union]).backward()
        mean = [torch.stack(parts).mean(0) for parts in zip(*(grads for _, grads in step), strict=True)]
        assert distance(mean, gradients(model)) < LIMIT


def test_ranks_draw_neighbours_independently() -> None:
    leaves = torch.arange(3, 103)
    ends = torch.cat([torch.tensor([0, 1]), torch.full_like(leaves, 2)])
    hub = Data(edge_index=torch.stack([torch.cat([torch.tensor([2, 2]), leaves]), ends]), num_nodes=103)

    def body(rank: int, group: Any, store: Any) -> list[int]:
        (batch,) = NeighborLoader(hub, [1, 8], torch.tensor([0, 1]), batch_size=1, group=group)
        assert batch.n_id[:2].tolist() == [rank, 2]
        drawn: list[int] = batch.n_id[2:].tolist()
        return drawn

    one, other = run_ranks_as_threads(2, body)
    assert len(one) == len(other) == 8
    assert set(one) != set(other)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("input_nodes", torch.arange(4)),
        ("seed", 1),
        ("batch_size", 5),
        ("num_neighbors", [1]),
        ("edge_index", None),
    ],
)
def test_ranks_with_other_arguments_are_named_on_all_ranks(name: str, given: Any) -> None:
    def body(rank: int, group: Any, store: Any) -> str:
        data = a_graph("loops")
        options: dict[str, Any] = {"input_nodes": None, "num_neighbors": [2], "batch_size": 4}
        if rank == 1 and name == "edge_index":
            data.edge_index = data.edge_index.flip(0)
        elif rank == 1:
            options[name] = given
        with pytest.raises(InputError) as error:
            NeighborLoader(data, group=group, **options)
        return str(error.value)

    for message in run_ranks_as_threads(2, body):
        assert message.startswith(f"{name} is ") and "on rank 1 and" in message


def test_ranks_may_have_seeds_of_their_own() -> None:
    def body(rank: int, group: Any, store: Any) -> list[int]:
        nodes = torch.arange(10 * (rank + 1))
        loader = NeighborLoader(a_graph("loops"), [2], nodes, batch_size=6, group=group, distributed=False)
        return [batch.batch_size for batch in loader]

    assert run_ranks_as_threads(2, body) == [[6, 4], [6, 6, 6, 2]]


def hetero() -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.rand(4, 3)
    return data


def without_edges() -> Data:
    data = a_graph("directed")
    del data.edge_index, data.edge_attr, data.edge_weight
    return data


def changed(**attributes: Any) -> Data:
    data = a_graph("directed")
    for name, value in attributes.items():
        data[name] = value
    return data


GRAPH = a_graph("directed")


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (hetero(), {}, "HeteroData with nodes of the types a; expected a Data object of one type"),
        ((GRAPH, GRAPH), {}, "got a tuple of 2; expected one Data object"),
        (without_edges(), {}, "no edge_index"),
        (changed(adj_t=torch.eye(NODES).to_sparse()), {}, "holds adj_t"),
        (changed(scale=torch.ones(NODES)), {}, "an attribute scale"),
        (changed(edge_index=torch.tensor([[0, NODES], [1, 2]])), {}, r"edge 1 is \[100, 2\]; expected nodes"),
        (changed(edge_index=torch.rand(2, 5)), {}, "expected integers of shape"),
        (GRAPH, {"num_neighbors": []}, r"num_neighbors is \[\]"),
        (GRAPH, {"num_neighbors": 5}, "num_neighbors is 5"),
        (GRAPH, {"num_neighbors": [3, -2]}, "num_neighbors is"),
        (GRAPH, {"num_neighbors": {("a", "to", "a"): [3]}}, "num_neighbors is"),
        (
            GRAPH,
            {"input_nodes": torch.ones(NODES - 1, dtype=torch.bool)},
            r"bool \[99\]; expected a mask of 100",
        ),
        (GRAPH, {"input_nodes": torch.zeros(NODES, dtype=torch.bool)}, "holds no node"),
        (GRAPH, {"input_nodes": torch.tensor([3, NODES])}, "holds 100; expected ids from 0 to 99"),
        (GRAPH, {"input_nodes": [5, -1]}, "holds -1"),
        (GRAPH, {"input_nodes": [5, 6, 5]}, "holds node 5 more than once"),
        (GRAPH, {"input_nodes": torch.rand(NODES)}, "expected a mask of 100 nodes, or node ids"),
        (GRAPH, {"batch_size": 0}, "batch_size is 0"),
        (GRAPH, {"batch_size": 200, "drop_last": True}, "do not fill a batch of 200"),
        (GRAPH, {"num_workers": -1}, "num_workers is -1"),
        (GRAPH, {"distributed": True}, "distributed=True without a process group"),
        (GRAPH, {"replace": True}, "replace=True is not supported; expected False: neighbours"),
        (GRAPH, {"subgraph_type": "induced"}, "subgraph_type='induced' is not supported"),
        (GRAPH, {"disjoint": True}, "disjoint=True is not supported"),
        (GRAPH, {"time_attr": "time"}, "without regard to time"),
        (GRAPH, {"weight_attr": "edge_weight"}, "equally likely"),
        (GRAPH, {"sampler": [1]}, "seed= and shuffle= alone"),
        (GRAPH, {"batchsize": 4}, "there is no argument 'batchsize'; expected one of batch_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeighborLoader(data, **{"num_neighbors": [2], **options})


def test_arguments_of_pyg_with_their_supported_values_are_taken() -> None:
    options = {
        "replace": False,
        "subgraph_type": "directional",
        "is_sorted": False,
        "persistent_workers": True,
    }
    options |= {"num_workers": 2, "filter_per_worker": True, "prefetch_factor": 4, "pin_memory": False}
    assert len(NeighborLoader(GRAPH, [2], batch_size=50, **options)) == 2


def test_edges_that_change_after_the_loader_was_made_are_refused_at_the_next_epoch() -> None:
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    data = Data(x=torch.arange(4.0).view(4, 1), edge_index=edges)
    loader = NeighborLoader(data, num_neighbors=[1], batch_size=2)
    assert len(list(loader)) == 2
    edges[0, 0] = 2
    with pytest.raises(InputError, match="edge_index of the data changed after the loader was made"):
        iter(loader)
    loader = NeighborLoader(data, num_neighbors=[1], batch_size=2)
    data.edge_index = edges.flip(0)
    with pytest.raises(InputError, match="make the NeighborLoader anew"):
        iter(loader)
    # Rows of nodes are read when a batch is made, as by PyG's loader.
    loader = NeighborLoader(data, num_neighbors=[1], batch_size=4, num_workers=0)
    data.x = data.x + 10
    (batch,) = loader
    assert torch.equal(batch.x, data.x[batch.n_id])
