"""Gradients are checked where they are copied into the buckets, and only what was seen to be finite passes as such."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.data_parallel.examples import batch, sequential
from tests.runtime.data_parallel.test_compressed_training import grouped, run, train, weights
from wirewise.codec.gradients import GradientCodec
from wirewise.errors import InputError
from wirewise.runtime.data_parallel import Compression, flat

LOOKS = ["int8", "dgc", "fp16", "signum"]


@pytest.fixture
def told(monkeypatch):
    """What codecs were told about each gradient, by rank."""
    found: dict[int, list[bool]] = {0: [], 1: []}
    encode = GradientCodec.encode

    def noted(self, *args: Any, rank: int = 0, checked: bool = False, **rest: Any) -> None:
        found[rank].append(checked)
        encode(self, *args, rank=rank, checked=checked, **rest)

    monkeypatch.setattr(GradientCodec, "encode", noted)
    return found


def stepped(wrapped: Any, optimizer: Any, rank: int, step: int, set_to_none: bool = True) -> None:
    optimizer.zero_grad(set_to_none=set_to_none)
    x, y = batch(rank, step)
    nn.functional.cross_entropy(wrapped(x), y).backward()
    optimizer.step()


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["all_gather", "divisible"])
@pytest.mark.parametrize("codec", LOOKS)
def test_training_is_the_same_to_the_bit_where_copies_are_checked(codec, scheme, told, monkeypatch):
    found = []
    for checks in (True, False):
        if not checks:
            monkeypatch.setattr(flat.FlatBucket, "is_finite", lambda *_: False)

        def body(model, start, rank):
            wrapped, optimizer = start(grouped(model, 3, 2, codec, scheme=scheme))
            train(wrapped, optimizer, rank, range(4))
            return weights(model), wrapped.pools.state_dict()["residual"]

        found.append(run(2, sequential, body))
        calls = [one for rank in told.values() for one in rank]
        # A share that an owner encodes again is a sum that nobody has checked.
        assert any(calls) == checks and (all(calls) == checks or scheme == "divisible")
        told[0].clear(), told[1].clear()
    for (one, kept), (other, held) in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert kept.keys() == held.keys() and all(torch.equal(kept[name], held[name]) for name in kept)


def test_only_codecs_that_look_first_are_told(told):
    def body(model, start, rank):
        train(*start(grouped(model, 2, 2, "efsign")), rank, range(2))

    run(2, sequential, body)
    assert told == {0: [False] * 4, 1: [False] * 4}


def changing(model: nn.Module) -> contextlib.ExitStack:
    """A hook behind that of the reducer changes a gradient that was copied."""

    def halve(parameter: nn.Parameter) -> None:
        parameter.grad.mul_(0.5)

    stack = contextlib.ExitStack()
    stack.callback(model[4].weight.register_post_accumulate_grad_hook(halve).remove)
    return stack


def test_what_changed_since_the_copy_is_looked_at_again(told):
    def body(model, start, rank):
        wrapped, optimizer = start(grouped(model, 1, 2, "int8"))
        stepped(wrapped, optimizer, rank, 0)
        with changing(model):
            stepped(wrapped, optimizer, rank, 1)
        stepped(wrapped, optimizer, rank, 2)
        # Added up in place, where nothing is copied.
        stepped(wrapped, optimizer, rank, 3, set_to_none=False)

    run(2, sequential, body)
    assert told[0] == told[1] == [True, False, True, False]


def test_micro_steps_are_looked_at_when_they_are_added_up(told):
    def body(model, start, rank):
        wrapped, optimizer = start(grouped(model, 1, 2, "int8"))
        for step in range(2):
            optimizer.zero_grad()
            with wrapped.no_sync():
                x, y = batch(rank, step)
                nn.functional.cross_entropy(wrapped(x), y).backward()
            x, y = batch(rank, step + 1)
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()

    run(2, sequential, body)
    assert told[0] == told[1] == [False, False]


@pytest.mark.sweep
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("codec", LOOKS)
def test_policies_and_memories_are_as_without_the_check(codec, nonfinite, bad, told):
    def body(model, start, rank):
        wrapped, optimizer = start(grouped(model, 1, 2, codec), compression=Compression(nonfinite=nonfinite))
        stepped(wrapped, optimizer, rank, 0)
        before = wrapped.pools.state_dict()
        handle = model[4].weight.register_hook(lambda g: g * bad) if rank == 0 else None
        optimizer.zero_grad()
        x, y = batch(rank, 1)
        expected = (
            pytest.raises(InputError, match=r"in step 1 in the gradient of '\d.\w+' \(found by rank 0\)")
            if nonfinite == "raise"
            else contextlib.nullcontext()
        )
        with expected:
            nn.functional.cross_entropy(wrapped(x), y).backward()
        if handle is not None:
            handle.remove()
        now = wrapped.pools.state_dict()
        same = all(torch.equal(now[k][n], v) for k in ("residual", "momentum") for n, v in before[k].items())
        empty = all(p.grad is None or bool(p.grad.isnan().all()) for p in model.parameters())
        train(wrapped, optimizer, rank, range(2, 4))
        return same, empty, weights(model)

    (kept, empty, first), (other_kept, other_empty, second) = run(2, sequential, body)
    # The rank whose gradient is bad keeps its memory under both policies, the others when the step is skipped.
    assert kept and (other_kept or nonfinite == "raise")
    assert nonfinite == "raise" or (empty and other_empty)
    assert first.isfinite().all() and torch.equal(first, second)
    assert told[0] == [True, False, True, True] and told[1] == [True] * 4
