"""Messages without tags on gloo: they match by their order, as NCCL's do, which is not run here itself."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import alone, batches, chain, loss, piped, plan_for, unet, worst
from wirewise.errors import InputError
from wirewise.runtime.pipeline import Pipeline
from wirewise.runtime.pipeline.layers import Value
from wirewise.runtime.pipeline.messages import MessageJournal, ValueSpec
from wirewise.runtime.pipeline.ordered import (
    OrderedChannel,
    OrderedInbox,
    OrderedOutbox,
    message_sequence,
    separate_transports,
)
from wirewise.runtime.transport import Transport


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("build", [chain, pytest.param(unet, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "style",
    ["eager-split", "2bw", *(pytest.param(one, marks=pytest.mark.slow) for one in ("1f1b", "interleaved"))],
)
def test_messages_match_by_their_order(style: str, build: Any) -> None:
    plan = plan_for(build(), 2 if style == "interleaved" else 4, style=style, microbatches=5)
    expected, losses = alone(build, plan, [batches(3, plan)], sgd)
    found, own = piped(build, plan, 3, sgd, in_order=True)
    assert worst(found, expected) <= 1e-12
    torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_training_goes_on_after_a_first_call() -> None:
    plan = plan_for(chain(), 3, style="2bw", microbatches=4)
    built = [chain() for _ in range(3)]
    feed = batches(4, plan)

    def body(rank: int, group: Any, store: Any) -> Any:
        pipeline = Pipeline(
            built[rank], plan, loss=loss, optimizer=sgd, process_group=group, store=store, timeout_s=20, in_order=True
        )  # fmt: skip
        for part in (feed[:2], feed[2:]):
            list(pipeline.train(part))
        pipeline.close()
        return pipeline.update

    assert run_ranks_as_threads(3, body) == [4, 4, 4]


def test_a_receiver_knows_the_order_of_the_sender() -> None:
    plan = plan_for(chain(), 2, style="2bw", microbatches=2)
    value = Value("3", 0, 1)
    forth = message_sequence(plan, [value], 0, 1, forward=True, first=5)
    assert [key for _, key in islice(forth, 5)] == [(5, 0), (5, 1), (6, 0), (6, 1), (7, 0)]
    back = message_sequence(plan, [value], 1, 0, forward=False, first=5)
    assert [key for _, key in islice(back, 3)] == [(5, 0), (5, 1), (6, 0)]


class Work:
    """A message on a device: whether it has ended can be asked for, and a wait is noted."""

    def __init__(self, calls: list[Any], name: str) -> None:
        self.calls, self.name, self.ended = calls, name, False

    def is_completed(self) -> bool:
        return self.ended

    def wait(self, *timeout: Any) -> None:
        self.calls.append(("wait", self.name, *timeout))


class Devices:
    """A group that notes the calls of a backend without tags."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.works: list[Work] = []

    def _post(self, kind: str, buffers: list[torch.Tensor], peer: int, tag: int) -> Work:
        self.calls.append((kind, list(buffers[0].shape), peer))
        if kind == "recv" and buffers[0].dtype == torch.int64:
            buffers[0].copy_(ValueSpec(torch.Size([2, 3]), torch.float32, True).pack("x"))
        self.works.append(Work(self.calls, kind))
        return self.works[-1]

    def send(self, buffers: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._post("send", buffers, peer, tag)

    def recv(self, buffers: list[torch.Tensor], peer: int, tag: int) -> Work:
        return self._post("recv", buffers, peer, tag)


def on_device(monkeypatch: pytest.MonkeyPatch) -> tuple[Devices, Any]:
    group = Devices()
    transport = SimpleNamespace(group=group, on_device=True, guard=lambda action, what, peer: action())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "device", lambda *_: "cpu")
    return group, transport


def test_calls_of_a_rank_that_receives_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    group, transport = on_device(monkeypatch)
    value = Value("3", 0, 1)
    plan = plan_for(chain(), 2, style="1f1b", microbatches=4)
    channel = OrderedChannel(
        transport, 7, 1, lambda first: message_sequence(plan, [value], 0, 1, forward=True, first=first)
    )
    inbox = OrderedInbox(channel, value, "x", described=True)
    channel.begin(0)
    inbox.post((0, 0))
    # The host would have to wait for the shape: only who needs the message does.
    assert group.calls == []
    inbox.take((0, 0))
    described, message = ("recv", [15], 7), ("recv", [2, 3], 7)
    assert group.calls == [described, ("wait", "recv"), message, ("wait", "recv")]
    inbox.post((0, 2))
    inbox.post((0, 1))
    # Two receives, in the order of the sender, and waits without a timeout: they order streams.
    assert group.calls[4:] == [message, message]
    inbox.take((0, 1))
    assert group.calls[6:] == [("wait", "recv")]


def test_buffers_live_until_a_device_has_sent_them(monkeypatch: pytest.MonkeyPatch) -> None:
    group, transport = on_device(monkeypatch)
    channel = OrderedChannel(transport, 7, 1, lambda first: iter(()))
    outbox = OrderedOutbox(channel, "x")
    outbox.describe(ValueSpec(torch.Size([2]), torch.float32, True))
    for number in range(3):
        outbox.send((0, number), torch.zeros(2))
    assert len(channel._under_way) == 4 and [call[0] for call in group.calls] == ["send"] * 4
    for work in group.works[:3]:
        work.ended = True
    outbox.send((0, 3), torch.zeros(2))
    # Nobody has waited: the stream of the passes must not stand behind a send.
    assert len(channel._under_way) == 2 and not any(call[0] == "wait" for call in group.calls)


def test_what_order_cannot_serve_is_refused() -> None:
    wide = plan_for(chain(), 2, style="1f1b", microbatches=4, width=2)
    plan = plan_for(chain(), 1, style="1f1b", microbatches=4)

    def body(rank: int, group: Any, store: Any) -> None:
        given = {"loss": loss, "optimizer": sgd, "process_group": group, "store": store}
        with pytest.raises(InputError, match="moves have tags, and messages match by their order"):
            Pipeline(chain(), wide, in_order=True, **given)
        with pytest.raises(InputError, match="a journal is given, and messages match by their order"):
            Pipeline(chain(), plan, in_order=True, journal=MessageJournal(), **given)
        devices = Transport(group, store=store)
        devices.on_device = True
        with pytest.raises(InputError, match="leave it out"):
            Pipeline(chain(), plan, in_order=False, **(given | {"process_group": devices}))
        with pytest.raises(InputError, match="two groups of all ranks, which only the default group has"):
            separate_transports(devices)

    run_ranks_as_threads(1, body)
