"""Norms over all nodes: what has no rule over ranks is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError

with warnings.catch_warnings():
    # PyG scripts functions at import, which torch calls deprecated.
    warnings.simplefilter("ignore")
    from torch_geometric.nn import SAGEConv, norm

    from wirewise.integrations import pyg
from tests.integrations.pyg.graphs import whole_graph


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
