"""Hosts are joined by connections for each purpose and direction."""

from tests.runtime.flows.hosts import on_hosts
from wirewise.errors import PeerError
from wirewise.runtime.flows.meeting import FLOWS, WORDS, Connections


def test_what_is_sent_to_a_host_arrives_by_its_purpose():
    def work(peers):
        for (host, purpose), connection in peers.out.items():
            connection.sendall(bytes([peers.rank, host, purpose]))
        return {one: connection.recv(3, 0x100) for one, connection in peers.into.items()}  # MSG_WAITALL

    found = on_hosts(3, work)
    for rank, came in enumerate(found):
        pairs = [(host, purpose) for host in range(3) if host != rank for purpose in (FLOWS, WORDS)]
        assert came == {(host, purpose): bytes([host, rank, purpose]) for host, purpose in pairs}


def test_a_host_that_does_not_connect_is_named(monkeypatch):
    first = Connections.__init__

    def late(self, transport):
        if transport.rank == 0:
            first(self, transport)

    monkeypatch.setattr(Connections, "__init__", late)
    error = on_hosts(2, lambda peers: None, timeout_s=0.3)[0]
    assert isinstance(error, PeerError) and "rank 0 waited for a connection with rank 1" in str(error)
