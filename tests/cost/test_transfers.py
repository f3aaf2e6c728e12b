"""Link rates from collectives, and interference from ops with and without communication beside them."""

import numpy as np
import pytest

from wirewise.cost.interference import fit_interference, slowed_s
from wirewise.cost.transfers import TransferSample, fit_transfers
from wirewise.errors import InputError


def samples(random, count=60, *, rate=25e6, latency=3e-4, noise=0.0):
    found, now = [], 0.0
    for _ in range(count):
        size = float(random.choice([1e5, 1e6, 5e6]))
        seconds = (2 * latency + size / rate) * (1 + noise * random.standard_normal())
        found.append(TransferSample(now, now + seconds, size, 2))
        now += seconds + 0.1
    return found


def test_exact_without_noise():
    cost = fit_transfers(samples(np.random.default_rng(0)))
    assert cost.bandwidth_bytes_per_s == pytest.approx(25e6)
    assert cost.latency_s == pytest.approx(3e-4)
    assert cost.outliers == 0


def test_noise_and_stalls():
    random = np.random.default_rng(1)
    data = samples(random, noise=0.03)
    for number in range(0, 60, 12):
        data[number] = data[number]._replace(end_s=data[number].end_s + 0.09)
    cost = fit_transfers(data)
    assert cost.bandwidth_bytes_per_s == pytest.approx(25e6, rel=0.03)
    assert cost.outliers >= 5


def test_overlapping_collectives_share_the_link():
    # Two of 1 MB begin together on 10 MB/s and both end after 0.2 s.
    pair = [TransferSample(t, t + 0.2, 1e6, 0) for t in (0.0, 0.0, 1.0, 1.0)]
    assert fit_transfers(pair).bandwidth_bytes_per_s == pytest.approx(10e6)


def test_one_size_gives_no_negative_latency():
    cost = fit_transfers([TransferSample(t, t + 0.1, 1e6, 2) for t in range(5)])
    assert cost.latency_s >= 0
    assert 2 * cost.latency_s + 1e6 / cost.bandwidth_bytes_per_s == pytest.approx(0.1)


def test_bad_samples_are_named():
    with pytest.raises(InputError, match="no collective between hosts"):
        fit_transfers([])
    with pytest.raises(InputError, match="collective 1 goes from 2"):
        fit_transfers([TransferSample(0.0, 1.0, 5.0, 2), TransferSample(2.0, 1.0, 5.0, 2)])


@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0])
def test_interference_is_found_again(factor):
    random = np.random.default_rng(2)
    op = np.repeat(np.arange(20), 40)
    own = np.repeat(random.random(20) * 0.01 + 1e-4, 40)
    overlap = random.random(800)
    noisy = slowed_s(own, overlap, factor) * (1 + 0.05 * random.standard_normal(800))
    noisy[::50] *= 3
    assert fit_interference(op, overlap, slowed_s(own, overlap, factor)) == pytest.approx(factor, rel=1e-3)
    assert fit_interference(op, overlap, noisy) == pytest.approx(factor, rel=0.05)


def test_slow_steps_are_not_taken_for_interference():
    """Half of the ops never overlap; a slow step makes all its ops slow and their overlap large."""
    random = np.random.default_rng(3)
    step, op = (table.reshape(-1) for table in np.mgrid[:40, :10])
    slow = 1 + random.random(40)[step]
    overlap = np.where(op < 5, 0.0, 0.9 * (slow - 1) + 0.1 * random.random(400))
    seconds = slowed_s(slow * (1 + op), overlap, 1.2)
    assert fit_interference(op, overlap, seconds) > 1.5
    assert fit_interference(op, overlap, seconds, step) == pytest.approx(1.2, rel=0.02)


def test_interference_is_not_known_without_contrast():
    op = np.repeat(np.arange(3), 10)
    assert fit_interference(op, np.ones(30), np.ones(30)) is None
    assert fit_interference(op[:0], np.ones(0), np.ones(0)) is None
    with pytest.raises(InputError, match="outside of"):
        fit_interference(op, np.full(30, 1.5), np.ones(30))
