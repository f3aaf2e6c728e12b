"""Mini-batches of a partitioned graph, with the rows that they need, made ahead of training."""

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
    """The batches of this machine's training nodes, epoch by epoch; all machines make equally many.

    What a batch holds depends on (seed, epoch, number, machine) only, whatever the depth, the number of threads and the
    cache. So training goes on exactly where it stopped with `epoch(number, start=batches already done)`.

    Args:
        fetcher: Rows; it and its group belong to the loader while an epoch runs.
        sampler: Sampler of the whole graph, or one that asks the owners of nodes; under the ids of the store.
        labels: Labels of all nodes or of a range that holds the training nodes, by id, [N].
        train: Training nodes of every machine, [K][T_k].
        batch_size: Seeds of a machine's batch on average; machines with more training nodes have larger ones.
        depth: Batches that are made ahead; 0: each when it is asked for.
        threads: Number of threads that sample.
        shared_draws: Draw for a node what every other machine draws for it in the same batch; then K machines see what
            one would see in the union of their batches. Otherwise draws are independent.
        check: Function that is called before each batch is sampled and after the last one, such as
            `graph.mapped.watch`'s, which raises where files that are mapped were changed.

    Raises:
        InputError: No training nodes on any machine, or a knob out of range.
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
        """The batches of an epoch from `start` on.

        Raises:
            InputError: Batches of another loader travel on the same groups.
            PeerError: A machine is gone; names it and the stage.
        """
        return self._batches(range(number, number + 1), start)

    def epochs(self, numbers: range, *, start: int = 0) -> Iterator[tuple[int, Iterator[MiniBatch]]]:
        """Some epochs, each with its number and its batches, where the pipeline goes on from one into the next.

        The batches are those of `epoch`. Those that are left when the next epoch is asked for are skipped: all machines
        do so alike.

        Args:
            numbers: Numbers of the epochs.
            start: The first batch of the first of them.

        Raises:
            PeerError: A machine is gone; names it and the stage.
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
        return self._alone(batches.one_by_one() if self.depth == 0 else batches.ahead())

    def _alone(self, batches: Generator[MiniBatch]) -> Generator[MiniBatch]:
        """The batches, while no other loader uses the same groups."""
        exchanges = [each for each in (self.fetcher, self.sampler) if isinstance(each, AllToAll)]
        with exclusive(*exchanges), closing(batches):
            yield from batches
