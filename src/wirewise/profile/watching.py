"""Watch of a training job from one line in its script: steps, loader, gradient exchange, memory, of all ranks."""

from __future__ import annotations

import datetime
import math
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import dataloader

from wirewise.cost.drift import DriftRule, LinkWindow, StepWindow, WatchEvent
from wirewise.errors import InputError
from wirewise.instruments import observer
from wirewise.log import logger
from wirewise.memory import resident_bytes
from wirewise.profile.connection_rates import LinkFigures, LinkReader, own_addresses
from wirewise.profile.system import SystemFigures, SystemReader

__all__ = ["Watch", "watch"]

_log = logger("watch")
_MEETING = datetime.timedelta(seconds=60)
"""Longest wait for the other ranks at the start; builds of models on ranks of one job differ by less."""
_LAST_S = 5.0
"""Longest wait for the last windows when watching ends; other ranks are then at most a step behind."""
_SYSTEM = 4 + len(SystemFigures._fields)
_FIELDS = _SYSTEM + len(LinkFigures._fields) + 1
"""Numbers of a rank and window: seconds of a step, of data, of the exchange, bytes of memory, of the system, a link,
and whether a plan is ready."""
_REPLANNED = ("network", "compute", "faster")
"""Causes of drifts for which another plan may be better."""


@runtime_checkable
class PlanSwap(Protocol):
    """Change of a job's plan on all ranks, as `runtime.data_parallel.PlanSwap`."""

    @property
    def is_ready(self) -> bool:
        """Whether a requested plan is ready; known to rank 0 only."""

    def ask(self, step: int) -> None:
        """Request a plan; a collective call."""

    def change(self, step_s: float) -> bool:
        """Switch to the new plan if it is worth it; a collective call."""

    def settle(self, step_s: float) -> bool:
        """Restore the former plan if steps were shorter under it."""

    def close(self) -> None:
        """Stop planning."""


class Watch:
    """Handle returned by `watch`: records the steps of this rank, and on rank 0 those of all, window by window.

    Nothing blocks. It reads the clock three times per step. At the end of a window all ranks all-gather 104 bytes in a
    separate group, which is polled when the next steps end. On an accelerator, times are those of the host. With
    `replan`, ranks wait at the end of a window for the rows of the one before, so that all act in the same step.

    Args:
        model: Model in training, wrapped or not.
        optimizer: Optimizer whose `step()` ends each step, equally often on all ranks.
        folder: Folder for the history, written by rank 0.
        every: Number of steps per window.
        drift: Threshold of a change, as a fraction of the step.
        replan: Swap of the job's plan, of every rank or of none: if steps or links drift, another plan is requested,
            and adopted by its rule. Defaults to none.

    Raises:
        InputError: The model has no trainable parameters, the optimizer is not torch's, a number is out of range, or
            ranks have windows of different lengths.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        folder: str | os.PathLike[str] = "runs/watch",
        every: int = 50,
        drift: float = 0.10,
        replan: PlanSwap | None = None,
    ) -> None:
        first = next((one for one in model.parameters() if one.requires_grad), None)
        if first is None or not isinstance(optimizer, torch.optim.Optimizer) or every < 2:
            raise InputError(
                f"got {type(model).__name__} with {'some' if first is not None else 'no'} parameters that learn, "
                f"a {type(optimizer).__name__} and windows of {every} steps; expected some, an optimizer of torch, and "
                "at least 2"
            )
        if replan is not None and not isinstance(replan, PlanSwap):
            raise InputError(
                f"replan is a {type(replan).__name__}; expected a PlanSwap(model, planner) of runtime.data_parallel"
            )
        self._rule, self._every = DriftRule(drift), every
        self._replanning = None if replan is None else _Replanning(replan)
        self._device = first.device
        joined = dist.is_available() and dist.is_initialized()
        self._ranks, self.rank = (dist.get_world_size(), dist.get_rank()) if joined else (1, 0)
        self._group = _group_of_all() if self._ranks > 1 else None
        if self._group is not None:
            _expect_alike(every, replan is not None, self._group)
        self._system = SystemReader(first.device)
        self._links = LinkReader(_addresses_of_all(self._group), self.rank)
        self._history = _History(Path(folder)) if self.rank == 0 else None
        self._steps, self._data_s, self._exchange_s = 0, 0.0, 0.0
        self._last_gradient_s = 0.0
        # Every rank sends every window, so that those of one number meet, however late one is.
        self._sent: deque[tuple[int, Any, list[torch.Tensor]]] = deque()
        # Gradients of the first parameters come last.
        self._undo: list[Callable[[], None]] = [
            first.register_post_accumulate_grad_hook(observer(self._on_last_gradient)).remove,
            optimizer.register_step_pre_hook(self._before_step).remove,
            optimizer.register_step_post_hook(self._after_step).remove,
            self._hook_data(),
        ]
        self._window_began_s = time.perf_counter()

    def close(self) -> None:
        """Stop watching; windows that all ranks have ended are kept, and awaited for a few seconds."""
        until_s = time.monotonic() + _LAST_S if self._sent else 0.0
        while self._sent and time.monotonic() < until_s:
            self._receive()
            time.sleep(0.01)
        self._stop()

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._sent.clear()
        if self._replanning is not None:
            self._replanning.swap.close()
        if self._history is not None:
            self._history.close()

    def _on_last_gradient(self, _parameter: torch.Tensor) -> None:
        self._last_gradient_s = time.perf_counter()

    def _before_step(self, *_: Any) -> None:
        if self._last_gradient_s:
            self._exchange_s += time.perf_counter() - self._last_gradient_s
            self._last_gradient_s = 0.0

    def _after_step(self, *_: Any) -> None:
        self._steps += 1
        self._receive()
        if self._steps % self._every == 0:
            self._send()
            if self._replanning is not None:
                self._receive(left=1 if self._group is not None else 0)
                if self._undo and self._replanning.act(self._steps):
                    # What a step takes is learnt anew.
                    self._rule = DriftRule(self._rule.share)

    def _hook_data(self) -> Callable[[], None]:
        loader: Any = dataloader._BaseDataLoaderIter
        original = loader.__next__

        def following(iterator: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return original(iterator)
            finally:
                self._data_s += time.perf_counter() - start_s

        loader.__next__ = following

        def undo() -> None:
            # Another one may have hooked itself in since; it goes on through this one, which then counts for nobody.
            if loader.__next__ is following:
                loader.__next__ = original

        return undo

    def _send(self) -> None:
        """Begin the exchange of this window."""
        now = time.perf_counter()
        seconds = (now - self._window_began_s, self._data_s, self._exchange_s)
        figures = (
            *(value / self._every for value in seconds),
            self._memory(),
            *self._system.read(),
            *self._links.read(),
        )
        is_ready = self._replanning is not None and self._replanning.swap.is_ready
        own = torch.tensor([*figures, is_ready], dtype=torch.float64)
        self._window_began_s, self._data_s, self._exchange_s = now, 0.0, 0.0
        if self._group is None:
            self._note(self._steps, [own])
        else:
            rows = [torch.empty(_FIELDS, dtype=torch.float64) for _ in range(self._ranks)]
            self._sent.append(
                (self._steps, dist.all_gather(rows, own, group=self._group, async_op=True), rows)
            )

    def _receive(self, left: int | None = None) -> None:
        """Take in the windows that all ranks have ended.

        Args:
            left: Wait until only this many are under way, and take in no more, so that all ranks know the same.
        """
        while self._sent and (self._sent[0][1].is_completed() if left is None else len(self._sent) > left):
            step, work, rows = self._sent.popleft()
            try:
                # Where it failed, the rows are not those of the ranks.
                work.wait()
            except RuntimeError as error:
                self._stop()
                _log.warning(
                    "step %d: the ranks are not watched any more, as their windows did not meet: %s. The job goes on",
                    step,
                    str(error).splitlines()[0],
                )
                return
            self._note(step, rows)

    def _memory(self) -> float:
        on_device = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0
        return float(resident_bytes() + on_device)

    def _note(self, step: int, rows: list[torch.Tensor]) -> None:
        if self._history is None and self._replanning is None:
            return
        columns = torch.stack(rows).T.tolist()
        window = StepWindow(
            step=step,
            step_s=tuple(columns[0]),
            data_s=tuple(columns[1]),
            exchange_s=tuple(columns[2]),
            memory_bytes=tuple(map(int, columns[3])),
            processors=_without_nan(columns[4]),
            host_use=_without_nan(columns[5]),
            device_use=_without_nan(columns[6]),
            device_clock_hz=_without_nan(columns[7]),
            links=tuple(map(_link_of, zip(*columns[_SYSTEM:-1], strict=True))),
        )
        # All ranks with a plan follow the same rows, and so find the same drifts.
        events = self._rule.add(window)
        if self._replanning is not None:
            self._replanning.note(window, events, is_ready=any(columns[-1]))
        if self._history is None:
            return
        self._history.write(window)
        for event in events:
            self._history.write(event)
            _log.warning("step %d: %s", event.step, event.sentence)


class _Replanning:
    """Swaps of the plan, decided by windows that all ranks have."""

    def __init__(self, swap: PlanSwap) -> None:
        self.swap = swap
        self._drifted = self._is_ready = self._asked = False
        self._step_s = 0.0
        self._left: int | None = None
        """Windows until a changed plan is compared with the one before: one under that one is noted later, and the
        first under a plan may hold slow steps."""

    def note(self, window: StepWindow, events: list[WatchEvent], *, is_ready: bool) -> None:
        """Take in a window."""
        self._step_s, self._is_ready = max(window.step_s), is_ready
        self._drifted |= any(event.cause in _REPLANNED for event in events)
        if self._left is not None:
            self._left -= 1

    def act(self, step: int) -> bool:
        """Ask for a plan, change to it or take it back; collective calls. Returns whether the plan changed."""
        changed = False
        if self._left is not None:
            if self._left <= 0:
                self._left = None
                changed = self.swap.settle(self._step_s)
        elif self._asked:
            if self._is_ready:
                self._asked = False
                changed = self.swap.change(self._step_s)
                self._left = 3 if changed else None
        elif self._drifted:
            self._asked = True
            self.swap.ask(step)
        self._drifted = False
        return changed


def _without_nan(column: list[float]) -> tuple[float | None, ...]:
    """Values of all ranks, None for those that a rank does not know."""
    return tuple(None if math.isnan(value) else value for value in column)


def _link_of(figures: tuple[float, ...]) -> LinkWindow | None:
    if math.isnan(figures[0]):
        return None
    one = LinkFigures(*figures)
    return LinkWindow(
        peer=int(one.peer),
        bytes_per_s=one.bytes_per_s,
        usual_bytes_per_s=one.usual_bytes_per_s,
        limit_bytes_per_s=one.limit_bytes_per_s,
    )


def _addresses_of_all(group: dist.ProcessGroup | None) -> list[tuple[str, ...]]:
    """Addresses of each rank's host."""
    if group is None:
        return [()]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own_addresses(), group=group)
    return found


def _expect_alike(every: int, replans: bool, group: dist.ProcessGroup) -> None:
    """Raise on all ranks if they differ in windows, which would then be of different steps, or in swaps of the plan.

    Raises:
        InputError: A rank differs from rank 0; the message names the first such rank.
    """
    rows = [torch.empty(2, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, torch.tensor([every, replans]), group=group)
    found = [tuple(row.tolist()) for row in rows]
    other = next((rank for rank, one in enumerate(found) if one != found[0]), None)
    if other is not None:
        (theirs, swaps), (ours, _) = found[other], found[0]
        differ = f"rank {other} watches windows of {theirs} steps, rank 0 of {ours}"
        if theirs == ours:
            one, zero = ("with", "without") if swaps else ("without", "with")
            differ = f"rank {other} watches {one} replan, rank 0 {zero} it"
        raise InputError(f"{differ}; expected the same on all ranks")


def _group_of_all() -> dist.ProcessGroup | None:
    """Make a group of all ranks.

    Raises:
        InputError: Some rank does not call `watch`.
    """
    # torch's own wait in `new_group` lasts half an hour, and names nobody.
    try:
        return dist.new_group(backend="gloo", timeout=_MEETING)
    except RuntimeError as error:
        raise InputError(
            f"rank {dist.get_rank()} called watch, and not all of {dist.get_world_size()} ranks did within "
            f"{_MEETING.seconds} s; expected the call on every rank, not under `if rank == 0` "
            f"[{str(error).splitlines()[0][:200]}]"
        ) from error


class _History:
    """Lines of windows and events; a disk that takes no more ends the history, never the job.

    The file is opened for each line: a script that becomes a daemon closes the files it has, and changes its folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Path | None = folder.absolute() / "watch.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b"")
        except OSError as error:
            self._stop(error)

    def write(self, record: msgspec.Struct) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        self._path = None

    def _stop(self, error: OSError) -> None:
        self._path = None
        _log.warning("the history of the steps is not written any more: %s. The job goes on", error)


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    folder: str | os.PathLike[str] = "runs/watch",
    every: int = 50,
    drift: float = 0.10,
    replan: PlanSwap | None = None,
) -> Watch:
    """Watch a training job: logs drift on rank 0, and keeps a history of its windows.

    Every rank calls it once, after `init_process_group`; on some ranks alone it is refused within a minute. Arguments
    and errors as in `Watch`.
    """
    return Watch(model, optimizer, folder=folder, every=every, drift=drift, replan=replan)
