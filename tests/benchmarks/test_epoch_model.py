"""The reference that measured speedups are held against."""

import pytest
from benchmarks.full_graph.epoch_model import EpochModel

from wirewise.cost import break_even_bytes_per_s, speedup_bound


def test_epoch_model_follows_its_formulas():
    model = EpochModel(
        compute_s=2.0,
        central_s=1.0,
        wire_bytes=6e8,
        bandwidth_bytes_per_s=1e8,
        pack_bytes_per_s=1.2e9,
        unpack_bytes_per_s=3.0e9,
    )
    assert model.epoch_s() == 8.0
    assert model.epoch_s(6.0) == pytest.approx(2.0 + 1.0 + 0.5 + 0.2)
    assert model.epoch_s(6.0, overlap=True) == pytest.approx(1.0 + 1.0 + 0.7)
    assert model.wire_share == 0.75
    assert model.speedup(6.0) <= speedup_bound(model.wire_share, 6.0)


def test_nothing_is_gained_at_the_break_even_rate():
    rate = break_even_bytes_per_s(7.76, 1.2e9, 3.3e9)
    model = EpochModel(
        compute_s=0.0,
        central_s=0.0,
        wire_bytes=1e9,
        bandwidth_bytes_per_s=rate,
        pack_bytes_per_s=1.2e9,
        unpack_bytes_per_s=3.3e9,
    )
    assert model.speedup(7.76) == pytest.approx(1.0)
