"""The terms of the memory formula are the bytes of what a trainer really holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.full_graph.training import small_graph, split, train
from wirewise import graph
from wirewise.runtime import full_graph as fg

PARTS, HIDDEN = 3, 16


def blocks(thing: Any, seen: set[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of the memory of every tensor and array below an object; parts and transports left out."""
    if id(thing) in seen or isinstance(thing, (graph.Part, fg.Transport)):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    elif isinstance(thing, np.ndarray):
        start = thing.__array_interface__["data"][0]
        yield start, start + thing.nbytes
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from blocks(value, seen)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from blocks(value, seen)
    elif type(thing).__module__.startswith("wirewise"):
        yield from blocks(vars(thing), seen)


def held_bytes(things: Any, *, part: graph.Part) -> int:
    """Bytes of memory that objects hold and the part's own arrays do not, shared memory once."""
    arrays = {**vars(part), "x": vars(part.x) if isinstance(part.x, graph.SparseRows) else part.x}
    own = list(blocks(arrays, set()))
    total, end = 0, 0
    for first, last in sorted(blocks(things, set())):
        if any(a <= first and last <= b for a, b in own):
            continue
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def sparse_graph() -> graph.GraphData:
    data = small_graph()
    presence = data.x > np.quantile(data.x, 0.8)
    return dataclasses.replace(data, x=graph.SparseRows.from_dense(presence))


def held(trainer: fg.Trainer) -> dict[str, int]:
    tensors, part, exchange = trainer.tensors, trainer.tensors.part, trainer.exchange
    parameters = list(trainer.model.parameters())
    moments = [{k: v for k, v in s.items() if k != "step"} for s in trainer.optimizer.state.values()]
    gradients = [p.grad for p in parameters]
    # All but those of the last evaluation, which the formula leaves out.
    last = "-32" if exchange.evaluation_bits != 32 else None
    travelling = [[bucket.flats, bucket.pieces] for bucket in trainer.reducer.buckets]
    lanes = [lane for name, lane in exchange.lanes.items() if last is None or not name.endswith(last)]
    return {
        "inputs": held_bytes([tensors._inputs, tensors.split_rows], part=part),
        "matrices": held_bytes(tensors._neighbourhoods, part=part),
        "messages": held_bytes([lanes, exchange.forward_route, exchange.backward_route], part=part),
        "parameters": held_bytes([parameters, gradients, moments, travelling], part=part),
    }


CASES = [
    ("gcn", "fp32", 3, small_graph),
    ("sage", "fp32", 3, small_graph),
    ("sage", "bf16", 2, small_graph),
    ("gcn", "uniform-4", 4, small_graph),
    ("sage", "adaqp", 3, small_graph),
    ("sage", "adaqp-paper", 3, small_graph),
    ("gcn", "adaqp-paper", 3, small_graph),
    ("gcn", "pipegcn", 3, small_graph),
    ("sage", "sancus", 3, small_graph),
    ("sage", "fp32", 1, small_graph),
    ("gcn", "fp32", 3, sparse_graph),
    ("sage", "fp32", 3, sparse_graph),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("convolution", "mode", "layers", "make"), CASES)
def test_terms_are_the_bytes_that_a_trainer_holds(convolution, mode, layers, make):
    parts = split(make(), PARTS)

    def after(trainer):
        # `train` has evaluated in float32; a run also evaluates at the mode's own width.
        trainer.evaluate()
        return held(trainer)

    # Two epochs: before the first plan, planned messages have the 8 bits that the formula gives them.
    found = train(parts, mode, epochs=2, after=after, convolution=convolution, layers=layers, hidden=HIDDEN)
    for part, rank in zip(parts, found.extra, strict=True):
        terms = fg.memory_terms(part, [fg.mode(mode)], hidden=HIDDEN, layers=layers, convolution=convolution)
        assert rank == {name: getattr(terms, name) for name in rank}


def test_modes_share_all_but_messages_and_parameters():
    part = split(small_graph(), 2)[0]

    def terms(*names: str) -> fg.MemoryTerms:
        return fg.memory_terms(part, [fg.mode(n) for n in names], hidden=HIDDEN, layers=3, convolution="sage")

    one, other, both = terms("fp32"), terms("adaqp"), terms("fp32", "adaqp")
    assert both.part == one.part and both.inputs == one.inputs and both.matrices == one.matrices
    assert both.activations == one.activations == other.activations
    assert both.messages == one.messages + other.messages
    assert both.parameters == one.parameters + other.parameters
    assert both.total == one.total + other.messages + other.parameters
    assert one.total == sum(dataclasses.astuple(one))


def test_activations_follow_the_counts():
    part = split(small_graph(), 2)[0]
    for convolution, matrices in (("gcn", 6), ("sage", 7)):
        terms = fg.memory_terms(part, [fg.mode("fp32")], hidden=64, layers=3, convolution=convolution)
        marginal = part.num_own - part.num_central
        values = part.num_own * (matrices * 64 + 2 * 2 + 4 * 4) + 64 * (marginal + part.num_halo)
        assert terms.activations == 4 * values
