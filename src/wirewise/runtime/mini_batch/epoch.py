"""The batches of one epoch on their way through the stages sample, ids, slice, rows and assemble.

In a pipeline each stage works on another batch. One thread sends all messages, ids of a batch before rows of the one
before it, in the same order on all machines, and another waits for rows: those of several batches travel at a time, so
that a link has always something to carry. Once enough of them do, those of the next one wait until training takes a
batch: they leave while it computes, before its gradients need the link.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.graph.sampling import Batch, seed_batches
from wirewise.runtime.mini_batch.batch import MiniBatch
from wirewise.runtime.mini_batch.fetching import Answer, Incoming, Wanted
from wirewise.runtime.transport import Pending

if TYPE_CHECKING:
    from wirewise.runtime.mini_batch.loader import BatchLoader

__all__ = ["Epoch"]

_LOOK_S = 0.2


@dataclass
class _Making:
    """A batch on its way."""

    number: int
    batch: Batch
    wanted: Wanted
    stage_s: dict[str, float]
    incoming: Incoming | None = None
    answer: Future[Answer] | None = None


class _Line:
    """Between the threads of a pipeline.

    Args:
        depth: Batches that are made ahead.
    """

    def __init__(self, depth: int) -> None:
        self.stop = threading.Event()
        """The reader of batches has gone."""
        self._room = threading.Semaphore(max(depth // 2, 1) + 2)
        self.under_way: Queue[Any] = Queue()
        self.done: Queue[Any] = Queue(max(depth - depth // 2, 1))

    def wait_for_room(self) -> None:
        """Wait until there is room for one more batch on its way, or the reader has gone."""
        while not self.stop.is_set():
            if self._room.acquire(timeout=_LOOK_S):
                return

    def next_under_way(self) -> Any:
        """The next batch whose rows have left, or none once the reader has gone; makes room for another."""
        made = _get(self.under_way, self.stop)
        self._room.release()
        return made


class Epoch:
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
        """Some batches ready, some on their way: together about `depth` ahead of training."""
        line = _Line(self.loader.depth)
        threads = [
            threading.Thread(target=work, args=(line,), name=f"wirewise-{name}", daemon=True)
            for name, work in (("ask", self._ask_all), ("land", self._land_all))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in self.places:
                found = line.done.get()
                if isinstance(found, BaseException):
                    raise found
                yield found.result().arrive()
        finally:
            line.stop.set()
            for queue in (line.under_way, line.done):
                _drain(queue)
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
                while made is not None and not line.stop.is_set():
                    following = next(sampled, None)
                    ask = partial(self._ask, made, following, slicer)
                    # Where training waits for rows, machines that have just exchanged ids send together, and links
                    # carry 2 to 4 % more; where it does not, rows leave at once.
                    waits = line.done.empty()
                    for step in (line.wait_for_room, ask) if waits else (ask, line.wait_for_room):
                        step()
                    if before is not None:
                        self._send(before, line)
                    before, made = made, following
                if before is not None:
                    self._send(before, line)
            except BaseException as error:
                line.under_way.put(error)

    def _land_all(self, line: _Line) -> None:
        """Wait for the rows of each batch, and have it assembled."""
        with ThreadPoolExecutor(1, "wirewise-assemble") as assembler:
            try:
                before: Pending | None = None
                for _ in self.places:
                    made = line.next_under_way()
                    if made is None:
                        return
                    if isinstance(made, BaseException):
                        raise made
                    _put(line.done, assembler.submit(self._assemble, made, self._land(made)), line.stop)
                    # What others asked for may take longer: nobody here waits for it.
                    if before is not None:
                        before.wait_sends()
                    before = made.incoming.pending
                if before is not None:
                    before.wait_sends()
            except BaseException as error:
                _put(line.done, error, line.stop)

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

    def _send(self, made: _Making, line: _Line) -> None:
        if line.stop.is_set():
            return
        assert made.answer is not None
        assert made.incoming is not None
        self.fetcher.send(made.incoming, made.answer.result())
        line.under_way.put(made)

    def _land(self, made: _Making) -> Tensor:
        assert made.incoming is not None
        begin = time.perf_counter()
        came = self.fetcher.land(made.incoming)
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


def _get(queue: Queue[Any], stop: threading.Event) -> Any:
    """The next item, or none once the reader of batches has gone."""
    while not stop.is_set():
        try:
            return queue.get(timeout=_LOOK_S)
        except Empty:
            continue
    return None


def _drain(queue: Queue[Any]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return
