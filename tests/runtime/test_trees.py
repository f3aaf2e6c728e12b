"""Nested states as bytes: every kind of tensor comes back, copies share nothing."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from wirewise.errors import InputError
from wirewise.runtime.trees import copy_into, digest_of, pack, raw_bytes, unpack

TREE = {
    "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
    "none": torch.empty(0, 3),
    "one": torch.tensor(7),
    "yes": torch.tensor([True, False]),
    3: (1.5, [None, "text", b"bytes"], Counter({2: 2})),
}


def test_a_tree_comes_back() -> None:
    frame, tensors = pack(TREE)
    found = unpack(frame, lambda own: [b.copy_(t) for b, t in zip(own, tensors, strict=True)])
    assert digest_of(found) == digest_of(TREE) and found[3] == TREE[3] and type(found[3][2]) is Counter
    assert len(pack({"a": torch.zeros(10**5)})[0]) < 3000  # no contents


def test_copies_use_old_memory_where_it_fits() -> None:
    first = copy_into(TREE)
    assert digest_of(first) == digest_of(TREE) and first["one"].data_ptr() != TREE["one"].data_ptr()
    changed = {**TREE, "one": torch.tensor(8), "none": torch.ones(1)}
    second = copy_into(changed, first)
    assert second["one"] is first["one"] and int(first["one"]) == 8
    assert second["none"].shape == (1,) and digest_of(second) == digest_of(changed)


def test_bytes_are_a_view_where_they_can_be() -> None:
    tensor = torch.zeros(3)
    raw_bytes(tensor)[3] = 63
    assert float(tensor[0]) == 0.5


@pytest.mark.parametrize("value", [{1}, object(), torch.float32, 1j])
def test_what_would_need_code_is_refused(value) -> None:
    with pytest.raises(InputError, match=f"a state holds a {type(value).__name__}"):
        pack({"a": [value]})
