"""Which cases of a test run in which tier."""

from __future__ import annotations

import pytest

from tests.harness import tiers


class Case:
    """Test case with a name and markers, as far as tiers read them."""

    def __init__(self, number: int, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = f"test_it[{number}]"
        self._marks = [mark.mark for mark in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self._marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self._marks.append(mark.mark)


def test_a_sweep_is_sampled_in_each_tier(monkeypatch):
    cases = [Case(n, pytest.mark.sweep(keep=2), pytest.mark.sample(3)) for n in range(20)]
    tiers.leave_out_sweeps(cases)
    fast = [case for case in cases if not case.get_closest_marker("slow")]
    assert [case.nodeid for case in fast] == ["test_it[5]", "test_it[15]"]
    for exhaustive, kept in ((True, 20), (False, 2 + 3)):
        monkeypatch.setattr(tiers, "EXHAUSTIVE", exhaustive)
        here = list(cases)
        left = tiers.leave_out_exhaustive(here)
        assert len(here) == kept and len(here) + len(left) == 20 and set(fast) <= set(here)


def test_cases_that_are_not_slow_and_tests_without_the_mark_are_kept(monkeypatch):
    monkeypatch.setattr(tiers, "EXHAUSTIVE", False)
    plain = [Case(n, pytest.mark.slow) for n in range(9)]
    few = [Case(n, pytest.mark.sample(1)) for n in range(9)]
    assert tiers.leave_out_exhaustive([*plain, *few]) == []
    alone = [Case(0, pytest.mark.exhaustive)]
    assert len(tiers.leave_out_exhaustive(alone)) == 1 and not alone
