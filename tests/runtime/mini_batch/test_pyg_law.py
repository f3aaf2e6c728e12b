"""PyG models on mini-batches of all neighbours compute what they compute on the whole graph, forward and backward."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.harness.threads import run_ranks_as_threads
from tests.harness.tiers import keep, slow, spread
from tests.integrations.pyg_models import HIDDEN, Own, g, mlp
from tests.integrations.test_pyg_law import KINDS, LIMIT, NODES, a_graph, distance
from wirewise import graph
from wirewise.graph.sampling import NeighborSampler
from wirewise.runtime.mini_batch import BatchLoader, Fetcher, RowStore
from wirewise.runtime.transport import Transport

FEATURES, CLASSES = 12, 5
CONVOLUTIONS = {
    "SAGE": g.SAGEConv,
    "SAGE max": lambda i, o: g.SAGEConv(i, o, aggr="max"),
    "SAGE two aggregations": lambda i, o: g.SAGEConv(i, o, aggr=["mean", "softmax"]),
    "SAGE project": lambda i, o: g.SAGEConv(i, o, project=True, normalize=True),
    "GraphConv": g.GraphConv,
    "GAT": g.GATConv,
    "GAT no loops": lambda i, o: g.GATConv(i, o, add_self_loops=False),
    "GATv2": g.GATv2Conv,
    "GATv2 one module for both sides": lambda i, o: g.GATv2Conv(i, o, share_weights=True),
    "GIN": lambda i, o: g.GINConv(mlp(i, o), train_eps=True),
    "Transformer": g.TransformerConv,
    "ResGated": g.ResGatedGraphConv,
    "EdgeConv": lambda i, o: g.EdgeConv(mlp(2 * i, o)),
    # Without the BatchNorm that GENConv has by default: its moments are those of a batch, on one process too.
    "GEN": lambda i, o: g.GENConv(i, o, norm=None),
    "LEConv": g.LEConv,
    "MFConv": g.MFConv,
    "General": g.GeneralConv,
    "FiLM": g.FiLMConv,
    "FeaSt": g.FeaStConv,
    "Own": Own,
}


def layers(name: str, depth: int) -> nn.ModuleList:
    torch.manual_seed(1)
    widths = [FEATURES, *[HIDDEN] * (depth - 1), CLASSES]
    return nn.ModuleList(CONVOLUTIONS[name](i, o) for i, o in pairwise(widths))


CASES = [(name, depth) for name in CONVOLUTIONS for depth in (1, 2, 3)]


def cost(rows: Tensor) -> Tensor:
    """A plain sum of weighed columns: it tells rows of one length apart, and magnifies no rounding of large values."""
    return (rows @ torch.arange(1.0, CLASSES + 1)).sum()


def whole(model: nn.ModuleList, data: Any, seeds: Tensor) -> tuple[Tensor, list[Tensor]]:
    h = data.x
    for number, layer in enumerate(model):
        h = layer(h if not number else h.relu(), data.edge_index)
    cost(h[seeds]).backward()  # type: ignore[no-untyped-call]
    return h.detach(), [p.grad for p in model.parameters()]


def on_batch(model: nn.ModuleList, batch: Any) -> Tensor:
    h: Tensor = batch.x
    for number, (layer, (edges, size)) in enumerate(zip(model, batch.layers, strict=True)):
        h = h if not number else h.relu()
        h = layer((h, h[: size[1]]), edges)
    return h


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("kind", "world"),
    [
        *keep([(kind, 2) for kind in ["directed", "duplicates"]], [(kind, 2) for kind in KINDS]),
        *spread([slow((kind, world)) for kind in ("directed", "duplicates") for world in (1, 4)], 3, 1),
    ],
)
@pytest.mark.sample(3)
def test_batches_of_all_neighbours_are_the_whole_graph(kind: str, world: int) -> None:
    data = a_graph(kind)
    del data.edge_weight, data.edge_attr
    stored = graph.from_pyg(data)
    first = np.linspace(0, NODES, world + 1).astype(int)
    train = np.flatnonzero(data.train_mask.numpy())
    seeds = [train[(train >= first[r]) & (train < first[r + 1])] for r in range(world)]
    models = {case: layers(*case) for case in CASES}
    expected = {case: whole(copy.deepcopy(models[case]), data, torch.from_numpy(train)) for case in CASES}
    copies = [copy.deepcopy(models) for _ in range(world)]

    def body(rank: int, group: Any, store: Any) -> dict[Any, str]:
        rows = RowStore(data.x[first[rank] : first[rank + 1]], first, rank=rank, cached=None)
        wrong = {}
        for depth in (1, 2, 3):
            transport = Transport(group, store=store, timeout_s=20)
            fetcher = Fetcher(rows, transport, ids=transport)
            sampler = NeighborSampler(stored.in_edges, [-1] * depth, seed=0)
            loader = BatchLoader(fetcher, sampler, data.y, seeds, batch_size=16)
            batches = [batch for _, found in loader.epochs(range(1)) for batch in found]
            for case in (case for case in CASES if case[1] == depth):
                model, (out, gradients) = copies[rank][case], expected[case]
                off = 0.0
                for batch in batches:
                    found = on_batch(model, batch)
                    cost(found).backward()  # type: ignore[no-untyped-call]
                    off = max(
                        off, distance([found.detach()], [out[torch.as_tensor(batch.n_id[: len(found)])]])
                    )
                grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
                for gradient in grads:
                    transport.all_reduce(gradient, "gradients")
                if not max(off, distance(grads, gradients)) < LIMIT:
                    wrong[case] = f"output {off:.1e}, gradient {distance(grads, gradients):.1e}"
        return wrong

    for rank, wrong in enumerate(run_ranks_as_threads(world, body, timeout_s=200)):
        assert not wrong, f"{len(wrong)} of {len(CASES)} on rank {rank}: {wrong}"


def test_the_law_covers_enough() -> None:
    assert len(CASES) >= 60
