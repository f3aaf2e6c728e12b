"""Each way of exchanging rows does what its name promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.runtime.full_graph.training import small_graph, split, train, worst
from wirewise.errors import InputError
from wirewise.runtime import full_graph as fg


def test_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown mode 'fp23'.*fp32.*adaqp"):
        fg.mode("fp23")


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*fg.MODES, "uniform-16", "uniform-8", "uniform-1"])
def test_gradients_travel_alike_in_all_modes(name: str) -> None:
    assert fg.mode(name).gradient_bits == fg.GRADIENT_BITS
    assert fg.mode(name, gradient_bits=16) == replace(fg.mode(name), gradient_bits=16)


def test_other_widths_of_gradients_are_refused() -> None:
    with pytest.raises(InputError, match=r"gradients of 8 bits; expected 32 \(float32\) or 16"):
        fg.mode("adaqp", gradient_bits=8)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*fg.MODES, "uniform-8", "uniform-4", "uniform-2", "uniform-1"])
@pytest.mark.sample(5)
def test_every_mode_trains(name: str) -> None:
    parts = split(small_graph(), 3)
    run = train(parts, name, epochs=12, replan_every=4)
    assert np.isfinite(run.losses).all()
    assert min(run.losses[-3:]) < run.losses[0]
    assert len(run.records) == 12


def test_the_loss_is_summed_in_full_whatever_the_width_of_gradients() -> None:
    parts = split(small_graph(), 3)
    rounded = train(parts, replace(fg.mode("fp32"), gradient_bits=16), epochs=1)
    assert rounded.losses == train(parts, "fp32", epochs=1).losses


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("bits", [16, 8, 4, 2, 1])
def test_fewer_bits_send_the_bytes_of_the_formula(bits: int) -> None:
    parts = split(small_graph(), 3)
    run = train(parts, f"uniform-{bits}", epochs=1)
    halo = sum(p.num_halo for p in parts)
    params = 6 if bits < 16 else 0
    rows = [-(-width * bits // 8) + params for width in (16, 4)]
    assert run.records[0].bytes_sent == 2 * halo * sum(rows)


def test_stale_rows_are_zero_in_the_first_epoch_and_one_epoch_old_after() -> None:
    """Where weights never change, epoch 1 of the stale mode sees just what fresh exchange sees in epoch 0."""
    parts = split(small_graph(), 3)
    frozen = {"learning_rate": 1e-30, "dropout": 0.0, "dtype": torch.float64, "layers": 2}
    fresh = train(parts, "fp32", epochs=1, **frozen)
    stale = train(parts, "pipegcn", epochs=3, **frozen)
    assert stale.losses[0] != pytest.approx(fresh.losses[0], rel=1e-3)
    assert stale.losses[1] == pytest.approx(fresh.losses[0], rel=1e-12)
    assert worst(stale.gradients, fresh.gradients) <= 1e-12


def test_pull_refuses_directed_graphs() -> None:
    parts = split(small_graph(directed=True), 2)
    with pytest.raises(Exception, match="undirected"):
        train(parts, "adaqp-paper", epochs=1)
