"""All-reduces that a thread of the job executes by its own messages, and the activity of that thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from wirewise.profile.collectives import CollectiveHooks
from wirewise.profile.recorder import Pending, Recorder, calling_thread

__all__ = ["RecordedSum"]

_ALONE = ("encode", "decode")


class RecordedSum:
    """Wrapper of a sum over ranks that records each call as an all-reduce, with its parts.

    The all-reduce lasts from hand-over until the function returns. During it, the calling thread has an op of kind
    "other" that contains its messages, collectives and waits.

    Args:
        call: Function that sums a flat tensor over all ranks in place.
        recorder: Recorder of the ops.
        hooks: Hooks on the messages.
        group: Group name for the sequence numbers of these all-reduces.
        algorithm: Name of the algorithm, such as "ring".
        ranks: Ranks that take part.
    """

    def __init__(
        self,
        call: Callable[[Tensor], None],
        recorder: Recorder,
        hooks: CollectiveHooks,
        group: str,
        algorithm: str,
        ranks: list[int],
    ) -> None:
        self._call, self._recorder, self._hooks = call, recorder, hooks
        self._algorithm, self._group, self._ranks = algorithm, group, ranks
        self._queue: deque[Pending | None] = deque()
        self._over: list[tuple[str, list[Pending]]] = []
        self._step, self._count = -1, 0

    def handed_over(self, flat: Tensor) -> None:
        """Mark a tensor as handed over for the next call on any thread; otherwise hand-over is when a call starts."""
        recorder = self._recorder
        seq = recorder.number(self._group, self._ranks)
        if not recorder.active:
            self._queue.append(None)
            return
        self._count = self._count + 1 if self._step == recorder.step else 0
        self._step, name = recorder.step, f"bucket {self._count}"
        form = recorder.form(
            name,
            "communication",
            thread="comm",
            group=self._group,
            collective="all_reduce",
            size_bytes=flat.nbytes,
            dtype=str(flat.dtype).removeprefix("torch."),
            algorithm=self._algorithm,
            caller=calling_thread(),
        )
        pending = recorder.open(name, self._group, form, recorder.mark(), seq, flat.nbytes)
        pending.carried = True
        self._hooks.launched.append(pending)
        self._queue.append(pending)

    def __call__(self, flat: Tensor) -> None:
        """Sum; raises what the function raises."""
        if not self._queue:
            self.handed_over(flat)
        pending = self._queue.popleft()
        if pending is None:
            self._call(flat)
            return
        thread, start = calling_thread(), self._recorder.mark()
        inside = self._hooks.inside[thread] = []
        try:
            self._call(flat)
        finally:
            del self._hooks.inside[thread]
            # The op first: who waits for the all-reduce may go on at once.
            form = self._recorder.form(pending.name, "other", group=self._group, thread=thread)
            end = self._recorder.mark()
            self._recorder.add(form, start, end, pending.seq)
            self._over.append((thread, inside))
            pending.end = end

    def observe(
        self, kind: str, source: int, target: int, size_bytes: int, start_s: float, end_s: float, /
    ) -> None:
        """Record the function's activity between messages (`runtime.data_parallel.Observer`)."""
        del source, target
        if kind in _ALONE:
            form = self._recorder.form(kind, kind, size_bytes=size_bytes, thread=calling_thread())
            self._recorder.add(form, start_s, end_s)

    def write_waits(self) -> None:
        """Record the waits of threads: one without further tensors to hand over is blocked until all are done."""
        for thread, inside in self._over:
            begun = sorted(self._recorder.seconds(pending.start) for pending in inside)
            came = sorted(
                (self._recorder.seconds(p.end), p.name) for p in inside if p.elsewhere and p.end is not None
            )
            at = 0.0
            for end, name in came:
                at = max([at, *(start for start in begun if start <= end)])
                self._recorder.add(self._recorder.form(name, "wait", thread=thread), at, end)
                at = end
        self._over.clear()
