"""Attributes that training changes: which they are, and their way to another process."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch
from torch import nn

from wirewise.runtime.recovery.attributes import Attributes, decoded, encode_value
from wirewise.runtime.trees import digest_of, pack, unpack


class Meter:
    def __init__(self) -> None:
        self.seen, self.log = 0, print


class Layer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale, self.meter, self.best = 1.0, Meter(), None
        self.recent, self.rng = deque([1.0], 3), np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale *= 2
        self.meter.seen += 1
        self.recent.append(float(self.rng.random()))
        self.activation = super().forward(x)
        return self.activation


def travelled(tree: Any) -> Any:
    frame, tensors = pack(tree)
    return unpack(frame, lambda own: [b.copy_(t) for b, t in zip(own, tensors, strict=True)])


def test_what_training_changes_travels_and_the_rest_stays() -> None:
    first, second = Layer(), Layer()
    of_first, of_second = Attributes({"layer": first}), Attributes({"layer": second})
    first(torch.ones(1, 2))
    first.eval()
    assert of_first.state() == {}
    of_first.detect_changes()
    assert of_first.names == {("layer", one) for one in ("scale", "meter", "recent", "rng", "training")}
    second.in_features, meter = 7, second.meter
    of_second.load(travelled(of_first.state()))
    assert (second.scale, second.meter.seen, second.recent, second.training) == (2.0, 1, first.recent, False)
    assert second.meter is meter and second.meter.log is print and second.in_features == 7
    assert second.rng.random() == first.rng.random()
    # It knows now what changes.
    assert digest_of(of_second.state()["layer"]["scale"]) == digest_of(of_first.state()["layer"]["scale"])


def test_an_attribute_comes_back_after_a_failed_attempt() -> None:
    layer = Layer()
    attributes = Attributes({"layer": layer})
    layer(torch.ones(1, 2))
    attributes.detect_changes()
    kept = travelled(attributes.state())
    layer(torch.ones(1, 2))
    attributes.load(kept)
    assert layer.scale == 2.0 and layer.meter.seen == 1 and len(layer.recent) == 2


def test_what_changes_in_the_first_attempt_is_as_it_was_at_the_beginning() -> None:
    layer = Layer()
    attributes = Attributes({"layer": layer})
    kept = travelled(attributes.state())
    layer(torch.ones(1, 2))
    attributes.detect_changes()
    attributes.load(kept)
    assert (layer.scale, layer.meter.seen, list(layer.recent)) == (1.0, 0, [1.0])
    assert layer.rng.random() == np.random.default_rng(0).random()


def test_values_of_all_kinds_are_the_same_after_their_way() -> None:
    state = random.Random(3)
    values: list[Any] = [
        {"a": [1, (2.5, None)], 3: b"x"},
        {1, 2},
        frozenset("ab"),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.float32(1.5),
        torch.arange(3),
    ]
    for value in values:
        again = decoded(travelled(encode_value(value)))
        assert type(again) is type(value) and repr(again) == repr(value)
    kept = travelled(encode_value(state))
    expected = state.random()
    assert decoded(kept, state).random() == expected
    legacy = np.random.RandomState(4)
    kept = travelled(encode_value(legacy))
    drawn = legacy.rand()
    assert decoded(kept, legacy).rand() == drawn
    counts: defaultdict[str, int] = defaultdict(int, a=1)
    kept = travelled(encode_value(counts))
    counts["b"] += 1
    assert decoded(kept, counts) is counts and dict(counts) == {"a": 1}


def test_what_the_compiler_keeps_stays_where_it_is() -> None:
    layer = Layer()
    compiled = torch.compile(layer, backend="eager")
    attributes = Attributes({"model": compiled, "layer": layer})
    compiled(torch.ones(1, 2))
    attributes.detect_changes()
    assert {owner for owner, _ in attributes.names} == {"layer"}
    assert encode_value(torch.fx.Graph())["__kind__"] == "skipped"


def test_what_no_copy_can_hold_is_passed_over() -> None:
    held = [print, 1]
    tree = travelled(encode_value(held))
    assert decoded(tree, held) == [print, 1]
    assert encode_value(list(range(10_000)))["__kind__"] == "skipped"
