"""Rows of partitioned graphs on other parts: own and halo rows, columns, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.toys import toy
from tests.harness.threads import run_ranks_as_threads
from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.graph.part import split_graph
from wirewise.runtime.pipeline.rows import RowMover
from wirewise.runtime.pipeline.shards import same_bits

NODES, RANKS = 60, 3


def parts_of(seed: int) -> list[Any]:
    """Parts of one random graph, scattered over the ids."""
    edges = np.random.default_rng(0).integers(0, NODES, (150, 2))
    owner = np.random.default_rng(seed).permutation(np.arange(NODES) % RANKS)
    return list(split_graph(toy(edges, NODES), owner, num_parts=RANKS))


def with_halo(part: Any) -> np.ndarray:
    return np.concatenate([part.own_ids, part.halo_ids])


WHOLE = {
    "features": torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    "momentum": torch.randn(NODES, 4, 3, generator=torch.Generator().manual_seed(1)).bfloat16(),
    "label": torch.arange(NODES),
    "mask": torch.arange(NODES) % 3 == 0,
}


@pytest.mark.parametrize("halo", [(True, True), (False, True), (True, False)], ids=str)
def test_own_and_halo_rows_move_to_another_partition(halo: tuple[bool, bool]) -> None:
    sides = [
        [with_halo(part) if wide else part.own_ids for part in parts_of(seed)]
        for wide, seed in zip(halo, (1, 2), strict=True)
    ]

    def body(rank: int, group: Any, store: Any) -> Any:
        before, after = (side[rank] for side in sides)
        mover = RowMover(NODES, before, after, group, links=Links.uniform(RANKS, 1e8), timeout_s=20)
        for _ in range(2):
            found = mover({name: one[before] for name, one in WHOLE.items()})
            for name, one in WHOLE.items():
                assert same_bits(found[name], one[after])
        assert len(mover._movers) == 1
        (own,) = mover._movers.values()
        needed = sum(len(np.setdiff1d(a, b)) for b, a in zip(*sides, strict=True))
        mover.close()
        return own.plan.bytes_sent, needed

    row_bytes = sum(one[0].numel() * one.element_size() for one in WHOLE.values())
    for sent, needed in run_ranks_as_threads(RANKS, body):
        # What a rank has it is not sent, and nothing comes twice.
        assert sent == needed * row_bytes


@pytest.mark.parametrize("back", [False, True])
def test_rows_become_columns_and_come_back(back: bool) -> None:
    parts = parts_of(3)

    def body(rank: int, group: Any, store: Any) -> None:
        ids = with_halo(parts[rank])
        columns = {n: WHOLE[n].tensor_split([2, 4], 1)[rank].clone() for n in ("features",)}
        # Of 4 columns on 3 ranks the last one has none.
        columns["momentum"] = WHOLE["momentum"][:, 2 * rank : 2 * rank + 2].clone()
        rows = {name: WHOLE[name][ids] for name in columns}
        given, expected = (columns, rows) if back else (rows, columns)
        mover = RowMover(NODES, None if back else ids, ids if back else None, group, timeout_s=20)
        found = mover(given)
        assert all(same_bits(found[name], one) for name, one in expected.items())
        mover.close()

    run_ranks_as_threads(RANKS, body)


def test_ranks_without_rows_and_rows_that_nobody_wants() -> None:
    before, after = [[4, 2, 0], [], [3, 1]], [[], [1, 4], []]

    def body(rank: int, group: Any, store: Any) -> None:
        mover = RowMover(6, before[rank], after[rank], group, timeout_s=20)
        found = mover({"x": torch.tensor(before[rank], dtype=torch.int32)})
        assert found["x"].tolist() == after[rank] and found["x"].dtype == torch.int32
        mover.close()

    run_ranks_as_threads(3, body)


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ([[0, 1], [2]], [[3], [0]], "rank 0 wants row 3, which no rank has"),
        ([[0, 0], [2]], [[0], [0]], "before the move of rank 0 are not all different rows of 0 to 3"),
        ([[0, 1], [2]], [[0], [4]], "after the move of rank 1 are not all different rows"),
        ([[0, 1], None], [[0], [0]], r"ranks \[1\] have columns before the move and the others rows"),
    ],
)
def test_rows_that_cannot_be_moved_are_refused_by_all_ranks(before: Any, after: Any, match: str) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        with pytest.raises(InputError, match=match):
            RowMover(4, before[rank], after[rank], group, timeout_s=20)

    run_ranks_as_threads(2, body)


def test_tensors_that_do_not_fit_are_refused() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        mover = RowMover(4, [0, 1, 2, 3], None, group, timeout_s=20)
        with pytest.raises(InputError, match=r"tensor 'x' is \[3, 2\]; expected 4 rows"):
            mover({"x": torch.zeros(3, 2)})
        with pytest.raises(InputError, match="tensor 'y' has no columns"):
            mover({"y": torch.zeros(4)})
        mover.close()

    run_ranks_as_threads(1, body)
