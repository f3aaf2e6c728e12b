"""Compression checks its values."""

from __future__ import annotations

import pytest

from wirewise.errors import InputError
from wirewise.runtime.data_parallel import Compression


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nonfinite": "ignore"}, "nonfinite is 'ignore'"),
        ({"block": 0}, "block is 0"),
        ({"ranks_per_host": 0}, "ranks_per_host is 0"),
        ({"options": {"zip": {}}}, "unknown gradient codec 'zip'"),
        ({"options": {"topk": {"ratio": 2.0}}}, "ratio is 2.0"),
        ({"options": {"topk": {"levels": 2}}}, "does not take these options"),
    ],
)
def test_compression_checks_its_values(options, words):
    with pytest.raises(InputError, match=words):
        Compression(**options)
