"""Interruption of what waits in a process group: it rests on what torch does, and fails loudly when that changes."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.errors import InputError
from wirewise.runtime.recovery.control import ControlChannel, fingerprint, interrupt


def wait_for_silent_peer(rank, group, store, act):
    if rank == 1:
        # Alive, and silent until the others are free.
        while not (store.check(["free-0"]) and store.check(["free-2"])):
            time.sleep(0.005)
        return "silent"
    threading.Timer(0.2, interrupt, [group]).start()
    with pytest.raises(RuntimeError) as raised:
        act(group)
    store.set(f"free-{rank}", "1")
    return str(raised.value)


def receive(group):
    group.recv([torch.zeros(4)], 1, 7).wait()


def reduce(group):
    group.allreduce([torch.zeros(4)]).wait()


@pytest.mark.parametrize("act", [receive, reduce])
def test_ranks_that_wait_for_a_silent_peer_are_freed_by_an_interruption(act):
    # Without the interruption they would wait for the group's timeout, and the test would fail by its own.
    first, silent, _ = run_ranks_as_threads(3, wait_for_silent_peer, act, timeout_s=30)
    assert silent == "silent"
    assert "pair closure" in first or "closed" in first, (
        "a receive that times out does not close the connections of its gloo group any more: interrupt() needs another "
        f"way; got {first!r}"
    )


def rejoin(rank, group, store):
    if rank != 1:
        interrupt(group)
    with pytest.raises(RuntimeError):
        group.allreduce([torch.ones(1)]).wait()
    again = type(group)(torch.distributed.PrefixStore("2", store), rank, 3, group.options)
    total = torch.ones(1)
    again.allreduce([total]).wait()
    return float(total)


def test_after_an_interruption_a_new_group_works():
    assert run_ranks_as_threads(3, rejoin, timeout_s=30) == [3.0] * 3


def test_fingerprints_tell_codes_apart_and_name_what_must_be_equal():
    one, other = fingerprint(b"a"), fingerprint(b"b")
    assert one["code"] != other["code"]
    assert set(one) == {"code", "python", "torch", "threads", "processor"}
    assert all(isinstance(value, str) for value in one.values())


def test_a_process_joins_one_training():
    # Without an agent its thread would end this process.
    link = object.__new__(ControlChannel)
    link._entered = False
    link.enter()
    with pytest.raises(
        InputError, match="has joined a protected training already; expected one call of `protect`"
    ):
        link.enter()
