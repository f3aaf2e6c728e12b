"""Convolutions of several hops on ranks: an exchange before each, and degrees of the whole graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg_models import CLASSES, COMPUTED, FEATURES, HIDDEN, g
from tests.integrations.test_pyg_law import LIMIT, a_graph, distance, outputs_and_gradients, seeded
from wirewise.integrations import pyg

CASES = [
    case
    for case in COMPUTED
    if case.name.split()[0] in ("TAG", "SG", "SSG", "ARMA", "APPNP", "LG", "GCN2", "ClusterGCN", "EG", "PNA")
]


@pytest.mark.parametrize("double", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_models_of_several_hops_compute_what_one_process_computes(double: bool) -> None:
    data, limit = a_graph("duplicates"), 1e-10 if double else LIMIT
    models = [seeded(case) for case in CASES]
    if double:
        data.x, data.edge_weight, data.edge_attr = (
            data.x.double(),
            data.edge_weight.double(),
            data.edge_attr.double(),
        )
        models = [model.double() for model in models]
    expected = [outputs_and_gradients(copy.deepcopy(m), data, c) for m, c in zip(models, CASES, strict=True)]
    copies = [[copy.deepcopy(m) for m in models] for _ in range(2)]

    def body(rank: int, group: Any, store: Any) -> dict[str, str]:
        wrong = {}
        for number, (case, model) in enumerate(zip(CASES, copies[rank], strict=True)):
            if number % 8 == 0:
                # A job numbers the exchanges of all its models, 32 at most.
                job = job_of(data, rank, group, store)
            out, gradients = expected[number]
            found, grads = outputs_and_gradients(job.distribute(model), job.data, case)
            off = distance([found], [out[job.data.n_id]]), distance(grads, gradients)
            if not max(off) < limit:
                wrong[case.name] = f"output {off[0]:.1e}, gradient {off[1]:.1e}"
        return wrong

    assert len(CASES) >= 19
    for wrong in run_ranks_as_threads(2, body, timeout_s=200):
        assert not wrong, wrong


class Checkpointed(nn.Module):
    """A convolution of three hops that is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.conv, self.head = (
            nn.Linear(FEATURES, HIDDEN),
            g.TAGConv(HIDDEN, HIDDEN),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.conv, self.inlet(x).relu(), edge_index, use_reentrant=False)
        return self.head(out.relu())  # type: ignore[no-any-return]


def test_hops_are_computed_again_where_gradients_are_checkpointed() -> None:
    data, case = a_graph("undirected"), COMPUTED[0]
    torch.manual_seed(1)
    model = Checkpointed()
    out, gradients = outputs_and_gradients(copy.deepcopy(model), data, case)

    def body(rank: int, group: Any, store: Any) -> float:
        job = job_of(data, rank, group, store)
        found, grads = outputs_and_gradients(job.distribute(copy.deepcopy(model)), job.data, case)
        return max(distance([found], [out[job.data.n_id]]), distance(grads, gradients))

    assert max(run_ranks_as_threads(2, body)) < LIMIT


def test_other_models_of_the_process_keep_the_degrees_and_hops_of_pyg() -> None:
    data = a_graph("loops")
    torch.manual_seed(1)
    conv = g.TAGConv(FEATURES, CLASSES)
    model = g.Sequential("x, edge_index", [(conv, "x, edge_index -> x")])
    expected = model(data.x, data.edge_index)

    def body(rank: int, group: Any, store: Any) -> pyg.Job:
        job = job_of(data, rank, group, store)
        job.distribute(model)(job.data.x, job.data.edge_index)
        return job

    run_ranks_as_threads(1, body)
    assert torch.equal(model(data.x, data.edge_index), expected)
    assert torch.equal(copy.deepcopy(conv)(data.x, data.edge_index), expected)
