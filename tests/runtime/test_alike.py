"""Tensors by name on all ranks: the one that differs is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
from wirewise.runtime.alike import replace_in_groups
from wirewise.runtime.full_graph import Transport


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"a": torch.ones(2), "b": torch.ones(3, 3)}, r"from tensor 1 on, which is 'b', float32 \[3, "),
        ({"a": torch.ones(2), "c": torch.ones(3, 2)}, r"from tensor 1 on, which is '[bc]', float32 \[3, 2\]"),
        ({"a": torch.ones(2), "b": torch.ones(3, 2).double()}, "from tensor 1 on, which is 'b', float"),
        ({"b": torch.ones(3, 2), "a": torch.ones(2)}, "from tensor 0 on, which is '[ab]'"),
        ({"a": torch.ones(2)}, r"from tensor 1 on.* they have \[2, 2, 1\] tensors"),
        ({}, r"from tensor 0 on.* they have \[2, 2, 0\] tensors"),
    ],
)
def test_a_broadcast_names_the_tensor_that_differs_on_every_rank(
    other: dict[str, torch.Tensor], named: str
) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        transport = Transport(group, timeout_s=20, store=store)
        tensors = other if rank == 2 else {"a": torch.ones(2), "b": torch.ones(3, 2)}
        with pytest.raises(InputError, match=named):
            transport.broadcast(tensors)
        transport.barrier("the end")
        transport.close()

    run_ranks_as_threads(3, body)


def test_tensors_are_exchanged_in_place_as_one_of_each_type() -> None:
    tensors = {
        "a": torch.ones(2, 3, requires_grad=True),
        "b": torch.ones(2, dtype=torch.float64),
        "c": torch.arange(4.0).view(2, 2).t(),
        "d": torch.ones(()),
    }
    groups: list[list[str]] = []

    def exchange(names: list[str], flat: torch.Tensor) -> torch.Tensor:
        groups.append(names)
        return flat.mul_(len(groups) + 1)

    replace_in_groups(tensors, exchange)
    assert groups == [["a", "c", "d"], ["b"]]
    assert tensors["a"].tolist() == [[2.0] * 3] * 2 and tensors["b"].tolist() == [3.0, 3.0]
    assert tensors["c"].tolist() == [[0.0, 4.0], [2.0, 6.0]] and float(tensors["d"]) == 2.0


def test_tensors_whose_exchange_fails_keep_their_values() -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float64)}

    def exchange(names: list[str], flat: torch.Tensor) -> torch.Tensor:
        flat.zero_()
        if names == ["b"]:
            raise InputError("a peer is gone")
        return flat

    with pytest.raises(InputError):
        replace_in_groups(tensors, exchange)
    assert tensors["a"].tolist() == [0.0, 0.0] and tensors["b"].tolist() == [1.0, 1.0]
