"""Ranks that may join: trainings that need all of their ranks, and agents that let fewer go on."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from wirewise.errors import InputError
from wirewise.runtime.recovery import control, membership
from wirewise.runtime.recovery.generations import Coordinator, WorkerReady


@pytest.mark.parametrize("elastic", [False, True])
def test_what_needs_all_ranks_is_refused_where_fewer_may_go_on(monkeypatch, elastic):
    coordinator = Coordinator(1, elastic=elastic)
    [begin] = coordinator.on_event(WorkerReady((0, 0), {}))
    regrouped: list[Exception | None] = []
    member = SimpleNamespace(generation=begin.generation, regroup=regrouped.append, enter=lambda: None)  # type: ignore[union-attr]
    monkeypatch.setattr(control, "current", lambda: member)
    monkeypatch.setattr(membership, "Member", lambda link, timeout_s, backend: link)
    assert membership.join(bound="") is member
    if not elastic:
        assert membership.join() is member and regrouped == [None, None]
        return
    with pytest.raises(
        InputError, match=re.escape("(elastic=True), and each rank has a part that no other has")
    ):
        membership.join()
    assert regrouped == [None]
