"""What agents tell each other, and that no two parts of a cut network train on."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import pytest
from torch.distributed import DistStoreError

from wirewise.runtime.recovery import bus as module
from wirewise.runtime.recovery.bus import Bus
from wirewise.runtime.recovery.generations import AbortJob, ErrorRaised, GenerationEnded, HostLost


class Store:
    """A store in memory whose answers to one client can stop, as in a cut network."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.lock = threading.Lock()

    def client(self) -> Client:
        return Client(self)


class Client:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.connected = threading.Event()
        self.connected.set()

    def add(self, key: str, amount: int) -> int:
        self.connected.wait()
        with self.store.lock:
            self.store.values[key] = self.store.values.get(key, 0) + amount
            return self.store.values[key]

    def set(self, key: str, value: bytes) -> None:
        self.connected.wait()
        self.store.values[key] = value

    def get(self, key: str) -> bytes:
        self.connected.wait()
        return self.store.values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.store.values.keys() >= set(keys):
            if time.monotonic() > deadline:
                raise DistStoreError("wait timeout")
            time.sleep(0.001)
        self.connected.wait()

    def clone(self) -> Client:
        return self


def next_of(bus: Bus) -> Any:
    while True:
        assert wait([bus.wake], 30), "nothing came"
        # A message is there before it wakes, and may have been taken with the one before it.
        if taken := bus.take():
            return taken[0]


@pytest.fixture
def lease_s():
    """Far longer than a process may have to wait for a processor."""
    return 60.0


@pytest.fixture
def pair(lease_s):
    clients = [store.client() for store in [Store()] for _ in range(2)]
    buses = [Bus(client, host, 2, lease_s, "secret") for host, client in enumerate(clients)]
    yield clients, buses
    for client, bus in zip(clients, buses, strict=True):
        client.connected.set()
        bus.close()


def test_events_come_to_the_coordinator_and_commands_to_all_others(pair):
    _, (first, second) = pair
    second.post(ErrorRaised((1, 0), "x"))
    assert next_of(first) == ErrorRaised((1, 0), "x")
    first.post(GenerationEnded(1))
    assert next_of(second) == GenerationEnded(1)


def test_what_comes_at_once_comes_whole_and_in_order(pair):
    _, (first, second) = pair
    sent = [ErrorRaised((1, number), "x") for number in range(20)]
    for event in sent:
        second.post(event)
    came: list[Any] = []
    while len(came) < len(sent):
        assert wait([first.wake], 30), "nothing came"
        came += first.take()
    assert came == sent


def test_a_host_that_comes_again_hears_nothing_old_and_goes_on_behind_what_it_said(pair):
    clients, (first, second) = pair
    first.post(GenerationEnded(1))
    second.post(ErrorRaised((1, 0), "x"))
    assert next_of(second) == GenerationEnded(1)
    assert next_of(first) == ErrorRaised((1, 0), "x")
    second.close()
    again = Bus(clients[1], 1, 2, 60.0, "secret")
    again.post(ErrorRaised((1, 1), "y"))
    assert next_of(first) == ErrorRaised((1, 1), "y")
    first.post(GenerationEnded(2))
    assert next_of(again) == GenerationEnded(2)
    again.close()


def test_messages_that_no_agent_of_the_job_has_signed_are_refused(pair, caplog):
    clients, (first, second) = pair
    stranger = Bus(clients[1], 1, 2, 60.0, "guess")
    stranger.post(ErrorRaised((1, 0), "forged"))
    # Two of one number write to one place: the true one comes behind.
    deadline = time.monotonic() + 20
    while "refused a message" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    second.post(ErrorRaised((1, 0), "true"))
    assert next_of(first) == ErrorRaised((1, 0), "true")
    assert "refused a message" in caplog.text and "which no agent of this job has signed" in caplog.text
    # Nor is a signed one taken in another place.
    first.post(GenerationEnded(1))
    assert next_of(second) == GenerationEnded(1)
    store = clients[0].store
    store.values["commands/2"] = store.values["commands/1"]
    store.values["commands/count"] = 2
    first.post(GenerationEnded(3))
    assert next_of(second) == GenerationEnded(3)
    stranger.close()


@pytest.mark.parametrize("lease_s", [2.0])
def test_a_host_that_is_cut_off_gives_up_before_it_counts_as_lost(pair, monkeypatch):
    # The margin is what this test may be late by when it looks.
    monkeypatch.setattr(module, "_MARGIN_S", 2.0)
    (_, cut), (first, second) = pair
    first.post(GenerationEnded(1))
    next_of(second)
    cut.connected.clear()
    given_up = next_of(second)
    # The coordinator has not counted it as lost while its processes could still train.
    assert not wait([first.wake], 0)
    assert isinstance(given_up, AbortJob) and "never two parts of a cut network" in given_up.reason
    lost = next_of(first)
    assert isinstance(lost, HostLost) and lost.host == 1
