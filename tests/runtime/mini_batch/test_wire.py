"""Rows of other machines come bit for bit in whatever format is the smallest, and in the bytes that it takes."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.mini_batch.machines import Job
from wirewise.codec.layout import row_bytes
from wirewise.errors import InputError
from wirewise.runtime.mini_batch import Fetcher, RowStore
from wirewise.runtime.transport import Transport

NODES, WIDTH = 600, 40


def rows_of(kind):
    random = np.random.default_rng(1)
    ones = (random.random((NODES, WIDTH)) < (0.3 if kind == "bits" else 0.05)).astype(np.float32)
    if kind in ("bits", "ones"):
        return ones
    values = random.normal(size=ones.shape).astype(np.float32)
    if kind == "dense":
        return values
    sparse = np.where(ones > 0, values, np.float32(0))
    # Values whose bits arithmetic would not keep.
    sparse[random.random(ones.shape) < 0.01] = -0.0
    sparse[5, 3], sparse[-5, 3] = np.nan, np.inf
    return sparse


class Rows(Job):
    """A job on other features."""

    def __init__(self, machines, kind, **knobs):
        super().__init__(machines, nodes=NODES, **knobs)
        self.graph = dataclasses.replace(self.graph, x=rows_of(kind))
        self.rows = torch.from_numpy(self.graph.x).to(self.dtype)


def made(rank, loader):
    found = list(loader.epoch(0))
    fetched = [batch.n_id[loader.fetcher.store.missing(batch.n_id)] for batch in found]
    wire = loader.fetcher.wire
    return (
        wire.name,
        wire.mean_bytes,
        loader.fetcher.sent_bytes,
        [(batch.n_id, batch.x) for batch in found],
        np.concatenate(fetched),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["dense", "bits", "ones", "sparse"])
@pytest.mark.parametrize(("machines", "alpha", "depth"), [(3, 0.0, 2), (2, 0.2, 0), (1, 0.0, 1)])
def test_rows_come_bit_for_bit_in_the_bytes_of_their_format(machines, alpha, depth, kind, dtype):
    job = Rows(machines, kind, alpha=alpha, depth=depth, dtype=dtype)
    found = job.run(made)
    size = job.rows.element_size()
    nonzeros = np.count_nonzero(job.rows.numpy().view(f"i{size}"), axis=1)
    each = {"dense": WIDTH * size, "bits": WIDTH / 8, "ones": nonzeros, "sparse": nonzeros * (1 + size)}[kind]
    each = np.broadcast_to(each, NODES)
    steps = len(found[0][3])
    heads = machines * (machines - 1) * (8 + 4 * steps)
    assert sum(sent for _, _, sent, *_ in found) == heads + sum(
        each[fetched].sum() + 4 * len(fetched) for *_, fetched in found
    )
    expected = job.rows.float().numpy().view(np.int32)
    for name, mean_bytes, _, batches, _ in found:
        assert name == kind and mean_bytes == pytest.approx(each.mean())
        for n_id, x in batches:
            assert np.array_equal(x.numpy().view(np.int32), expected[n_id])


def test_dense_rows_where_they_are_asked_for():
    for name, mean_bytes, *_ in Dense(2, "ones", depth=1).run(made):
        assert name == "dense" and mean_bytes == 4 * WIDTH


class Dense(Rows):
    """A job that forces dense rows."""

    def loader(self, rank, group, store):
        loader = super().loader(rank, group, store)
        loader.fetcher = Fetcher(loader.fetcher.store, loader.fetcher.transport, formats="dense")
        return loader


@pytest.mark.parametrize(
    ("kind", "bits", "name"), [("ones", 8, "ones"), ("dense", 8, "int8"), ("dense", 16, "bfloat16")]
)
def test_rows_are_quantized_only_where_that_takes_fewer_bytes(kind, bits, name):
    for found, mean_bytes, *_ in Rows(2, kind, depth=1, bits=bits).run(made):
        assert found == name
        assert mean_bytes < row_bytes(WIDTH, bits) if kind == "ones" else mean_bytes == row_bytes(WIDTH, bits)


def test_one_machine_whose_rows_are_not_ones_decides_for_all():
    whole = rows_of("ones")
    whole[NODES - 1, 0] = 2.0

    def machine(rank, group, store):
        offsets = np.array([0, NODES // 2, NODES])
        own = torch.from_numpy(whole[offsets[rank] : offsets[rank + 1]])
        return Fetcher(RowStore(own, offsets, rank), Transport(group, timeout_s=30, store=store)).wire.name

    assert run_ranks_as_threads(2, machine) == ["sparse", "sparse"]


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"bits": 7}, "travel with 7 bits a value"),
        ({"formats": "zip"}, "row formats are 'zip'; expected one of"),
    ],
)
def test_unknown_bits_and_formats_are_refused(knobs, told):
    def machine(rank, group, store):
        fetched = RowStore(torch.zeros(4, 3), np.array([0, 4]), 0)
        with pytest.raises(InputError, match=told):
            Fetcher(fetched, Transport(group), **knobs)

    run_ranks_as_threads(1, machine)
