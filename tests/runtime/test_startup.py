"""Ranks that start: who does not come is named by all others, within the timeout."""

import socket
import threading
import time

import pytest

from tests.harness.tiers import slow
from wirewise.errors import InputError, PeerError
from wirewise.hosts import free_port, rank_variables
from wirewise.runtime.startup import rendezvous, start_group


def meeting(here, size, timeout_s):
    """What the ranks that come hear, by rank, and the seconds until the last of them has heard it."""
    port = free_port("127.0.0.1")
    found, start = {}, time.monotonic()

    def come(rank):
        try:
            found[rank] = rendezvous(rank, size, "127.0.0.1", port, timeout_s=timeout_s)
        except PeerError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in here]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found, time.monotonic() - start


@pytest.mark.parametrize(("here", "missing"), [slow(([0, 1], "2")), slow(([0, 2, 3], "1")), ([0, 3], "1, 2")])
@pytest.mark.slow
def test_who_does_not_come_is_named_by_all(here, missing):
    found, took_s = meeting(here, here[-1] + 1 if here[-1] > 1 else 3, 2.0)
    assert sorted(found) == here
    for rank, said in found.items():
        assert f"rank {rank} waited 2 s for rank {missing} of" in said
    assert took_s < 20


@pytest.mark.slow
def test_a_missing_rank_0_is_named():
    found, took_s = meeting([1, 2], 3, 2.0)
    for rank in (1, 2):
        assert f"rank {rank} does not reach the store of rank 0" in found[rank]
    assert took_s < 30


def test_a_late_rank_is_waited_for():
    found, _ = meeting([0, 1, 2], 3, 30.0)
    found[0].set("word", "given")
    assert [store.get("word") for store in found.values()] == [b"given"] * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "x"}, "RANK is 'x'; expected an integer of at least 0"),
        ({"RANK": ""}, "RANK is ''; expected an integer"),
        ({"RANK": "5"}, "RANK is 5 and WORLD_SIZE 2; expected a rank of 0 to 1"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2'; expected an integer of at least 1"),
        ({"MASTER_PORT": None}, "MASTER_PORT is not set"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named_at_once(monkeypatch, changes, message):
    for name, value in (rank_variables(0, 2, "127.0.0.1", 29_999) | changes).items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        start_group(600.0)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(PeerError, match=f"cannot open the store at 127.0.0.1:{port}: the port is in use"):
            rendezvous(0, 2, "127.0.0.1", port, timeout_s=5.0)
