"""The store of a job: who reaches it, and what a stranger's keys are worth."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError, TCPStore

from wirewise.errors import InputError, PeerError
from wirewise.runtime.recovery import stores
from wirewise.runtime.recovery.stores import join_store, open_store

ONE = {"host": 0, "hosts": 1, "timeout_s": 10.0}


def test_the_store_of_one_host_is_reached_at_its_address_alone():
    store, port = open_store("127.0.0.1", 0, "secret", **ONE)
    join_store("127.0.0.1", port, "secret").set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), timeout=5).close()


def test_keys_of_a_stranger_are_not_those_of_the_job_and_do_not_tell_the_token():
    store, port = open_store("127.0.0.1", 0, "secret", **ONE)
    store.set("mine", "1")
    stranger = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    stranger.set("key", "forged")
    assert not store.check(["key"])
    assert not any("secret" in key for key in stranger.list_keys())
    other = join_store("127.0.0.1", port, "guess")
    with pytest.raises(DistStoreError):
        other.wait(["mine"], timedelta(milliseconds=50))


def test_another_host_with_another_token_is_refused():
    store, port = open_store("127.0.0.1", 0, "secret", host=0, hosts=2, timeout_s=10.0)
    with pytest.raises(InputError, match=r"host 1 has another token than host 0.*WIREWISE_TOKEN"):
        open_store("127.0.0.1", port, "other", host=1, hosts=2, timeout_s=10.0)
    again, _ = open_store("127.0.0.1", port, "secret", host=1, hosts=2, timeout_s=10.0)
    again.set("key", "value")
    assert store.get("key") == b"value"


def test_an_address_or_port_that_cannot_be_had_is_named():
    _, port = open_store("127.0.0.1", 0, "", **ONE)
    with pytest.raises(PeerError, match=rf"host 0 cannot listen at 127\.0\.0\.1:{port} \[.*in use"):
        open_store("127.0.0.1", port, "", **ONE)
    with pytest.raises(PeerError, match=r"cannot listen at 192\.0\.2\.1:1234 \[.*an address of this host"):
        open_store("192.0.2.1", 1234, "", **ONE)
    with pytest.raises(PeerError, match=r"host 1 has no store at 127\.0\.0\.1:9"):
        open_store("127.0.0.1", 9, "", host=1, hosts=2, timeout_s=0.5)


def test_a_name_that_stands_for_loopback_is_open_to_other_hosts(monkeypatch):
    # As Debian's /etc/hosts has it: the host's own name is 127.0.1.1.
    monkeypatch.setattr(stores, "_is_loopback", lambda address: True)
    for address, alone, expected in (
        ("head", False, "0.0.0.0"),
        ("127.0.0.1", False, "127.0.0.1"),
        ("localhost", False, "127.0.0.1"),
        ("localhost", True, "127.0.0.1"),
    ):
        with stores._listener(address, 0, alone=alone) as listener:
            assert listener.getsockname()[0] == expected
