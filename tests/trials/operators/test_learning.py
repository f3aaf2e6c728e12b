"""What an estimator learns from, and how near it comes."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.test_fused_operators import samples
from wirewise.trials.operators.learning import accuracy, split, structure_of


def test_structures_are_in_one_part_only():
    regions = [samples(seed) for seed in range(40)]
    known, kept = split(regions)
    assert len(known) + len(kept) == 120 and 6 <= len(kept) / 3 <= 14
    assert not {structure_of(one) for one in known} & {structure_of(one) for one in kept}
    assert split(regions[::-1])[1] == [one for samples in regions[::-1] for one in samples if one in kept]


def test_accuracy_counts_relative_errors():
    regions = samples(0)
    found = accuracy(
        [one.seconds * factor for one, factor in zip(regions, (1.1, 0.7, 1.15), strict=True)], regions
    )
    assert found.samples == 3 and found.order == 1.0
    assert np.allclose((found.within_20, found.median), (2 / 3, 0.15))
