"""Sums of gradients: around a ring and on servers, one set after the other, in a thread beside the backward pass."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError, PeerError
from wirewise.runtime.deployment.gradients import (
    GradientQueue,
    ParameterServers,
    RingAllReduce,
    subgroup_transports,
)
from wirewise.runtime.transport import transport_of


def _parameters(number):
    """Three parameters of two types, whose gradients tell the rank."""
    kinds = (torch.float32, torch.float64, torch.float32)
    return [nn.Parameter(torch.zeros(2 + n, dtype=kind)) for n, kind in enumerate(kinds)]


@pytest.mark.parametrize("way", ["ring", "servers"])
def test_sums_of_every_type_are_the_same_on_all_ranks(way):
    def rank(number, bare, store):
        own = _parameters(number)
        group = transport_of(bare, timeout_s=10.0, store=store)
        if way == "ring":
            one = RingAllReduce(own, group, "a test")
        else:
            one = ParameterServers({2: own[:2], 0: own[2:]}, group, 0, "a test")
        for _ in range(2):
            one.begin()
            for place, parameter in enumerate(own):
                parameter.grad += 10**number * (place + 1)
            one.exchange()
        group.close()
        return [parameter.grad for parameter in own], one.bytes_sent

    found = run_ranks_as_threads(3, rank)
    for gradients, _ in found:
        assert [set(gradient.tolist()) for gradient in gradients] == [{111.0}, {222.0}, {333.0}]
    sent = [count for _, count in found]
    sizes = [8, 24, 16]
    if way == "ring":
        assert sent == [2 * (2 * 2 * 24 // 3 + 2 * 2 * 24 // 3)] * 3
    else:
        # A server sends each sum to two ranks, the others their partial sums to it.
        assert sent == [2 * (sizes[0] + sizes[1] + 2 * 16), 2 * sum(sizes), 2 * (2 * 32 + 16)]


class _Noted:
    """A set that tells when it is exchanged."""

    bytes_sent = 0

    def __init__(self, name, log, error=None):
        self.name, self.log, self.error = name, log, error

    def begin(self):
        self.log.append(f"begin {self.name}")

    def exchange(self):
        if self.error:
            raise self.error
        self.log.append(self.name)


def test_sets_are_exchanged_in_their_order_whichever_is_ready_first():
    log = []
    a, b = _Noted("a", log), _Noted("b", log)
    queue = GradientQueue([a, b])
    for _ in range(2):
        queue.begin()
        queue.ready(b)
        time.sleep(0.02)
        assert log[-1] == "begin b"
        queue.ready(a)
        queue.finish()
        assert log[-2:] == ["a", "b"]


def test_of_those_that_are_ready_everywhere_the_least_priority_goes_first():
    def rank(number, bare, store):
        group, log = transport_of(bare, timeout_s=10.0, store=store), []
        sets = [_Noted(name, log) for name in "abc"]
        queue = GradientQueue(sets, [2, 1, 0], group)
        queue.begin()
        for one in sets if number else sets[:2]:
            queue.ready(one)
        # Rank 0 has no c yet, so b is the first of both.
        queue.wait(sets[1])
        queue.ready(sets[2])
        queue.finish()
        return log[3:]

    found = run_ranks_as_threads(2, rank)
    assert found[0] == found[1] and sorted(found[0]) == ["a", "b", "c"]


def test_an_error_of_an_exchange_is_that_of_the_step():
    queue = GradientQueue([_Noted("a", [], PeerError("gone"))])
    queue.begin()
    queue.ready(queue._sets[0])
    with pytest.raises(PeerError, match="gone"):
        queue.finish()
    waits = GradientQueue([_Noted("a", [])])
    waits.begin()
    waits.abandon()
    waits.finish()


def test_a_group_of_some_ranks_needs_gloo_and_a_store():
    def rank(number, bare, store):
        with pytest.raises(InputError, match="has no store"):
            subgroup_transports(transport_of(bare, timeout_s=10.0))
        made = subgroup_transports(transport_of(bare, timeout_s=10.0, store=store))
        return made((0, 2), "some").total(number) if number != 1 else None

    assert run_ranks_as_threads(3, rank) == [2.0, None, 2.0]


def test_groups_of_a_second_training_are_not_mixed_up_with_those_of_the_first():
    def rank(number, bare, store):
        transport = transport_of(bare, timeout_s=10.0, store=store)
        found = []
        for training in range(2):
            group_of = subgroup_transports(transport)
            # What the store has of the first training is there while this rank makes the groups of the second.
            time.sleep(0.3 * training * number)
            group = group_of(range(2), "a test")
            found.append(float(group.total(number + 1.0)))
            group.close()
        transport.close()
        return found

    assert run_ranks_as_threads(2, rank) == [[3.0, 3.0]] * 2
