"""Rows that are fetched: their bytes and their rounding."""

import numpy as np
import pytest
import torch

from tests.runtime.mini_batch.machines import Job, batches, problem_of
from wirewise.codec.layout import row_bytes


def test_halves_take_half_the_bytes_and_are_quantized_as_others_are():
    def count(rank, loader):
        made = list(loader.epoch(0))
        rows, steps = sum(batch.remote_rows for batch in made), len(loader)
        return loader.fetcher.sent_bytes, rows, steps, [batch.x for batch in made]

    halves = Job(3, alpha=0.1, depth=2, dtype=torch.float16).run(count)
    heads = 3 * 2 * (8 + 4 * halves[0][2])
    assert sum(sent for sent, *_ in halves) == sum(rows for _, rows, *_ in halves) * (2 * 12 + 4) + heads
    for exact, rough in zip(
        halves, Job(3, alpha=0.1, depth=2, dtype=torch.float16, bits=8).run(count), strict=True
    ):
        for x, rounded in zip(exact[-1], rough[-1], strict=True):
            spread = x.max(dim=1).values - x.min(dim=1).values
            assert ((rounded - x).abs() <= 1.05 / 255 * spread[:, None] + 1e-6).all()
            assert not torch.equal(rounded, x)


@pytest.mark.parametrize(("bits", "most"), [(16, 2**-8), (8, 1 / 255)])
def test_d1_fetched_rows_are_rounded_and_others_are_not(bits, most):
    job = Job(3, alpha=0.1, depth=2, bits=bits)
    for rank, found in enumerate(job.run(batches)):
        own = np.zeros(job.graph.num_nodes, bool)
        own[job.plan.machines[rank].ids] = True
        own[job.ranges.offsets[rank] : job.ranges.offsets[rank + 1]] = True
        for _, n_id, x, *_ in found:
            whole = job.graph.x[n_id]
            assert np.array_equal(x.numpy()[own[n_id]], whole[own[n_id]])
            size = np.abs(whole) if bits == 16 else np.ptp(whole, axis=1, keepdims=True)
            assert (np.abs(x.numpy() - whole) <= most * 1.05 * size + 1e-6).all()


def test_sent_bytes_are_rows_and_ids():
    job = Job(3, alpha=0.1, depth=2, bits=8)

    def count(rank, loader):
        remote = sum(batch.remote_rows for batch in loader.epoch(0))
        return remote, loader.fetcher.sent_bytes, len(loader)

    found = job.run(count)
    rows, steps = sum(remote for remote, *_ in found), found[0][2]
    # Each machine tells the two others the numbers of its first batch, and those of the next with every batch.
    heads = 3 * 2 * (8 + 4 * steps)
    assert sum(sent for _, sent, _ in found) == rows * (row_bytes(12, 8) + 4) + heads
    problem = problem_of(job.graph, job.ranges, job.train, job.batch_size)
    assert sum(sum(machine.fetched) for machine in job.plan.machines) == pytest.approx(rows / steps, rel=0.05)
    assert problem.machines == 3
