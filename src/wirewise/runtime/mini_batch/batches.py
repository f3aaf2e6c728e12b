"""Pipeline of batches of several epochs through the stages sample, ids, slice, rows and assemble.

In a pipeline each stage works on another batch. One thread sends all messages, ids of a batch before rows of the
previous one, in the same order on all machines, and another waits for rows: those of several batches are in flight at
a time, so that links are never idle. Once enough are in flight, rows of the next batch are sent when training takes a
batch: during its compute, before its gradients need the link. A pipeline continues across epochs, so that links carry
rows of the next epoch while the last batches of this one train.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.graph.sampling import Batch, seed_batches
from wirewise.runtime.mini_batch.batch import MiniBatch
from wirewise.runtime.mini_batch.fetching import Answer, PendingRows, RowRequest
from wirewise.runtime.transport import PendingExchange

if TYPE_CHECKING:
    from wirewise.runtime.mini_batch.loader import BatchLoader

__all__ = ["Batches"]

_LOOK_S = 0.2


class _Place(NamedTuple):
    """Place of a batch in its epoch."""

    epoch: int
    number: int
    seeds: NDArray[np.int64]
    """Seeds of this machine."""
    all_seeds: int
    """How many the machines have together."""


@dataclass
class _Making:
    """A batch on its way."""

    place: _Place
    batch: Batch
    wanted: RowRequest
    stage_s: dict[str, float]
    incoming: PendingRows | None = None
    answer: Future[Answer] | None = None


class _Line:
    """Queue between the threads of a pipeline.

    Args:
        count: Batches in all.
        depth: Batches that are made ahead.
    """

    def __init__(self, count: int, depth: int) -> None:
        self.failed = threading.Event()
        """A thread has failed: the other one must not wait for it."""
        self.left = threading.Event()
        """The reader of batches has gone."""
        self.last = count
        """Batches that are asked for."""
        ready, on_their_way = max(depth - depth // 2, 1), max(depth // 2, 1) + 2
        self._room = threading.Semaphore(on_their_way)
        self.under_way: Queue[Any] = Queue()
        self.done: Queue[Any] = Queue(ready)
        self._lead = ready + 1 + on_their_way + 1

    def wait_for_room(self) -> None:
        """Wait until there is room for one more batch on its way, or the other thread has failed."""
        while not self.failed.is_set():
            if self._room.acquire(timeout=_LOOK_S):
                return

    def next_under_way(self) -> Any:
        """The next batch whose rows have left, none after the last one, or an error; makes room for another."""
        made = self.under_way.get()
        self._room.release()
        return made

    def hand_over(self, item: Any) -> None:
        """Put an item before the reader, unless it has gone."""
        while not self.left.is_set():
            try:
                self.done.put(item, timeout=_LOOK_S)
                return
            except Full:
                continue

    def leave(self, taken: int) -> None:
        """The reader goes after so many batches.

        Machines are at different places by then. All of them go on to the batch that none of them can have passed.
        """
        self.last = min(self.last, taken + self._lead)
        self.left.set()


class Batches:
    """Batches of several epochs of a loader, in order.

    Args:
        loader: Loader of the batches.
        epochs: Numbers of the epochs.
        start: Index of the first batch of the first epoch.
    """

    def __init__(self, loader: BatchLoader, epochs: range, start: int = 0) -> None:
        self.loader, self.fetcher, self.epochs, self.start = loader, loader.fetcher, epochs, start
        self.rank = self.fetcher.transport.rank

    def __len__(self) -> int:
        """Number of batches."""
        return max(len(self.epochs) * len(self.loader) - self.start, 0)

    def iterate_unpipelined(self) -> Generator[MiniBatch]:
        """Yield batches that are each made on demand."""
        if not len(self):
            return
        places = self._places()
        with ThreadPoolExecutor(1, "wirewise-slice") as slicer:
            made = self._sample(next(places))
            self.fetcher.announce(made.wanted)
            for place in places:
                following = self._sample(place)
                self._ask(made, following, slicer)
                yield self._assemble(made, self._fetch(made)).arrive()
                made = following
            self._ask(made, None, slicer)
            yield self._assemble(made, self._fetch(made)).arrive()
        self.loader.check()

    def ahead(self) -> Generator[MiniBatch]:
        """Yield batches prefetched about `depth` ahead of training, some ready and some in flight."""
        if not len(self):
            return
        line, taken = _Line(len(self), self.loader.depth), 0
        threads = [
            threading.Thread(target=work, args=(line,), name=f"wirewise-{name}", daemon=True)
            for name, work in (("ask", self._ask_all), ("land", self._land_all))
        ]
        for thread in threads:
            thread.start()
        try:
            while taken < len(self):
                found = line.done.get()
                if isinstance(found, BaseException):
                    raise found
                taken += 1
                yield found.result().arrive()
            # Batches are sampled long before their rows are read.
            self.loader.check()
        finally:
            line.leave(taken)
            deadline = time.monotonic() + self.fetcher.transport.timeout_s
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), 0))

    def _ask_all(self, line: _Line) -> None:
        """Send ids of each batch, then rows of the one before it, and wait for no rows."""
        with (
            ThreadPoolExecutor(self.loader.threads, "wirewise-sample") as samplers,
            ThreadPoolExecutor(1, "wirewise-slice") as slicer,
        ):
            try:
                sampled = self._sampled(samplers)
                first = next(sampled)
                self.fetcher.announce(first.wanted)
                made: _Making | None = first
                before: _Making | None = None
                asked = 0
                while made is not None and asked < line.last and not line.failed.is_set():
                    following = next(sampled, None)
                    ask = partial(self._ask, made, following, slicer)
                    # Where training waits for rows, machines that have just exchanged ids send together, and links
                    # carry 2 to 4 % more; where it does not, rows leave at once.
                    waits = line.done.empty()
                    for step in (line.wait_for_room, ask) if waits else (ask, line.wait_for_room):
                        step()
                    asked += 1
                    if before is not None:
                        self._send(before, line)
                    before, made = made, following
                if before is not None:
                    self._send(before, line)
                line.under_way.put(None)
            except BaseException as error:
                line.under_way.put(error)

    def _land_all(self, line: _Line) -> None:
        """Wait for the rows of each batch, and have it assembled."""
        with ThreadPoolExecutor(1, "wirewise-assemble") as assembler:
            try:
                before: PendingExchange | None = None
                while (made := line.next_under_way()) is not None:
                    if isinstance(made, BaseException):
                        raise made
                    came = self._land(made)
                    if not line.left.is_set():
                        line.hand_over(assembler.submit(self._assemble, made, came))
                    # What others asked for may take longer: nobody here waits for it.
                    if before is not None:
                        before.wait_sends()
                    before = made.incoming.pending
                if before is not None:
                    before.wait_sends()
            except BaseException as error:
                line.failed.set()
                line.hand_over(error)

    def _sampled(self, samplers: ThreadPoolExecutor) -> Iterator[_Making]:
        """Batches in order, some of them sampled ahead."""
        waiting: deque[Future[_Making]] = deque()
        for place in self._places():
            waiting.append(samplers.submit(self._sample, place))
            if len(waiting) > self.loader.depth + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _places(self) -> Iterator[_Place]:
        """All batches in order."""
        loader, start = self.loader, self.start
        for epoch in self.epochs:
            cuts = [
                seed_batches(train, 1, epoch=epoch, seed=loader.sampler.seed, batches=len(loader))
                for train in loader.train
            ]
            for number in range(start, len(loader)):
                yield _Place(epoch, number, cuts[self.rank][number], sum(len(cut[number]) for cut in cuts))
            start = 0

    def _sample(self, place: _Place) -> _Making:
        begin = time.perf_counter()
        loader, number = self.loader, place.number
        loader.check()
        draw = number if loader.shared_draws else number * len(loader.train) + self.rank
        if len(place.seeds) or loader.sampler.collective:
            batch = loader.sampler.sample(place.seeds, epoch=place.epoch, batch=draw)
        else:
            batch = loader.sampler.empty_batch()
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
        answer = self.fetcher.answer(asked, made.place.epoch, made.place.number)
        made.stage_s["slice"] = time.perf_counter() - begin
        return answer

    def _send(self, made: _Making, line: _Line) -> None:
        assert made.answer is not None
        assert made.incoming is not None
        self.fetcher.send(made.incoming, made.answer.result())
        line.under_way.put(made)

    def _land(self, made: _Making) -> Tensor:
        assert made.incoming is not None
        begin = time.perf_counter()
        came = self.fetcher.receive(made.incoming)
        made.stage_s["rows"] = time.perf_counter() - begin
        return came

    def _fetch(self, made: _Making) -> Tensor:
        assert made.answer is not None
        assert made.incoming is not None
        answer = made.answer.result()
        begin = time.perf_counter()
        came = self.fetcher.fetch(made.incoming, answer)
        made.stage_s["rows"] = time.perf_counter() - begin
        return came

    def _assemble(self, made: _Making, received: Tensor) -> MiniBatch:
        begin = time.perf_counter()
        store, batch = self.fetcher.store, made.batch
        wanted = made.wanted
        found = store.assemble(batch.n_id, wanted.places, partial(self.fetcher.place, wanted, received))
        seeds = torch.from_numpy(batch.n_id[: batch.num_seeds])
        made.stage_s["assemble"] = time.perf_counter() - begin
        return MiniBatch(
            number=made.place.number,
            batch=batch,
            x=found.x,
            y=self.loader.labels[seeds].to(store.device),
            copied=found.copied,
            scale=len(self.loader.train) / made.place.all_seeds,
            stage_s=made.stage_s,
            remote_rows=len(made.wanted.places),
            foreign_rows=store.count_foreign(batch.n_id),
        )
