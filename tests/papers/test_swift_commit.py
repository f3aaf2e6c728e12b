"""Ranks with commits in memory, which come together again after a failure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from wirewise.errors import PeerError
from wirewise_papers.swift import commit as swift_commit


def test_ranks_meet_in_the_newest_generation():
    store = HashStore()
    store.add("generation", 0)
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(swift_commit._met, store, rank, 3) for rank in (0, 1)]
        while not store.check(["0-0", "0-1"]):
            pass
        # As the process does that takes the place of a dead one, while the others wait for that.
        store.add("generation", 1)
        last = pool.submit(swift_commit._met, store, 2, 3)
        assert [one.result(timeout=30) for one in (*early, last)] == [1, 1, 1]


def test_a_generation_that_does_not_come_about_is_given_up(monkeypatch):
    monkeypatch.setattr(swift_commit, "_START_S", 0.0)
    with pytest.raises(PeerError, match="rank 0 waited 0 s for the others of generation 0"):
        swift_commit._met(HashStore(), 0, 2)
