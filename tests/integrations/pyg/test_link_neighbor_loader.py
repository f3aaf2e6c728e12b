"""Batches of links: those of PyG, negative links among all nodes, and one process with the links of all ranks."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.sampler import NegativeSampling

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.all_neighbors import assert_equal_batches, link_batches
from tests.integrations.pyg.test_neighbor_loader import a_net, gradients
from tests.integrations.test_pyg_law import LIMIT, NODES, a_graph, distance
from wirewise.errors import InputError
from wirewise.integrations.pyg import LinkNeighborLoader


def some_links(count: int = 37) -> Tensor:
    made = torch.Generator().manual_seed(5)
    return torch.randint(0, NODES, (2, count), generator=made)


def losses(model: nn.Module, graph: Any, links: Tensor, labels: Tensor) -> Tensor:
    """Loss of each link."""
    out = model(graph.x, graph.edge_index)
    return F.binary_cross_entropy_with_logits(
        (out[links[0]] * out[links[1]]).sum(1), labels, reduction="none"
    )


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("kind", ["directed", "duplicates"])
def test_batches_are_those_of_pyg(kind: str, labelled: bool) -> None:
    data, links = a_graph(kind), some_links()
    # As RandomLinkSplit leaves them: rows of neither nodes nor edges.
    data.edge_label_index, data.edge_label = links, torch.arange(37) % 3
    labels = data.edge_label if labelled else None
    loader = LinkNeighborLoader(data, [-1, -1], links, labels, batch_size=8)
    expected = link_batches(data, 2, edge_label_index=links, edge_label=labels, batch_size=8)
    batches = list(loader)
    assert len(loader) == len(batches) == len(expected) == 5
    for ours, theirs in zip(batches, expected, strict=True):
        assert_equal_batches(ours, theirs)


def test_all_edges_are_links_by_default() -> None:
    data = a_graph("duplicates")
    batches = list(LinkNeighborLoader(data, [2], batch_size=50, shuffle=True))
    numbers = torch.cat([batch.input_id for batch in batches])
    assert torch.equal(numbers.sort().values, torch.arange(data.num_edges))
    for batch in batches:
        assert torch.equal(batch.n_id[batch.edge_label_index], data.edge_index[:, batch.input_id])
        assert "edge_label" not in batch


@pytest.mark.parametrize("ratio", [0.3, 1, 2.0])
@pytest.mark.parametrize("given", ["none", "classes from 0", "classes from 1", "columns"])
def test_negative_links_follow_the_positive_ones(ratio: float, given: str) -> None:
    data, links = a_graph("directed"), some_links()
    labels = {
        "none": None,
        "classes from 0": torch.arange(37) % 3,
        "classes from 1": torch.arange(37) % 3 + 1,
        "columns": torch.rand(37, 2) + 1,
    }[given]
    loader = LinkNeighborLoader(data, [2], links, labels, neg_sampling_ratio=ratio, batch_size=10)
    expected = link_batches(
        data, 1, edge_label_index=links, edge_label=labels, neg_sampling_ratio=ratio, batch_size=10
    )
    for ours, theirs in zip(loader, expected, strict=True):
        positives = len(ours.input_id)
        assert ours.edge_label_index.shape == theirs.edge_label_index.shape
        assert ours.edge_label_index.shape[1] == positives + math.ceil(ratio * positives)
        assert torch.equal(ours.n_id[ours.edge_label_index[:, :positives]], links[:, ours.input_id])
        assert ours.edge_label.dtype == theirs.edge_label.dtype
        assert torch.equal(ours.edge_label, theirs.edge_label)
        assert ours.scale == 1 / ours.edge_label_index.shape[1]


def test_negative_links_are_uniform_over_all_nodes_and_new_in_each_batch_and_epoch() -> None:
    data, seen = a_graph("directed"), torch.zeros(2, NODES)
    loader = LinkNeighborLoader(data, [1], some_links(20), neg_sampling="binary", batch_size=10)
    drawn = []
    for _ in range(400):
        for batch in loader:
            ends = batch.n_id[batch.edge_label_index[:, 10:]]
            drawn.append(tuple(ends.flatten().tolist()))
            for side in range(2):
                seen[side] += torch.bincount(ends[side], minlength=NODES)
    assert len(set(drawn)) == 800
    mean = 400 * 20 / NODES
    assert (seen - mean).abs().max() < 5 * math.sqrt(mean)


def test_any_number_of_threads_makes_the_same_batches() -> None:
    made = [
        list(
            LinkNeighborLoader(
                a_graph("directed"), [3], neg_sampling_ratio=1.0, batch_size=40, shuffle=True, num_workers=n
            )
        )
        for n in (0, 2)
    ]
    for one, other in zip(*made, strict=True):
        assert torch.equal(one.n_id[one.edge_label_index], other.n_id[other.edge_label_index])
        assert torch.equal(one.e_id, other.e_id)


def test_ranks_share_the_links_and_compute_what_one_process_computes() -> None:
    data, model = a_graph("loops"), a_net()
    links = some_links()
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "neg_sampling_ratio": 0.5}

    def body(rank: int, group: Any, store: Any) -> list[tuple[Tensor, Tensor, Tensor, list[Tensor]]]:
        own, steps = copy.deepcopy(model), []
        for batch in LinkNeighborLoader(data, [-1, -1], links, group=group, **options):
            own.zero_grad()
            (losses(own, batch, batch.edge_label_index, batch.edge_label).sum() * batch.scale).backward()
            known = batch.n_id[batch.edge_label_index]
            steps.append(
                (batch.input_id, known, batch.edge_label, [p.grad.clone() for p in own.parameters()])
            )
        return steps

    ranks = run_ranks_as_threads(2, body)
    assert len(ranks[0]) == len(ranks[1]) == 4
    numbers = torch.cat([ids for steps in ranks for ids, *_ in steps])
    assert torch.equal(numbers.sort().values, torch.arange(37))
    for step in zip(*ranks, strict=True):
        every, labels = torch.cat([s[1] for s in step], dim=1), torch.cat([s[2] for s in step])
        model.zero_grad()
        losses(model, data, every, labels).mean().backward()
        mean = [torch.stack(parts).mean(0) for parts in zip(*(s[3] for s in step), strict=True)]
        assert distance(mean, gradients(model)) < LIMIT


def test_ranks_with_other_negative_links_are_named() -> None:
    def body(rank: int, group: Any, store: Any) -> str:
        with pytest.raises(InputError) as error:
            LinkNeighborLoader(
                a_graph("loops"), [2], batch_size=20, neg_sampling_ratio=1.0 + rank, group=group
            )
        return str(error.value)

    for message in run_ranks_as_threads(2, body):
        assert message.startswith("negative links a link is 2.0 on rank 1 and 1.0 on rank 0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_label_index": torch.zeros(2, 0, dtype=torch.long)}, "holds no link"),
        ({"edge_label_index": torch.tensor([[0], [NODES]])}, "holds node 100; expected ids from 0 to 99"),
        ({"edge_label_index": torch.zeros(3, 4, dtype=torch.long)}, r"int64 \[3, 4\]; expected sources"),
        ({"edge_label_index": torch.rand(2, 4)}, "expected sources and targets, integers"),
        ({"edge_label": torch.ones(5)}, r"edge_label has the shape \[5\]; expected a label for each of"),
        ({"neg_sampling_ratio": -1.0}, "got neg_sampling_ratio -1.0"),
        ({"neg_sampling_ratio": 1.0, "neg_sampling": "binary"}, "expected one of them"),
        ({"neg_sampling": "triplet"}, "expected the mode 'binary' without weights"),
        ({"neg_sampling": NegativeSampling("binary", 1, torch.ones(NODES))}, "without weights"),
        ({"edge_label_time": torch.ones(5)}, "edge_label_time="),
    ],
)
def test_what_is_not_supported_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LinkNeighborLoader(a_graph("directed"), [2], **options)
