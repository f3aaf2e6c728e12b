"""Aggregation over a part: how much the noise of each message counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.full_graph.training import build_trainer, small_graph, split
from wirewise.runtime import full_graph as fg


def test_scores_are_sums_of_squared_weights_at_the_receiver() -> None:
    data = small_graph()
    parts = split(data, 3)

    def body(rank: int, group: Any, store: Any) -> dict[tuple[int, int], float]:
        transport = fg.Transport(group, timeout_s=30, store=store)
        trainer = build_trainer(parts[rank], transport, "adaqp")
        scores = trainer.tensors.neighbourhood("gcn").message_scores(trainer.exchange, squared_sum=False)
        ids = trainer.exchange.forward_route.send_ids
        trainer.close()
        transport.close()
        return {(int(i), p): float(s) for p, of in scores.items() for i, s in zip(ids[p], of, strict=True)}

    found = {k: v for rank in run_ranks_as_threads(3, body) for k, v in rank.items()}
    owner = np.empty(data.num_nodes, int)
    for p in parts:
        owner[p.own_ids] = p.rank
    degree = np.diff(data.in_edges.indptr)
    expected: dict[tuple[int, int], float] = {}
    for v in range(data.num_nodes):
        for u in data.in_edges.indices[data.in_edges.indptr[v] : data.in_edges.indptr[v + 1]]:
            if owner[u] != owner[v]:
                key = (int(u), int(owner[v]))
                expected[key] = expected.get(key, 0.0) + 1.0 / ((degree[u] + 1) * (degree[v] + 1))
    assert found.keys() == expected.keys()
    assert np.allclose([found[k] for k in expected], list(expected.values()), rtol=1e-5)
