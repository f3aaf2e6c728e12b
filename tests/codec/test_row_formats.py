"""Which exact format of rows is the smallest, and what it takes."""

import numpy as np
import pytest

from wirewise.codec.row_formats import FORMATS, RowFormat, count_dense, exact_format, smallest_format
from wirewise.graph import SparseRows


def smallest(rows):
    census = count_dense(rows)
    return smallest_format(
        len(rows),
        int(census.nonzeros.sum()),
        binary=census.binary,
        width=rows.shape[1],
        value_bytes=rows.itemsize,
    )


def bag(rows, width, share, dtype=np.float32):
    return (np.random.default_rng(0).random((rows, width)) < share).astype(dtype)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("made", "name", "mean_bytes"),
    [
        (lambda: np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32), "dense", 120),
        (lambda: bag(200, 1000, 0.2), "bits", 125),
        (lambda: bag(200, 1000, 0.2, np.float16), "bits", 125),
        (lambda: bag(5000, 1000, 0.004), "ones", 8),
        (lambda: bag(5000, 200, 0.02), "ones", 4),
        (lambda: bag(500, 70_000, 0.0002), "ones", 4 * 14),
        (lambda: 2 * bag(5000, 1000, 0.004), "sparse", 24),
        (lambda: 2 * bag(5000, 1000, 0.004, np.float16), "sparse", 16),
        (lambda: 2 * bag(200, 30, 0.9), "dense", 120),
        (lambda: np.zeros((7, 5), np.float32), "ones", 0),
        (lambda: np.empty((0, 5), np.float32), "ones", 0),
    ],
)
def test_the_smallest_format_of_some_rows(made, name, mean_bytes):
    rows = made()
    found = smallest(rows)
    counts = count_dense(rows).nonzeros
    assert found.name == name
    assert found.row_bytes(counts).sum() == pytest.approx(mean_bytes * len(rows), rel=0.05)
    others = [RowFormat(other, rows.shape[1], rows.itemsize) for other in FORMATS]
    allowed = (
        others if count_dense(rows).binary else [one for one in others if one.name in ("dense", "sparse")]
    )
    assert found.row_bytes(counts).sum() == min(one.row_bytes(counts).sum() for one in allowed)


def test_counts_are_of_bits_that_are_not_zero(monkeypatch):
    monkeypatch.setattr("wirewise.codec.row_formats._BLOCK_VALUES", 6)
    rows = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0], [0, 0, 1]], np.float32)
    census = count_dense(rows)
    assert census.nonzeros.tolist() == [1, 3, 0, 1] and census.binary
    rows[3, 0] = -0.0
    census = count_dense(rows)
    assert census.nonzeros.tolist() == [1, 3, 0, 2] and not census.binary


@pytest.mark.parametrize("factor", [1, 3])
def test_sparse_rows_have_the_format_of_dense_ones(factor):
    dense = factor * bag(300, 1000, 0.005)
    name, mean_bytes = exact_format(dense)
    assert name.name == ("ones" if factor == 1 else "sparse")
    assert exact_format(SparseRows.from_dense(dense)) == (name, mean_bytes)
    assert mean_bytes == pytest.approx((2 if factor == 1 else 6) * np.count_nonzero(dense) / 300)
