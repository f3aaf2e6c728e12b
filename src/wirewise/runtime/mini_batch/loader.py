"""Mini-batches of a partitioned graph with their feature rows, prefetched ahead of training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph.sampling import NeighborSampler
from wirewise.runtime.mini_batch.all_to_all import AllToAll, exclusive
from wirewise.runtime.mini_batch.batch import MiniBatch
from wirewise.runtime.mini_batch.batches import Batches
from wirewise.runtime.mini_batch.fetching import Fetcher
from wirewise.runtime.mini_batch.topology import PartitionedSampler

__all__ = ["BatchLoader"]


class BatchLoader:
    """Batches of this machine's training nodes, epoch by epoch; all machines have equally many.

    The content of a batch depends on (seed, epoch, number, machine) only, not on depth, threads and cache. Training
    therefore resumes exactly with `epoch(number, start=batches already done)`.

    Args:
        fetcher: Fetcher of rows; it and its group are used exclusively while an epoch runs.
        sampler: Sampler of the whole graph, or one that queries the owners of nodes; with the ids of the store.
        labels: Labels of all nodes, or of a range that contains the training nodes, by id, [N].
        train: Training nodes of every machine, [K][T_k].
        batch_size: Mean number of seeds per machine's batch; machines with more training nodes have larger ones.
        depth: Number of prefetched batches; 0 makes each on demand.
        threads: Number of sampling threads.
        shared_draws: Whether all machines sample the same neighbours of a node in the same batch; K machines are then
            equivalent to one with the union of their batches. Otherwise samples are independent.
        check: Function called before each batch is sampled and after the last one, such as that of
            `graph.mapped.watch`, which raises if mapped files have changed.

    Raises:
        InputError: No machine has training nodes, or an option is out of range.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        sampler: NeighborSampler | PartitionedSampler,
        labels: Tensor,
        train: Sequence[NDArray[Any]],
        batch_size: int,
        *,
        depth: int = 4,
        threads: int = 1,
        shared_draws: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        machines, total = fetcher.transport.world_size, sum(map(len, train))
        if len(train) != machines or not total:
            raise InputError(
                f"got training nodes of {len(train)} machines, {total} in all; expected those of {machines}, one or "
                "more"
            )
        if batch_size < 1 or depth < 0 or threads < 1:
            raise InputError(
                f"got batches of {batch_size} seeds, depth {depth} and {threads} threads; expected at least 1, 0 and 1"
            )
        if sampler.collective and threads > 1:
            raise InputError(
                f"{threads} threads cannot sample together with other machines; expected one, or the whole graph on "
                "every machine"
            )
        self.fetcher, self.sampler, self.labels = fetcher, sampler, labels
        self.train, self.batch_size, self.depth, self.threads = list(train), batch_size, depth, threads
        self.shared_draws, self.check = shared_draws, check

    def __len__(self) -> int:
        """Batches of an epoch."""
        total = sum(map(len, self.train))
        return max(-(-total // (self.batch_size * len(self.train))), 1)

    def epoch(self, number: int, *, start: int = 0) -> Generator[MiniBatch]:
        """Yield the batches of an epoch from `start` on.

        Raises:
            InputError: Batches of another loader use the same groups.
            PeerError: A machine is gone; the message names it and the stage.
        """
        return self._batches(range(number, number + 1), start)

    def epochs(self, numbers: range, *, start: int = 0) -> Iterator[tuple[int, Iterator[MiniBatch]]]:
        """Yield several epochs, each with its number and batches, with the pipeline continuing across epochs.

        The batches are those of `epoch`. Remaining batches are skipped when the next epoch is requested, on all
        machines alike.

        Args:
            numbers: Numbers of the epochs.
            start: Index of the first batch of the first epoch.

        Raises:
            PeerError: A machine is gone; the message names it and the stage.
        """
        batches = self._batches(numbers, start)
        with closing(batches):
            for number in numbers:
                own = islice(batches, len(self) - start)
                yield number, own
                deque(own, maxlen=0)
                start = 0
            self.check()

    def _batches(self, epochs: range, start: int) -> Generator[MiniBatch]:
        if not 0 <= start <= len(self):
            raise InputError(f"an epoch has {len(self)} batches; got start {start}")
        batches = Batches(self, epochs, start)
        return self._alone(batches.iterate_unpipelined() if self.depth == 0 else batches.ahead())

    def _alone(self, batches: Generator[MiniBatch]) -> Generator[MiniBatch]:
        """The batches, while no other loader uses the same groups."""
        exchanges = [each for each in (self.fetcher, self.sampler) if isinstance(each, AllToAll)]
        with exclusive(*exchanges), closing(batches):
            yield from batches
