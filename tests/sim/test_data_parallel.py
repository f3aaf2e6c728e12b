"""Buckets of DistributedDataParallel."""

import pytest

from wirewise.errors import InputError
from wirewise.sim.data_parallel import buckets

MIB = 2**20


def test_buckets_by_the_rule():
    assert buckets([1, 1, 5, 1, 1, 9], 3, first_bytes=2) == [[0, 1], [2], [3, 4, 5]]
    assert buckets([0.5], 3, first_bytes=2) == [[0]]
    # Only where a job gives no cap is that of the first bucket another one.
    assert buckets([MIB, MIB, 20 * MIB, 5 * MIB, 1]) == [[0], [1, 2, 3], [4]]
    assert buckets([MIB, MIB, 20 * MIB, 3 * MIB, 1], 25 * MIB) == [[0, 1, 2, 3], [4]]
    with pytest.raises(InputError, match="expected sizes above 0"):
        buckets([1.0], 0.0)
