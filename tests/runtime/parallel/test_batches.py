"""Batches of calls matched with the captured one: places, names in any order, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from wirewise.errors import InputError
from wirewise.runtime.parallel.batches import batch_tensors

A, B, C = (torch.full((2,), float(n)) for n in range(3))


def structure(batch):
    return pytree.tree_flatten(batch)[1]


@pytest.mark.parametrize(
    ("captured", "args", "named"),
    [
        ((A, B, C), (A, B, C), {}),
        ((A, B, C), ((A, B, C),), {}),
        ([A, B, C], (A, B, C), {}),
        ({"x": A, "y": B, "z": C}, ({"z": C, "x": A, "y": B},), {}),
        ({"x": A, "y": B, "z": C}, (), {"z": C, "y": B, "x": A}),
        ((A, {"b": B, "c": C}), (A, {"c": C, "b": B}), {}),
        ({"pair": (A, B), "z": C}, (), {"z": C, "pair": (A, B)}),
    ],
)
def test_tensors_come_in_the_order_of_the_capture(captured, args, named):
    found = batch_tensors(structure(captured), args, named)
    assert [float(one[0]) for one in found] == [0.0, 1.0, 2.0]


def test_one_tensor_and_batches_without_names():
    assert batch_tensors(structure(A), (B,), {})[0] is B
    assert batch_tensors(None, (A, B), {}) == [A, B]


@pytest.mark.parametrize(
    ("captured", "args", "named", "match"),
    [
        ({"x": A, "y": B}, ({"x": A, "z": B},), {}, r"the batch is \['x', 'z'\]; expected the names .* x, y"),
        ({"x": A, "y": B}, (), {"x": A}, r"the batch is \['x'\]; expected the names"),
        ({"x": A, "y": B}, (A, B), {}, "got 2 arguments; expected the captured batch: a dict of x, y"),
        ((A, B), (A,), {}, "the batch is 1 entries; expected 2 entries as captured"),
        ((A, B), (), {"x": A, "y": B}, "the batch is dict; expected 2 entries"),
        ((A, {"b": B}), (A, {"c": B}), {}, r"\[1\] is \['c'\]; expected the names .*: b"),
        ({"x": A, "y": B}, (A,), {"y": B}, "got 1 arguments and y by name"),
        (None, (), {"x": A}, "which has no names"),
    ],
)
def test_other_names_and_places_are_refused(captured, args, named, match):
    with pytest.raises(InputError, match=match):
        batch_tensors(None if captured is None else structure(captured), args, named)
