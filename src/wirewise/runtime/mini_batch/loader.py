"""Mini-batches of a partitioned graph, with the rows that they need, made ahead of training.

A batch goes through the stages sample, ids, slice, rows and assemble. In a pipeline each has threads of its own and
works on another batch; one thread sends all messages, ids of a batch before rows of the one before it, in the same
order on all machines.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Full, Queue
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph.sampling import Batch, NeighborSampler, seed_batches
from wirewise.runtime.mini_batch.fetching import Answer, Fetcher, Incoming, Wanted
from wirewise.runtime.mini_batch.topology import PartitionedSampler

__all__ = ["STAGES", "BatchLoader", "MiniBatch"]

STAGES = ("sample", "ids", "slice", "rows", "assemble")
_LOOK_S = 0.2


@dataclass
class MiniBatch:
    """Seeds with their sampled neighbourhood and its rows."""

    number: int
    """Of the batch in the epoch."""
    batch: Batch
    x: Float[Tensor, "n f"]
    """Rows of `n_id`."""
    y: Tensor
    """Labels of the seeds."""
    scale: float
    """Times the sum of the seeds' losses it makes this machine's loss one whose mean over machines is the mean over all
    seeds of the batch: `cross_entropy(out, batch.y, reduction="sum") * batch.scale`."""
    stage_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage took."""
    remote_rows: int = 0
    """Rows that were fetched."""
    copied: torch.cuda.Event | None = None
    """Comes after its rows were copied to a device."""
    foreign_rows: int = 0
    """Rows of other machines' nodes, fetched or cached."""

    @property
    def n_id(self) -> NDArray[np.int64]:
        """Global ids of the rows, the seeds first."""
        return self.batch.n_id

    def arrive(self) -> MiniBatch:
        """Let what follows on the current stream wait until the rows are on the device."""
        if self.copied is not None:
            stream = torch.cuda.current_stream(self.x.device)
            stream.wait_event(self.copied)
            self.x.record_stream(stream)
        return self

    @property
    def layers(self) -> list[tuple[Int[Tensor, "2 e"], tuple[int, int]]]:
        """Edges and size of each convolution, from the outermost inwards, as PyG takes them."""
        return [(torch.from_numpy(layer.edge_index()), layer.size) for layer in self.batch.layers]


@dataclass
class _Making:
    """A batch on its way."""

    number: int
    batch: Batch
    wanted: Wanted
    stage_s: dict[str, float]
    incoming: Incoming | None = None
    answer: Future[Answer] | None = None


class BatchLoader:
    """The batches of this machine's training nodes, epoch by epoch; all machines make equally many.

    What a batch holds depends on (seed, epoch, number, machine) only, whatever the depth, the number of threads and the
    cache. So training goes on exactly where it stopped with `epoch(number, start=batches already done)`.

    Args:
        fetcher: Rows; it and its group belong to the loader while an epoch runs.
        sampler: Over the whole graph, or one that asks the owners of nodes; under the ids of the store.
        labels: Of all nodes or of a range that holds the training nodes, by id, [N].
        train: Training nodes of every machine, [K][T_k].
        batch_size: Seeds of a machine's batch on average; machines with more training nodes have larger ones.
        depth: Batches that are made ahead; 0: each when it is asked for.
        threads: That sample.
        shared_draws: Draw for a node what every other machine draws for it in the same batch; then K machines see what
            one would see in the union of their batches. Otherwise draws are independent.

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
        self.shared_draws = shared_draws

    def __len__(self) -> int:
        """Batches of an epoch."""
        total = sum(map(len, self.train))
        return max(-(-total // (self.batch_size * len(self.train))), 1)

    def epoch(self, number: int, *, start: int = 0) -> Iterator[MiniBatch]:
        """The batches of an epoch from `start` on.

        Raises:
            PeerError: A machine is gone; names it and the stage.
        """
        if not 0 <= start <= len(self):
            raise InputError(f"an epoch has {len(self)} batches; got start {start}")
        if start == len(self):
            return iter(())
        work = _Epoch(self, number, start)
        return work.one_by_one() if self.depth == 0 else work.ahead()


class _Epoch:
    """One epoch of a loader."""

    def __init__(self, loader: BatchLoader, epoch: int, start: int) -> None:
        self.loader, self.fetcher, self.number = loader, loader.fetcher, epoch
        self.rank = self.fetcher.transport.rank
        seed = loader.sampler.seed
        cuts = [seed_batches(train, 1, epoch=epoch, seed=seed, batches=len(loader)) for train in loader.train]
        self.seeds = cuts[self.rank]
        self.sizes = [sum(len(cut[i]) for cut in cuts) for i in range(len(loader))]
        self.places = range(start, len(loader))

    def one_by_one(self) -> Iterator[MiniBatch]:
        with ThreadPoolExecutor(1, "wirewise-slice") as slicer:
            made = self._sample(self.places[0])
            self.fetcher.announce(made.wanted)
            for place in self.places:
                following = self._sample(place + 1) if place + 1 in self.places else None
                self._ask(made, following, slicer)
                yield self._assemble(made, self._fetch(made)).arrive()
                if following is not None:
                    made = following

    def ahead(self) -> Iterator[MiniBatch]:
        done: Queue[Any] = Queue(self.loader.depth)
        stop = threading.Event()
        thread = threading.Thread(
            target=self._communicate, args=(done, stop), name="wirewise-batches", daemon=True
        )
        thread.start()
        try:
            for _ in self.places:
                found = done.get()
                if isinstance(found, BaseException):
                    raise found
                yield found.result().arrive()
        finally:
            stop.set()
            _drain(done)
            thread.join(self.fetcher.transport.timeout_s)

    def _communicate(self, done: Queue[Any], stop: threading.Event) -> None:
        """Send ids of each batch, then rows of the one before it, while others sample, slice and assemble."""
        with (
            ThreadPoolExecutor(self.loader.threads, "wirewise-sample") as samplers,
            ThreadPoolExecutor(1, "wirewise-slice") as slicer,
            ThreadPoolExecutor(1, "wirewise-assemble") as assembler,
        ):
            try:
                sampled = self._sampled(samplers)
                made = next(sampled, None)
                assert made is not None
                self.fetcher.announce(made.wanted)
                before: _Making | None = None
                while made is not None and not stop.is_set():
                    following = next(sampled, None)
                    self._ask(made, following, slicer)
                    if before is not None:
                        _put(done, assembler.submit(self._assemble, before, self._fetch(before)), stop)
                    before, made = made, following
                if before is not None and not stop.is_set():
                    _put(done, assembler.submit(self._assemble, before, self._fetch(before)), stop)
            except BaseException as error:
                _put(done, error, stop)

    def _sampled(self, samplers: ThreadPoolExecutor) -> Iterator[_Making]:
        """Batches in order, some of them sampled ahead."""
        waiting: deque[Future[_Making]] = deque()
        for place in self.places:
            waiting.append(samplers.submit(self._sample, place))
            if len(waiting) > self.loader.depth + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _sample(self, place: int) -> _Making:
        begin = time.perf_counter()
        seeds, loader = self.seeds[place], self.loader
        machines = len(loader.train)
        draw = place if loader.shared_draws else place * machines + self.rank
        if len(seeds) or loader.sampler.collective:
            batch = loader.sampler.sample(seeds, epoch=self.number, batch=draw)
        else:
            batch = loader.sampler.nothing()
        made = _Making(place, batch, self.fetcher.wanted(batch.n_id), {})
        made.stage_s["sample"] = time.perf_counter() - begin
        return made

    def _ask(self, made: _Making, following: _Making | None, slicer: ThreadPoolExecutor) -> None:
        begin = time.perf_counter()
        made.incoming = self.fetcher.expect(made.wanted)
        asked = self.fetcher.ask(made.wanted, None if following is None else following.wanted)
        made.stage_s["ids"] = time.perf_counter() - begin
        made.answer = slicer.submit(self._answer, made, asked)

    def _answer(self, made: _Making, asked: list[NDArray[np.int32]]) -> Answer:
        begin = time.perf_counter()
        answer = self.fetcher.answer(asked, self.number, made.number)
        made.stage_s["slice"] = time.perf_counter() - begin
        return answer

    def _fetch(self, made: _Making) -> Tensor:
        assert made.answer is not None
        assert made.incoming is not None
        answer = made.answer.result()
        begin = time.perf_counter()
        came = self.fetcher.fetch(made.incoming, answer)
        made.stage_s["rows"] = time.perf_counter() - begin
        return came

    def _assemble(self, made: _Making, came: Tensor) -> MiniBatch:
        begin = time.perf_counter()
        store, batch = self.fetcher.store, made.batch
        wanted = made.wanted
        found = store.assemble(batch.n_id, wanted.places, partial(self.fetcher.place, wanted, came))
        seeds = torch.from_numpy(batch.n_id[: batch.num_seeds])
        made.stage_s["assemble"] = time.perf_counter() - begin
        return MiniBatch(
            number=made.number,
            batch=batch,
            x=found.x,
            y=self.loader.labels[seeds].to(store.device),
            copied=found.copied,
            scale=len(self.loader.train) / self.sizes[made.number],
            stage_s=made.stage_s,
            remote_rows=len(made.wanted.places),
            foreign_rows=store.count_foreign(batch.n_id),
        )


def _put(queue: Queue[Any], item: Any, stop: threading.Event) -> None:
    """Put an item unless the reader has gone."""
    while not stop.is_set():
        try:
            queue.put(item, timeout=_LOOK_S)
            return
        except Full:
            continue


def _drain(queue: Queue[Any]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
