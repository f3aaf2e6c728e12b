"""Checks and accessors of bit-width plans."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from wirewise.errors import PlanError
from wirewise.plans import BitWidthPlan, ChannelBits, row_bytes


@dataclasses.dataclass
class FakeTopology:
    devices: list[str]
    hosts: list[str] = dataclasses.field(default_factory=list)


TWO = FakeTopology(["a", "b"])


def channel(exchange="forward1", sender=0, receiver=1, width=16, bits=(4, 4, 2)):
    return ChannelBits(exchange=exchange, sender=sender, receiver=receiver, width=width, bits=bytes(bits))


def plan(*channels, **knobs):
    return BitWidthPlan(world_size=2, planner="test", channels=channels, **knobs)


@pytest.mark.parametrize(
    ("bits", "width", "param_bytes", "expected"),
    [(2, 256, 4, 68), (4, 41, 6, 27), (8, 16, 6, 22), (16, 41, 6, 82), (32, 41, 6, 164), (1, 9, 4, 6)],
)
def test_row_bytes(bits, width, param_bytes, expected):
    assert row_bytes(bits, width, param_bytes) == expected


def test_bytes_counts_and_mean_bits():
    p = plan(channel(), channel(sender=1, receiver=0, bits=(32, 8)))
    assert p.bytes_matrix("forward1").tolist() == [[0, 2 * 14 + 10], [64 + 22, 0]]
    assert p.counts("forward1") == {2: 1, 4: 2, 8: 1, 32: 1}
    assert p.mean_bits("forward1") == 10.0
    assert p.bytes_matrix("forward9").sum() == 0


def test_exchanges_come_in_the_order_of_an_epoch():
    names = ["backward1", "forward2", "backward2", "forward1", "forward10"]
    p = plan(*(channel(name) for name in names))
    assert p.exchanges == ["forward1", "forward2", "forward10", "backward2", "backward1"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (plan(channel(bits=(4, 3))), ["$.channels[0]", "message 1 has 3 bits", " X"]),
        (plan(channel(receiver=2)), ["receiver is 2", "0 to 1"]),
        (plan(channel(sender=-1)), ["sender is -1"]),
        (plan(channel(receiver=0)), ["sends to itself"]),
        (plan(channel(width=0)), ["width is 0"]),
        (plan(channel("sideways")), ["'sideways'", "forwardN"]),
        (plan(channel(), channel()), ["$.channels[1]", "$.channels[0]", "remove one"]),
        (plan(channel(), channel(sender=1, receiver=0, width=8)), ["width 8", "16"]),
        (plan(channel(), channel("forward2", bits=(4,))), ["forward2 0 -> 1 has 1", "forward1 0 -> 1 has 3"]),
        (plan(channel(), param_bytes=5), ["$.param_bytes", "4 or 6"]),
        (
            plan(channel(), channel("backward1", 1, 0, bits=(4, 4, 4)), forward_covers_backward=True),
            ["forward1 has 3.333", "backward1 has 4.000"],
        ),
    ],
)
def test_check_shows_the_faulty_place(broken, words):
    with pytest.raises(PlanError) as caught:
        broken.check(TWO)
    for word in words:
        assert word in str(caught.value)


def test_check_names_both_world_sizes():
    with pytest.raises(PlanError, match=r"world size 2.*3 ranks"):
        plan(channel()).check(FakeTopology(["a"] * 3))
    plan(channel()).check(FakeTopology([], hosts=["x", "y"]))


def test_check_compares_message_counts_with_the_job():
    p = plan(channel())
    p.check(TWO, {("forward1", 0, 1): 3, ("forward1", 1, 0): 0})
    with pytest.raises(PlanError, match=r"forward1 0 -> 1: the plan has 3 messages, the job sends 5"):
        p.check(TWO, {("forward1", 0, 1): 5})
    with pytest.raises(PlanError, match=r"forward1 1 -> 0: the plan has 0 messages, the job sends 2"):
        p.check(TWO, {("forward1", 0, 1): 3, ("forward1", 1, 0): 2})


def test_a_plan_may_send_more_backward_when_it_does_not_claim_the_law():
    plan(channel(), channel("backward1", 1, 0, bits=(8, 8, 8))).check(TWO)


def test_bits_are_one_byte_a_message_in_send_order():
    assert channel(bits=(8, 2, 4)).array.tolist() == [8, 2, 4]
    assert channel(bits=(8, 2, 4)).array.dtype == np.uint8
    assert channel(bits=()).counts == {}


def test_plans_are_frozen():
    with pytest.raises(AttributeError):
        plan(channel()).epoch = 3
    assert msgspec.structs.replace(plan(channel()), epoch=3).epoch == 3
