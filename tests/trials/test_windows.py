"""The order in which variants are measured."""

from __future__ import annotations

import numpy as np

from wirewise.trials.windows import alternate


def test_variants_take_turns_there_and_back() -> None:
    assert list(alternate(["a", "b", "c"], 3)) == [
        (0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a"), (2, "a"), (2, "b"), (2, "c"),
    ]  # fmt: skip
    assert list(alternate([], 2)) == []


def test_an_even_drift_favours_no_variant() -> None:
    drifting = {name: [] for name in "abc"}
    for place, (_, name) in enumerate(alternate(list(drifting), 4)):
        drifting[name].append(1.0 + 0.1 * place)
    assert np.ptp([np.mean(seconds) for seconds in drifting.values()]) < 1e-12
