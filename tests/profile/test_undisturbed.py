"""Whether the core is shared is told by a reference whose values are in the caches."""

import pytest

from wirewise.profile import undisturbed


@pytest.fixture
def times(monkeypatch):
    """Seconds that the next runs of the reference take, and what it takes at best."""
    found = []
    monkeypatch.setattr(undisturbed, "_Reference", type("", (), {"values": object(), "least_s": 1.0}))
    monkeypatch.setattr(undisturbed, "_run", lambda values: found.pop(0))
    return found


def test_a_kernel_that_empties_the_caches_does_not_look_like_a_neighbour(times):
    times += [1.9, 1.0]
    assert undisturbed.is_undisturbed()


@pytest.mark.parametrize(("taken", "alone"), [(1.09, True), (1.2, False), (0.5, True)])
def test_a_tenth_more_than_the_best_is_allowed(times, taken, alone):
    times += [1.0, taken]
    assert undisturbed.is_undisturbed() is alone


def test_the_best_is_what_was_seen_so_far(times):
    times += [1.0, 0.5, 1.0, 1.0]
    assert undisturbed.is_undisturbed()
    assert not undisturbed.is_undisturbed()
