"""A user's own PyG model on many ranks equals the same model on one process."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from wirewise import graph
from wirewise.errors import InputError

with warnings.catch_warnings():
    # PyG scripts functions at import, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.nn import ChebConv, GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv, norm

    from wirewise.integrations import pyg

_LOCK = threading.Lock()


class Net(nn.Module):
    """Two convolutions of the user's."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(8, 16), make(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


def gin(inputs: int, outputs: int) -> nn.Module:
    return GINConv(nn.Linear(inputs, outputs))


def gat(inputs: int, outputs: int) -> nn.Module:
    return GATConv(inputs, outputs, heads=2, concat=False, add_self_loops=False)


def whole_graph(directed: bool = False) -> Data:
    made = graph.block_model(
        graph.BlockModel(nodes=200, features=8, classes=4, mean_degree=5.0, directed=directed)
    )
    split = torch.from_numpy(made.split)
    return Data(
        x=torch.from_numpy(made.dense_x()),
        edge_index=torch.from_numpy(made.edge_index).long(),
        y=torch.from_numpy(made.y).long(),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
    )


def descent(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.005)


def train(model: nn.Module, data: Data, steps: int, optimizer_of: Callable = descent) -> list[float]:
    optimizer = optimizer_of(model)
    losses = []
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    ("make", "optimizer_of", "off"),
    [(SAGEConv, descent, 2e-5), (GCNConv, descent, 2e-5), (gin, adam, 1e-3), (gat, adam, 1e-3)],
)
def test_equals_one_process(
    make: Callable[[int, int], nn.Module], optimizer_of: Callable, off: float, directed: bool
) -> None:
    """After five steps, which amplify the rounding of sums of a hundred and of softmax; one step is within 1e-5."""
    data = whole_graph(directed)
    torch.manual_seed(1)
    model = Net(make)
    alone = copy.deepcopy(model)
    train(alone, data, 5, optimizer_of)
    with torch.no_grad():
        expected = alone.eval()(data.x, data.edge_index)

    def body(rank: int, group: Any, store: Any) -> tuple[Tensor, Tensor, list[Tensor], float]:
        job = pyg.Job(data if rank == 0 else None, mode="adaqp-p", group=group, store=store)
        mine = job.distribute(copy.deepcopy(model))
        train(mine, job.data, 5, optimizer_of)
        with torch.no_grad():
            logits = mine.eval()(job.data.x, job.data.edge_index)
        return (
            job.data.n_id,
            logits,
            [p.detach() for p in mine.parameters()],
            job.accuracy(logits, job.data.test_mask),
        )

    for n_id, logits, parameters, accuracy in run_ranks_as_threads(3, body):
        assert torch.allclose(logits, expected[n_id], rtol=off, atol=off)
        for ours, theirs in zip(parameters, alone.parameters(), strict=True):
            assert torch.allclose(ours, theirs.detach(), atol=off / 2)
        right = (expected.argmax(1) == data.y)[data.test_mask].double().mean()
        assert accuracy == pytest.approx(float(right), abs=0.03)


def test_quantized_messages_train_it_too() -> None:
    data = whole_graph()

    def body(rank: int, group: Any, store: Any) -> tuple[list[float], int]:
        job = pyg.Job(data if rank == 0 else None, mode="uniform-8", group=group, store=store)
        with _LOCK:
            torch.manual_seed(0)
            own = Net(SAGEConv)
        model = job.distribute(own)
        losses = train(model, job.data, 20)
        return losses, job.exchange.lanes["forward1"].bytes_sent

    for losses, sent in run_ranks_as_threads(2, body):
        assert losses[-1] < 0.7 * losses[0]
        assert sent > 0


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


def test_without_a_process_group_it_says_what_to_do() -> None:
    with pytest.raises(InputError, match="init_process_group"):
        pyg.Job(whole_graph())


def gat_with_loops(inputs: int, outputs: int) -> nn.Module:
    return GATConv(inputs, outputs, heads=2, concat=False)


def gatv2_with_loops(inputs: int, outputs: int) -> nn.Module:
    return GATv2Conv(inputs, outputs, heads=2, concat=False)


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


def backward(model: nn.Module, data: Data, factor: float) -> None:
    out = model(data.x, data.edge_index)
    (factor * F.cross_entropy(out[data.train_mask], data.y[data.train_mask])).backward()


@pytest.mark.parametrize("to_none", [False, True])
def test_gradients_add_up_over_backward_passes(to_none: bool) -> None:
    data = whole_graph()
    torch.manual_seed(1)
    model = Net(SAGEConv)

    def gradients(one: nn.Module, where: Data) -> list[Tensor]:
        for factor in (5.0, 1.0, 2.0):
            if factor == 1.0:
                one.zero_grad(set_to_none=to_none)
            backward(one, where, factor)
            one(where.x, where.edge_index)  # a forward pass alone changes nothing
        return [p.grad.clone() for p in one.parameters()]

    expected = gradients(copy.deepcopy(model), data)

    def body(rank: int, group: Any, store: Any) -> list[Tensor]:
        job = pyg.Job(data if rank == 0 else None, mode="fp32", group=group, store=store)
        return gradients(job.distribute(copy.deepcopy(model)), job.data)

    for found in run_ranks_as_threads(2, body):
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


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


def test_norms_without_a_rule_over_ranks_are_refused_by_name() -> None:
    data = whole_graph()
    norms = [nn.InstanceNorm1d(8), nn.BatchNorm3d(8), norm.BatchNorm(8, allow_single_element=True)]

    def body(rank: int, group: Any, store: Any) -> None:
        job = pyg.Job(data, mode="fp32", group=group, store=store)
        for module in norms:
            with pytest.raises(InputError, match=rf"1 is a {type(module).__name__}, whose statistics"):
                job.distribute(nn.Sequential(SAGEConv(8, 4), module))
        job.distribute(nn.Sequential(SAGEConv(8, 4), norm.LayerNorm(8, mode="node")))

    run_ranks_as_threads(1, body)
