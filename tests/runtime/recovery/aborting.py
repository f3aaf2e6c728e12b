"""A backend that behaves as NCCL does where ranks are lost, on CPUs: it aborts, raises nothing, and leaves garbage."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from wirewise.runtime.recovery.control import interrupt
from wirewise.runtime.startup import companion

__all__ = ["NAME", "AbortingGroup", "register"]

NAME = "aborting"


class AbortingGroup(dist.ProcessGroup):
    """A group whose calls end without an error when it is aborted, as kernels of NCCL do; one device has one rank."""

    made: ClassVar[list[AbortingGroup]] = []

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._inner: Any = companion(dist.PrefixStore("inner", store), rank, size, timeout.total_seconds())
        self._aborted = threading.Event()
        self.calls = 0
        AbortingGroup.made.append(self)
        device = f"{os.environ['LOCAL_RANK']} of {os.environ['OF_HOST']}"
        if store.add(f"device {device}", 1) != 1:
            raise RuntimeError(f"Duplicate GPU detected: rank {rank} on device {device}")

    def getBackendName(self) -> str:
        return NAME

    def name(self) -> str:
        return NAME

    def abort(self) -> None:
        # torch aborts a group that it destroys once more.
        if not self._aborted.is_set():
            self._aborted.set()
            interrupt(self._inner)

    def shutdown(self) -> None:
        pass

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        return self._run("allreduce", tensors, options or dist.AllreduceOptions())

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        return self._run("broadcast", tensors, options or dist.BroadcastOptions())

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None
    ) -> Any:
        return self._run("allgather", outputs, inputs)

    def barrier(self, options: Any = None) -> Any:
        return self._run("barrier", dist.BarrierOptions())

    def send(self, *_: Any) -> Any:
        raise AssertionError("messages of recoveries travel between hosts, not devices")

    recv = send

    def _run(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        try:
            getattr(self._inner, name)(*arguments).wait()
        except RuntimeError:
            if not self._aborted.wait(30):
                raise
            for tensor in _flat(arguments[0]):
                tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
        done: Future[Any] = Future()
        done.set_result(arguments[0])
        return _create_work_from_future(done)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in _flat(part)] if isinstance(value, list) else []


def register() -> None:
    """Let torch make such groups under their name."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            NAME,
            lambda store, rank, size, timeout: AbortingGroup(store, rank, size, timeout),
            devices=["cpu"],
        )
