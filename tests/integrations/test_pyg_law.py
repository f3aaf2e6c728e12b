"""The law of distributed PyG models: what one process computes, or an error that names the module and the reason."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.harness.threads import run_ranks_as_threads
from tests.harness.tiers import keep, slow, spread
from tests.integrations.pyg_models import CLASSES, COMPUTED, FEATURES, REFUSED, Case
from wirewise import graph
from wirewise.errors import WirewiseError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.utils import to_undirected

    from wirewise.integrations import pyg

NODES, LIMIT = 100, 1e-5
KINDS = ("undirected", "directed", "loops", "duplicates", "isolated")


def a_graph(kind: str) -> Data:
    """A random graph with everything that models read."""
    made = torch.Generator().manual_seed(7)
    edges = torch.randint(0, NODES, (2, 300), generator=made)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    if kind != "directed":
        edges = to_undirected(edges)
    if kind == "loops":
        edges = torch.cat([edges, torch.arange(0, NODES, 3).repeat(2, 1)], dim=1)
    if kind == "duplicates":
        edges = torch.cat([edges, edges[:, ::4]], dim=1)
    if kind == "isolated":
        edges = edges[:, ((edges % 9) != 0).all(0)]
    place = torch.randperm(NODES, generator=made)
    weight = torch.rand(edges.shape[1], generator=made) + 0.5
    return Data(
        x=torch.randn(NODES, FEATURES, generator=made),
        y=torch.randint(0, CLASSES, (NODES,), generator=made),
        edge_index=edges,
        edge_weight=weight,
        edge_attr=torch.stack([weight, torch.rand(len(weight), generator=made)], dim=1),
        train_mask=place < 40,
        val_mask=(place >= 40) & (place < 70),
        test_mask=place >= 70,
    )


def outputs_and_gradients(model: nn.Module, data: Data, case: Case) -> tuple[Tensor, list[Tensor]]:
    """Output of a training step and the gradients of its loss."""
    more = {case.edge_data: data[case.edge_data]} if case.edge_data else {}
    out = model(data.x, data.edge_index, **more)
    logits = out["logits"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
    F.cross_entropy(logits[data.train_mask], data.y[data.train_mask]).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return logits.detach(), gradients


def give_parts(data: Data, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs take their parts from memory, where they are made once."""
    whole = graph.from_pyg(data)
    parts = list(graph.split_graph(whole, graph.partition(whole, world, seed=0), num_parts=world))
    monkeypatch.setattr(graph, "load_part", lambda folder, rank, num_parts: parts[rank])


def seeded(case: Case) -> nn.Module:
    torch.manual_seed(1)
    return case.make()


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Largest difference over the largest value of all."""
    largest = max([1e-3, *(float(e.abs().max()) for e in expected if e.numel())])
    return (
        max([0.0, *(float((f - e).abs().max()) for f, e in zip(found, expected, strict=True) if e.numel())])
        / largest
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "world"),
    [
        *keep([(kind, 2) for kind in ["directed"]], [(kind, 2) for kind in KINDS]),
        *spread([slow((kind, world)) for kind in ("directed", "duplicates") for world in (1, 4)], 3, 1),
    ],
)
@pytest.mark.sample(3)
def test_models_compute_what_one_process_computes(
    kind: str, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_graph(kind)
    models = [seeded(case) for case in COMPUTED]
    expected = [
        outputs_and_gradients(copy.deepcopy(m), data, c) for m, c in zip(models, COMPUTED, strict=True)
    ]
    copies = [[copy.deepcopy(m) for m in models] for _ in range(world)]
    give_parts(data, world, monkeypatch)

    def body(rank: int, group: Any, store: Any) -> dict[str, str]:
        wrong = {}
        for case, model, (out, gradients) in zip(COMPUTED, copies[rank], expected, strict=True):
            try:
                job = pyg.Job(parts="parts", mode="fp32", group=group, store=store, timeout_s=20)
                found, grads = outputs_and_gradients(job.distribute(model), job.data, case)
                # Hooks of parameters keep a model, and so its threads, until the process ends.
                job.transport.close()
                off = distance([found], [out[job.data.n_id]]), distance(grads, gradients)
                if not max(off) < LIMIT:
                    wrong[case.name] = f"output {off[0]:.1e}, gradient {off[1]:.1e}"
            except WirewiseError as error:
                wrong[case.name] = str(error)
        return wrong

    for rank, wrong in enumerate(run_ranks_as_threads(world, body, timeout_s=300)):
        assert not wrong, f"{len(wrong)} of {len(COMPUTED)} on rank {rank}: {wrong}"


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("world", [1, 2, 4])
def test_models_that_look_at_all_nodes_are_refused_by_name(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = a_graph("undirected")
    copies = [[seeded(case) for case in REFUSED] for _ in range(world)]
    give_parts(data, world, monkeypatch)

    def body(rank: int, group: Any, store: Any) -> dict[str, str]:
        wrong = {}
        for case, model in zip(REFUSED, copies[rank], strict=True):
            job = pyg.Job(parts="parts", mode="fp32", group=group, store=store, timeout_s=20)
            try:
                outputs_and_gradients(job.distribute(model), job.data, case)
                wrong[case.name] = "computed"
            except WirewiseError as error:
                if not re.search(re.escape(case.refused), str(error)):
                    wrong[case.name] = str(error)
        return wrong

    for rank, wrong in enumerate(run_ranks_as_threads(world, body, timeout_s=120)):
        assert not wrong, f"{len(wrong)} of {len(REFUSED)} on rank {rank}: {wrong}"


def test_the_law_covers_enough() -> None:
    assert len(COMPUTED) >= 60
    assert len({case.name for case in COMPUTED + REFUSED}) == len(COMPUTED) + len(REFUSED)
