"""Ends of ranks: who failed first, and when the others have had their time."""

from __future__ import annotations

import signal
import time

import pytest

from wirewise.hosts.ranks import RankStates, describe_exit


def test_a_set_of_ranks_runs_until_the_last_has_ended():
    states = RankStates(2)
    states.note_end(1, 0, 5.0)
    assert states.running and states.first_failed is None
    states.note_end(0, 0, 4.0)
    assert not states.running and (states.ended_s, states.overdue) == (5.0, False)


def test_the_first_failure_in_time_counts_and_what_is_said_later_does_not():
    states = RankStates(3, grace_s=0.0)
    for rank, code in ((2, 0), (1, -signal.SIGKILL), (0, 7), (1, 1)):
        states.note_end(rank, code)
    assert states.exit_codes == {2: 0, 1: -signal.SIGKILL, 0: 7} and states.first_failed == 1


@pytest.mark.parametrize(("grace_s", "overdue"), [(0.0, True), (1000.0, False), (float("inf"), False)])
def test_the_others_are_overdue_once_their_grace_is_over(grace_s, overdue):
    states = RankStates(2, grace_s)
    states.note_end(0, 3)
    time.sleep(0.01)
    assert states.overdue is overdue


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "killed by SIGKILL"),
        (-40, "killed by signal 40"),
    ],
)
def test_ends_in_words(code, words):
    assert describe_exit(code) == words
