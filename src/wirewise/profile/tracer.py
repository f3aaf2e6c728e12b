"""Records a training job: what each rank computes, sends and waits for, step by step."""

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
from wirewise.profile.modules import BackwardPass, ModuleHooks
from wirewise.profile.processor import ProcessorClock, ProcessorTimes
from wirewise.profile.programs import CarriedOut
from wirewise.profile.recorder import Pending, Recorder, header

__all__ = ["Tracer"]

T = TypeVar("T")

_runs = itertools.count()
_alive: list[Tracer] = []


class Tracer:
    """Records this rank into `folder/rank-R.jsonl`; every rank makes one, after `init_process_group`.

    Recorded are forward ops of modules, backward ops from gradient to gradient, all collectives and messages with
    their completion, waits, the optimizer, and data from a DataLoader. A step is flushed when it ends, so a job
    that dies leaves all steps before.

    Args:
        folder: Takes the traces of all ranks; made where it is missing.
        model: Model whose modules are recorded, wrapped in DistributedDataParallel or not; none: `watch` it later.
        optimizer: Optimizer whose `step()` ends each step; "first": the one that is called first; none: call
            `step()` of the tracer.
        warmup: Steps that are not recorded at first; DistributedDataParallel makes its buckets in the first two.
        steps: Number of steps to record then; none: all. Afterwards nothing is heard any more.
        every: Record one of so many steps.
        round_trips: Round trips between the clocks of ranks, at the start and at the end.
        forgiving: Say it and record nothing, instead of an error, where the folder cannot be written.

    Raises:
        InputError: A tracer is there already, or a number that makes no sense.
        TraceError: The folder cannot be written.
        PeerError: Another rank makes no tracer.
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
        self._backward = BackwardPass(self._recorder)
        self._names = BucketNames()
        self._collectives.name = self._names.name
        self._modules: list[ModuleHooks] = []
        self._carried: list[CarriedOut] = []
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
        """Record the modules of one more model."""
        name = type(model).__name__ if self._modules else ""
        self._modules.append(ModuleHooks(model, self._recorder, self._backward, name, self._names.called))
        self._names.add(model)

    def watch_all(self) -> None:
        """Record every model that is called from now until the first recorded step is over."""
        known: set[int] = {id(part) for hooks in self._modules for part in hooks.model.modules()}

        def called(module: nn.Module, _inputs: Any) -> None:
            # A model is called before its parts.
            if id(module) not in known:
                known.update(map(id, module.modules()))
                self.watch(module)

        self._search = register_module_forward_pre_hook(called)
        self._undo.append(self._search.remove)

    def collective(
        self, call: Callable[[Tensor], None], *, algorithm: str = "ring", ranks: Sequence[int] | None = None
    ) -> CarriedOut:
        """A sum of a flat tensor that is recorded, with its messages and what its thread does.

        Give it to `runtime.data_parallel.parallel(collective=...)` in the place of `call`.

        Args:
            call: Function such as a `runtime.data_parallel.AllReduce`; called in the same order on all ranks.
            algorithm: Name of how it sums: one of `collective.named.ALGORITHMS`, or a name of your own.
            ranks: Ranks that take part; none: all.
        """
        group = f"{algorithm} {len(self._carried)}"
        members = list(range(_world_size())) if ranks is None else list(ranks)
        made = CarriedOut(call, self._recorder, self._collectives, group, algorithm, members)
        self._carried.append(made)
        return made

    def data(self, source: Iterable[T]) -> Iterator[T]:
        """The items of `source`; waiting for each is recorded. Not needed for a DataLoader."""
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
        """A step is over.

        Raises:
            InputError: The tracer was given an optimizer, which ends the steps.
        """
        if self._optimizer is not None:
            raise InputError("steps end with optimizer.step(), as the tracer was told; call one of the two")
        self.end_step()

    @property
    def over(self) -> bool:
        """Whether all steps that were asked for are recorded, or no more can be."""
        return self._recorder.failed or (self._last is not None and self._index > self._last)

    def end_step(self) -> None:
        """End a step, whoever noticed that it is over."""
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
            recorder.flush()
            if self._search is not None:
                self._search.remove()
        self._collectives.forget()
        self._names.settle()
        self._index += 1
        self._begin()

    def _add_step(self, now: Mark) -> None:
        begun, spent = self._step_times, self._processor.read()
        if begun is None or spent is None:
            self._recorder.add(self._step_form, self._step_start, now)
        else:
            own = ProcessorTimes(*(after - before for before, after in zip(begun, spent, strict=True)))
            self._recorder.add_step(self._step_start, now, own)

    def close(self) -> None:
        """Stop recording, compare clocks once more with the other ranks and close the file."""
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

    def abandon(self) -> None:
        """Close without talking to other ranks, which may be gone; called at exit."""
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
        for module in self._modules:
            module.remove()
        for undo in self._undo:
            undo()
        self._collectives.remove()
        self._names.remove()

    def _write_waits(self) -> None:
        """What the end of each backward pass waited for: its collectives, in the order of their launch."""
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
                self.end_step()

        return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(behind)]

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
