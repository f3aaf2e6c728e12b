"""Two loaders on one group at a time are refused on all machines, before a message is sent."""

import pytest

from tests.runtime.mini_batch.machines import Job
from wirewise.errors import InputError
from wirewise.runtime.mini_batch import BatchLoader, Fetcher


def beside(loader, fetcher=None):
    """A loader as for validation, on the fetcher of another one."""
    return BatchLoader(
        fetcher or loader.fetcher, loader.sampler, loader.labels, loader.train, 2 * loader.batch_size
    )


def evaluated_between_epochs(rank, loader):
    """Numbers of batches; the second loader is tried on the same fetcher, and on another one of the same group."""
    other = Fetcher(loader.fetcher.store, loader.fetcher.transport)
    trained, read = 0, 0
    for number, own in loader.epochs(range(2)):
        trained += len(list(own))
        if number == 0:
            for fetcher in (None, other):
                with pytest.raises(InputError, match="one at a time: iterate over"):
                    next(iter(beside(loader, fetcher).epoch(0)))
            with pytest.raises(InputError, match="one at a time"):
                loader.fetcher.fill_cache()
    # The group is free once training has ended.
    for _ in beside(loader).epoch(0):
        read += 1
    return trained == 2 * len(loader), read == len(beside(loader))


@pytest.mark.parametrize("depth", [0, 4])
def test_a_second_loader_on_a_busy_group_is_refused(depth):
    assert Job(2, depth=depth, batch_size=8).run(evaluated_between_epochs) == [(True, True)] * 2


def evaluated_after_each_epoch(rank, loader):
    numbers = []
    for number in range(2):
        numbers += [batch.number for batch in loader.epoch(number)]
        numbers += [batch.number for batch in beside(loader).epoch(0)]
    return numbers


def test_loaders_take_turns_on_one_fetcher():
    job = Job(2, depth=4, batch_size=8)
    for numbers in job.run(evaluated_after_each_epoch):
        assert numbers.count(0) == 4


def a_batch_that_is_kept(rank, loader):
    kept = loader.epoch(0)
    next(kept)
    with pytest.raises(InputError, match="one at a time"):
        next(loader.epoch(1))
    kept.close()
    return next(loader.epoch(1)).number


def test_an_epoch_that_is_not_read_to_its_end_holds_the_group_until_it_is_closed():
    assert Job(2, depth=2, batch_size=8).run(a_batch_that_is_kept) == [0, 0]
