"""Recorder of a training job: compute, messages and waits of each rank, step by step."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from wirewise.errors import InputError, PeerError
from wirewise.profile import probes
from wirewise.profile.buckets import BucketNames
from wirewise.profile.clock import HostClock, Mark, clock_of
from wirewise.profile.collectives import CollectiveHooks
from wirewise.profile.modules import BackwardPass, ForwardPasses, ModuleHooks
from wirewise.profile.processor import ProcessorClock, ProcessorTimes
from wirewise.profile.programs import RecordedSum
from wirewise.profile.recorder import Pending, Recorder, header

__all__ = ["Tracer"]

T = TypeVar("T")

_runs = itertools.count()
_alive: list[Tracer] = []
_REPLACED_AFTER = 8
"""Steps of another optimizer without one of the first, after which the script has replaced it, as to train further
layers. A generator's optimizer takes one step while that of its critic takes five."""


def _leave_to_parent() -> None:
    for tracer in _alive:
        tracer.leave()
    _alive.clear()


# A forked process would write what it inherited, and what it does itself, between the steps of its parent.
os.register_at_fork(after_in_child=_leave_to_parent)


class Tracer:
    """Recorder of this rank into `folder/rank-R.jsonl`; every rank creates one, after `init_process_group`.

    Recorded are forward ops of modules, backward ops from gradient to gradient, all collectives and messages with
    their completion, waits, the optimizer, and data from a DataLoader. A step is flushed when it ends, so a job that
    dies leaves all earlier steps.

    Args:
        folder: Folder for the traces of all ranks; created if missing.
        model: Model whose modules are recorded, wrapped in DistributedDataParallel or not. None to `watch` it later.
        optimizer: Optimizer whose `step()` ends each step; "first" for the one that is called first, and for its
            successor if the script replaces it. None to call the tracer's `step()`.
        warmup: Number of initial steps not recorded; DistributedDataParallel builds its buckets in the first two.
        steps: Number of steps to record. None for all. Hooks are inactive afterwards.
        every: Record one of every n steps.
        round_trips: Round trips between the clocks of ranks, at the start and at the end.
        forgiving: Warn and record nothing, instead of raising, if the folder is not writable.

    Raises:
        InputError: A tracer exists already, or a number is invalid.
        TraceError: The folder is not writable.
        PeerError: Another rank creates no tracer.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        model: nn.Module | None = None,
        *,
        optimizer: torch.optim.Optimizer | Literal["first"] | None = None,
        warmup: int = 5,
        steps: int | None = 30,
        every: int = 1,
        round_trips: int = probes.ROUND_TRIPS,
        forgiving: bool = False,
    ) -> None:
        if _alive:
            raise InputError("a tracer is recording already; close it first, there is one in a process")
        if warmup < 0 or every < 1 or (steps is not None and steps < 1):
            raise InputError(
                f"got warmup {warmup}, steps {steps}, every {every}; expected at least 0, 1 and 1"
            )
        self._warmup, self._every = warmup, every
        self._last = None if steps is None else warmup + (steps - 1) * every
        self._optimizer: Any = optimizer
        self._replaceable, self._replaced = optimizer == "first", False
        self._others: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        """Steps of other optimizers since the last one of the optimizer that ends steps."""
        self._index, self._hooked = 0, True
        self._ends_with_backward = False
        """Whether the step is over once the backward pass is."""
        self._round_trips = round_trips if _world_size() > 1 else 0
        self._recorder = _recorder(folder, model, forgiving)
        if self._round_trips:
            self._messages = probes.message_group()
            self._probe()
        self._mark, self._processor = self._recorder.mark, ProcessorClock()
        self._step_form = self._recorder.form("step", "step")
        self._script = self._recorder.form("script", "other")
        self._collectives = CollectiveHooks(self._recorder)
        self._forward, self._backward = ForwardPasses(self._recorder), BackwardPass(self._recorder)
        self._names = BucketNames()
        self._collectives.name = self._names.name
        self._modules: list[ModuleHooks] = []
        self._carried: list[RecordedSum] = []
        self._search: Any = None
        self._undo = [self._hook_backward(), self._hook_data()]
        self._optimizers = self._hook_optimizers()
        self._tails: list[tuple[list[Pending], Mark, Mark]] = []
        if model is not None:
            self.watch(model)
        _alive.append(self)
        atexit.register(self.abandon)
        self._begin()

    def _probe(self) -> None:
        try:
            found = probes.probe(self._messages, self._round_trips) + probes.probe_rates(self._messages)
        except RuntimeError as error:
            self._recorder.close()
            raise PeerError(
                f"rank {self._recorder.header.rank} got no answer when it compared clocks "
                f"({str(error).splitlines()[0]}); make a tracer on every rank, at the same place"
            ) from error
        self._recorder.probes(found)

    def watch(self, model: nn.Module) -> None:
        """Also record the modules of this model."""
        name = type(model).__name__ if self._modules else ""
        self._modules.append(
            ModuleHooks(model, self._recorder, self._forward, self._backward, name, self._names.called)
        )
        self._names.add(model)

    def watch_all(self) -> None:
        """Record every model that is called from now until the end of the first recorded step."""
        known: set[int] = {id(part) for hooks in self._modules for part in hooks.model.modules()}

        def called(module: nn.Module, _inputs: Any) -> None:
            # A model is called before its parts; what a compiler captures has been called.
            if not torch.compiler.is_compiling() and id(module) not in known:
                known.update(map(id, module.modules()))
                self.watch(module)

        self._search = register_module_forward_pre_hook(called)
        self._undo.append(self._search.remove)

    def collective(
        self, call: Callable[[Tensor], None], *, algorithm: str = "ring", ranks: Sequence[int] | None = None
    ) -> RecordedSum:
        """Wrap a sum of a flat tensor so that it is recorded, with its messages and its thread's activity.

        Pass it to `runtime.data_parallel.parallel(collective=...)` in place of `call`.

        Args:
            call: Function such as a `runtime.data_parallel.AllReduce`; called in the same order on all ranks.
            algorithm: Name of the algorithm: one of `collective.named.ALGORITHMS`, or a custom name.
            ranks: Participating ranks. Defaults to all.
        """
        group = f"{algorithm} {len(self._carried)}"
        members = list(range(_world_size())) if ranks is None else list(ranks)
        made = RecordedSum(call, self._recorder, self._collectives, group, algorithm, members)
        self._carried.append(made)
        return made

    def data(self, source: Iterable[T]) -> Iterator[T]:
        """Yield the items of `source`, recording the wait for each. Not needed for a DataLoader."""
        form = self._recorder.form("data", "data")
        items = iter(source)
        while True:
            start = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._recorder.add(form, start, time.perf_counter())
            yield item

    def step(self) -> None:
        """End a step.

        Raises:
            InputError: The tracer has an optimizer, which ends the steps.
        """
        if self._optimizer is not None:
            raise InputError("steps end with optimizer.step(), as the tracer was told; call one of the two")
        self.end_step()

    @property
    def over(self) -> bool:
        """Whether all requested steps are recorded, or no more can be."""
        return self._recorder.failed or (self._last is not None and self._index > self._last)

    def end_step(self) -> None:
        """End a step, whichever hook detected its end."""
        if not self._hooked:
            return
        if torch._C._current_graph_task_id() >= 0:
            # An optimizer that steps inside a backward pass, while the reducer holds its lock.
            self._ends_with_backward = True
            return
        recorder, now = self._recorder, self._mark()
        if recorder.active:
            self._add_step(now)
            if isinstance(recorder.clock, HostClock):
                # On the CPU the main thread computes where nothing else is known.
                recorder.add(self._script, self._step_start, now)
            self._write_waits()
            if self._replaced:
                # It lasted for several steps of the script.
                recorder.discard()
            recorder.flush()
            if self._search is not None:
                self._search.remove()
        self._collectives.forget()
        self._names.query()
        self._index += 1
        if self._replaced and self._search is not None:
            # What is trained now may be other models.
            self.watch_all()
        self._replaced = False
        self._begin()

    def _add_step(self, now: Mark) -> None:
        begun, spent = self._step_times, self._processor.read()
        if begun is None or spent is None:
            self._recorder.add(self._step_form, self._step_start, now)
        else:
            own = ProcessorTimes(*(after - before for before, after in zip(begun, spent, strict=True)))
            self._recorder.add_step(self._step_start, now, own)

    def close(self) -> None:
        """Stop recording, compare clocks again with the other ranks, and close the file."""
        if self not in _alive:
            return
        _alive.remove(self)
        atexit.unregister(self.abandon)
        self._write_waits()
        self._unhook()
        # Not while one of them runs, as they do when the last step ends.
        for handle in self._optimizers:
            handle.remove()
        if self._round_trips and dist.is_initialized():
            # Where a peer ended before, the clocks are aligned by what was recorded until then.
            with suppress(RuntimeError):
                self._recorder.probes(probes.probe(self._messages, self._round_trips))
        self._recorder.close()
        self._processor.close()

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            # Others may not come any more.
            self._round_trips = 0
        self.close()

    def leave(self) -> None:
        """Stop recording in this process, a child of the recorded one."""
        atexit.unregister(self.abandon)
        self._hooked = self._recorder.active = False
        self._recorder.failed = True

    def abandon(self) -> None:
        """Close without communicating with other ranks, which may be gone; called at exit."""
        self._round_trips = 0
        self.close()

    def _begin(self) -> None:
        """The next step begins."""
        since = self._index - self._warmup
        self._recorder.step = self._index
        self._recorder.active = since >= 0 and since % self._every == 0 and not self.over
        if self._recorder.active:
            for hooks in self._modules:
                hooks.watch_unfrozen()
        if self.over:
            self._recorder.flush()
            self._unhook()
        self._step_start, self._step_times = self._mark(), self._processor.read()

    def _unhook(self) -> None:
        if not self._hooked:
            return
        self._hooked = self._recorder.active = False
        self._forward.remove()
        for module in self._modules:
            module.remove()
        for undo in self._undo:
            undo()
        self._collectives.remove()
        self._names.remove()

    def _write_waits(self) -> None:
        """Write the waits at the end of each backward pass: its collectives, in the order of their launch."""
        for launched, start, end in self._tails:
            at, until = self._recorder.seconds(start), self._recorder.seconds(end)
            for pending in launched:
                # What the pass waited for is done, also where its callback is still on the way.
                pending.end = pending.end if pending.end is not None else end
                stop = min(max(at, self._recorder.seconds(pending.end)), until)
                self._recorder.add(self._recorder.wait_form(pending), at, stop, pending.seq)
                at = stop
        self._tails.clear()
        for carried in self._carried:
            carried.write_waits()

    def _hook_backward(self) -> Any:
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            # Checkpoints may run a pass inside another one.
            if torch._C._current_graph_task_id() >= 0:
                return original(*args, **kwargs)
            if recorded := self._recorder.active:
                self._collectives.launched.clear()
                self._names.begin()
                self._backward.begin()
            try:
                return original(*args, **kwargs)
            finally:
                if recorded:
                    self._end_backward()
                if self._ends_with_backward:
                    self._ends_with_backward = False
                    self.end_step()

        torch.autograd.backward = backward
        return partial(setattr, torch.autograd, "backward", original)

    def _end_backward(self) -> None:
        tail = self._backward.end()
        self._names.end()
        launched = [
            p
            for p in self._collectives.launched
            # One that our thread has not carried out yet is waited for later.
            if not p.waited and p.seq >= 0 and p.caller == "main" and not (p.carried and p.end is None)
        ]
        if tail and launched:
            self._tails.append((launched, *tail))

    def _hook_optimizers(self) -> list[Any]:
        starts: dict[int, Mark] = {}
        form = self._recorder.form("optimizer", "optimizer")

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._recorder.active:
                starts[id(optimizer)] = self._mark()

        def behind(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if (start := starts.pop(id(optimizer), None)) is not None:
                self._recorder.add(form, start, self._mark())
            if self._optimizer == "first":
                self._optimizer = optimizer
            if optimizer is self._optimizer:
                self._others.clear()
                self.end_step()
            elif self._replaceable:
                self._count_other(optimizer)

        return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(behind)]

    def _count_other(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step of another optimizer, the same on all ranks, which number their steps alike."""
        self._others[optimizer] = self._others.get(optimizer, 0) + 1
        if self._others[optimizer] == _REPLACED_AFTER:
            self._others.clear()
            self._optimizer, self._replaced = optimizer, True
            self.end_step()

    def _hook_data(self) -> Any:
        loader: Any = dataloader._BaseDataLoaderIter
        original, form = loader.__next__, self._recorder.form("data", "data")

        def following(iterator: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(iterator)
            finally:
                self._recorder.add(form, start, time.perf_counter())

        loader.__next__ = following
        return partial(setattr, loader, "__next__", original)


def _recorder(folder: str | os.PathLike[str], model: nn.Module | None, forgiving: bool) -> Recorder:
    world = _world_size()
    rank, groups, backend = 0, {}, ""
    if dist.is_initialized():
        rank, backend = dist.get_rank(), dist.get_backend()
        groups = {dist.group.WORLD.group_name: list(range(world))}  # type: ignore[union-attr]
    first = next(model.parameters(), None) if model is not None else None
    device = first.device if first is not None else torch.device("cuda" if "nccl" in backend else "cpu")
    line = header(rank, world, groups, run=_run_name(rank), backend=backend, device=device.type)
    return Recorder(folder, line, clock_of(device), forgiving=forgiving)


def _run_name(rank: int) -> str:
    """A text that all ranks share and no other run has."""
    if not dist.is_initialized():
        return secrets.token_hex(8)
    store = dist.distributed_c10d._get_default_store()
    # A job may make one tracer after the other.
    key = f"wirewise/trace/{next(_runs)}"
    if rank == 0:
        store.set(key, secrets.token_hex(8))
    return str(store.get(key).decode())


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
