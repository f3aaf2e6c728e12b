"""Seconds of operators from figures of a device."""

from __future__ import annotations

import pytest

from tests.trace.test_operator_graph import GOOD
from wirewise.errors import InputError
from wirewise.sim.operator_times import DEVICES, DeviceFigures, roofline_times


def test_an_operator_takes_the_longest_of_launching_computing_and_moving():
    # 128 flops against 32 + 128 + 32 bytes in, and out, of the product; the sum moves 36 bytes.
    computing = roofline_times(GOOD, DeviceFigures(100.0, 10.0, 1e6, 0.0))
    assert [node.time_s for node in computing.nodes][2:4] == [1.28, 8 / 100]
    moving = roofline_times(GOOD, DeviceFigures(1e9, 1e9, 64.0, 0.0))
    assert moving.nodes[2].time_s == (128 + 32 + 32) / 64
    launching = roofline_times(GOOD, DeviceFigures(1e9, 1e9, 1e9, 2.0))
    assert [node.time_s for node in launching.nodes] == [0, 0, 2, 2, 2, 0]
    # A launch stays what it is, however the work is cut.
    cut = roofline_times(GOOD, DeviceFigures(100.0, 10.0, 1e6, 0.5)).nodes[2]
    assert (cut.seconds(1.0), cut.seconds(0.25)) == (1.28, pytest.approx(0.5 + 0.78 / 4))


def test_halves_compute_at_their_own_rate_and_devices_have_names():
    assert DEVICES["h100"].seconds(1e15, 0, 2) < DEVICES["h100"].seconds(1e15, 0, 4)
    assert roofline_times(GOOD, "a100").device == "a100"
    assert roofline_times(GOOD, "a100").digest == GOOD.digest
    with pytest.raises(InputError, match="unknown device 'abacus'; expected one of: v100, a100, h100"):
        roofline_times(GOOD, "abacus")
