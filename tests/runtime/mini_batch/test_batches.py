"""Batches on their way: a pipeline changes nothing, goes on from epoch to epoch, and names who is gone."""

import time
from itertools import chain

import numpy as np
import pytest
import torch

from tests.harness.tiers import slow
from tests.runtime.mini_batch.machines import Job, batches
from wirewise.errors import PeerError
from wirewise.runtime.mini_batch import STAGES


def test_d3_a_pipeline_changes_nothing():
    alone = Job(3, depth=0).run(batches)
    for other in (Job(3, depth=4, threads=3), Job(3, depth=1, alpha=0.5)):
        for one, two in zip(alone, other.run(batches), strict=True):
            for a, b in zip(one, two, strict=True):
                assert np.array_equal(a[1], b[1])
                assert torch.equal(a[2], b[2])


def several_epochs(rank, loader):
    """Batches of three epochs from the second one's third batch on, by a pipeline that goes on, and one by one."""
    together = [
        [(number, b.number, b.n_id, b.x, b.scale) for b in own]
        for number, own in loader.epochs(range(1, 4), start=2)
    ]
    apart = [
        [(number, b.number, b.n_id, b.x, b.scale) for b in loader.epoch(number, start=start)]
        for number, start in ((1, 2), (2, 0), (3, 0))
    ]
    return together, apart


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_pipeline_goes_on_from_epoch_to_epoch_with_the_batches_of_each(depth):
    for together, apart in Job(3, depth=depth, bits=8, alpha=0.1).run(several_epochs):
        assert [len(own) for own in together] == [len(own) for own in apart]
        for one, two in zip(chain(*together), chain(*apart), strict=True):
            assert (one[0], one[1], one[4]) == (two[0], two[1], two[4])
            assert np.array_equal(one[2], two[2]) and torch.equal(one[3], two[3])


def left_early(rank, loader):
    """Numbers of what is read where an epoch is left after two batches, and the second one after three for good."""
    found = []
    for number, own in loader.epochs(range(5)):
        for batch in own:
            found.append((number, batch.number))
            if batch.number == 1 + number:
                break
        if number == 1:
            break
    # The group is free again.
    return found, [batch.number for batch in loader.epoch(7)]


@pytest.mark.parametrize("depth", [0, 4])
def test_an_epoch_that_is_left_early_is_skipped(depth):
    for found, after in Job(2, depth=depth, batch_size=8).run(left_early):
        assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert after == list(range(len(after))) and len(after) > 3


def first_of_the_next(rank, loader):
    """Whether ids of the next epoch have left while the last batches of this one are read."""
    asked, call = [], loader.fetcher.ask
    loader.fetcher.ask = lambda *args: (asked.append(1), call(*args))[1]
    epochs = loader.epochs(range(2))
    _, own = next(epochs)
    for _ in range(len(loader) - 1):
        next(own)
    deadline = time.monotonic() + 20
    while len(asked) <= len(loader) and time.monotonic() < deadline:
        time.sleep(0.01)
    count = len(asked)
    for _, rest in epochs:
        assert len(list(rest)) == len(loader)
    return count > len(loader)


def test_batches_of_the_next_epoch_are_on_their_way_before_this_one_ends():
    assert Job(2, depth=4, batch_size=4).run(first_of_the_next) == [True, True]


def held_back(rank, loader):
    """Batches whose ids and rows have left when training has taken one, and once it takes another."""
    left, found = {"ask": 0, "send": 0}, []

    def counted(name):
        call = getattr(loader.fetcher, name)

        def act(*args):
            left[name] += 1
            return call(*args)

        return act

    loader.fetcher.ask, loader.fetcher.send = counted("ask"), counted("send")
    epoch = loader.epoch(0)
    for expected in ((9, 7), (10, 8)):
        next(epoch)
        deadline = time.monotonic() + 20
        while tuple(left.values()) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        found.append(tuple(left.values()))
    return found, len(list(epoch)) + 2


def test_rows_wait_until_training_takes_a_batch_and_ids_go_ahead():
    # Of depth 4: one taken, two ready, one that has come, three on their way; ids of the next one and of the one after.
    for found, count in Job(2, depth=4, batch_size=4).run(held_back):
        assert count > 12
        assert found == [(9, 7), (10, 8)]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, slow(3)])
def test_d5_a_machine_that_is_gone_is_named_with_the_stage(depth):
    # More batches than any machine makes ahead.
    job = Job(3, depth=depth, timeout_s=3.0, batch_size=3)

    def machine(rank, loader):
        assert len(loader) > 15
        try:
            for batch in loader.epoch(0):
                if rank == 1 and batch.number == 1:
                    return "gone"
        except PeerError as error:
            return str(error)
        return "done"

    found = job.run(machine)
    assert found[1] == "gone"
    for told in (found[0], found[2]):
        assert "the exchange of" in told or "the numbers of" in told
        # Numbers of rows travel in a collective, which cannot tell who of the peers is silent; a machine whose threads
        # still wait for rows is named with the exchange in which it is.
        assert any(
            words in told for words in (["rank 1"] if depth == 0 else ["a peer", "rank 1 in the exchange"])
        )


def test_stages_are_timed():
    def times(rank, loader):
        return [batch.stage_s for batch in loader.epoch(0)]

    for made in Job(2, depth=2).run(times):
        assert all(set(stage_s) == set(STAGES) for stage_s in made)
        assert all(seconds >= 0 for stage_s in made for seconds in stage_s.values())
