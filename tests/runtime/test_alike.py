"""Tensors by name on all ranks: the one that differs is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
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
