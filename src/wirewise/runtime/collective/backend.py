"""`torch.distributed` on a group of wirewise, the backend "wirewise" of `init_process_group`: subgroups, DDP.

Import `wirewise.runtime.collective` first, which registers the backend. Point-to-point messages are carried by gloo,
over connections that are opened between two ranks when the first message goes from one to the other.
"""

# torch's own signatures are overloads that only C++ can have.
# mypy: disable-error-code="override, attr-defined, assignment"

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirewise.errors import InputError
from wirewise.runtime.collective.group import CollectiveGroup, connect
from wirewise.runtime.collective.messages import Messages
from wirewise.runtime.collective.work import Work

__all__ = ["NAME", "ProcessGroup", "group_of", "register"]

NAME = "wirewise"
_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


def register() -> None:
    """Register the backend with torch; safe to call twice."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, ProcessGroup, devices=["cpu", "cuda"])


def group_of(process_group: dist.ProcessGroup | None = None) -> CollectiveGroup:
    """Wirewise group behind a torch process group (the default one if None), for `CollectiveGroup.use`.

    Raises:
        InputError: The process group has another backend.
    """
    found = process_group or dist.distributed_c10d._get_default_group()
    if not isinstance(found, ProcessGroup):
        raise InputError(f"the process group has the backend {found.name()!r}; expected {NAME!r}")
    return found.group


class ProcessGroup(dist.ProcessGroup):
    """Torch process group whose collectives are programs."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.group = connect(store, rank, size, timeout_s=timeout.total_seconds())
        self._messages = Messages(store, rank, size, timeout)

    def getBackendName(self) -> str:
        """Return the backend's name, for torch."""
        return NAME

    @property
    def group_name(self) -> str:
        """Name under which torch knows the group; DeviceMesh and functional collectives find it by this."""
        # torch itself asks the C++ backends of a group, of which this one has none.
        return dist.distributed_c10d._world.pg_names[self]

    pg_name = group_name

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        """See `torch.distributed.all_reduce`."""
        return TorchWork([self.group.all_reduce(t, _op(opts), async_op=True) for t in tensors], tensors)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        """Reduce each tensor, as `allreduce` does."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        """See `torch.distributed.broadcast`."""
        works = [self.group.broadcast(t, opts.rootRank, async_op=True) for t in tensors]
        return TorchWork(works, tensors)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Any:
        """See `torch.distributed.reduce`."""
        works = [self.group.reduce(t, opts.rootRank, _op(opts), async_op=True) for t in tensors]
        return TorchWork(works, tensors)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """See `torch.distributed.all_gather`."""
        pairs = zip(outputs, inputs, strict=True)
        return TorchWork([self.group.all_gather(o, i, async_op=True) for o, i in pairs], outputs[0])

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Gather each tensor, as `allgather` does; `outputs` are lists of tensors by rank."""
        pairs = zip(zip(*outputs, strict=True), inputs, strict=True)
        works = [self.group.all_gather(list(o), i, async_op=True) for o, i in pairs]
        return TorchWork(works, [one for of_rank in outputs for one in of_rank])

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """See `torch.distributed.all_gather_into_tensor`."""
        return TorchWork([self.group.all_gather(output, tensor, async_op=True)], [output])

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> Any:
        """See `torch.distributed.reduce_scatter`."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.group.reduce_scatter(o, i, _op(opts), async_op=True) for o, i in pairs]
        return TorchWork(works, outputs)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """See `torch.distributed.reduce_scatter_tensor`."""
        return TorchWork([self.group.reduce_scatter(output, tensor, _op(opts), async_op=True)], [output])

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any) -> Any:
        """See `torch.distributed.gather`."""
        found = outputs[0] if outputs else None
        return TorchWork([self.group.gather(found, inputs[0], opts.rootRank, async_op=True)], found or [])

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any) -> Any:
        """See `torch.distributed.scatter`."""
        found = inputs[0] if inputs else None
        return TorchWork([self.group.scatter(outputs[0], found, opts.rootRank, async_op=True)], outputs)

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        """See `torch.distributed.all_to_all`."""
        return TorchWork([self.group.all_to_all(outputs, inputs, async_op=True)], outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """See `torch.distributed.all_to_all_single`."""
        if not output_splits and not input_splits:
            return TorchWork([self.group.all_to_all(output, tensor, async_op=True)], [output])
        equal = [output.shape[0] // self.size()] * self.size()
        gets = output.split(list(output_splits) or equal)
        gives = tensor.split(list(input_splits) or equal)
        return TorchWork([self.group.all_to_all(gets, gives, async_op=True)], [output])

    def barrier(self, opts: Any = None) -> Any:
        """See `torch.distributed.barrier`; like gloo's, it completes after earlier operations of this rank."""
        before = self.group.in_flight()
        return TorchWork([self.group.barrier(async_op=True), *before], [])

    # Names of these until torch 2.12.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Gather each tensor, as `all_gather_single` does."""
        works = [self.group.all_gather(o, i, async_op=True) for o, i in zip(outputs, inputs, strict=True)]
        return TorchWork(works, outputs)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """Reduce and scatter each tensor, as `reduce_scatter_single` does."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.group.reduce_scatter(o, i, _op(opts), async_op=True) for o, i in pairs]
        return TorchWork(works, outputs)

    # Names of these until torch 2.12.
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, tensors: Sequence[Tensor], target: int, tag: int) -> Any:
        """See `torch.distributed.send`."""
        return self._messages.send(tensors, target, tag)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Any:
        """See `torch.distributed.recv`."""
        return self._messages.receive(tensors, source, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> Any:
        """See `torch.distributed.recv` without a source."""
        return self._messages.receive(tensors, None, tag)

    def shutdown(self) -> None:
        """Close the group; called by `destroy_process_group`."""
        self._messages.close()
        self.group.close()

    abort = shutdown


def _op(opts: Any) -> str:
    found = _OPS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp) if opts else "sum"
    if found is None:
        raise InputError(f"got the reduction {opts.reduceOp}; expected one of {', '.join(_OPS.values())}")
    return found


class TorchWork(dist.Work):
    """Handle of operations in flight for torch; completed when all of them have.

    torch's own wrapper of a future waits without raising, and C++ callers (DDP's reducer) read the value of a failed
    future that Python made as if it were a tensor. The wait is therefore executed here, and the future seen by C++
    fails by a callback that raises, which torch converts to a C++ exception.
    """

    def __init__(self, works: Sequence[Work], result: Sequence[Tensor]) -> None:
        super().__init__()
        self._works, self._result = works, list(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for completion, up to `timeout`; None or zero means the group's own timeouts.

        Raises:
            PeerError: An operation failed or timed out.
        """
        seconds = timeout.total_seconds() if timeout else None
        for work in self._works:
            work.wait(seconds)
        return True

    def is_completed(self) -> bool:
        """Whether all have ended, successfully or not."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have succeeded."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """First error. None if there is none so far."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Tensor]:
        """Result tensors, once all have ended."""
        return self._result

    def get_future(self) -> torch.futures.Future:
        """Future of the results; raises a RuntimeError with the first error's message."""

        def conclude(_: Any) -> list[Tensor]:
            if (error := self.exception()) is not None:
                raise error
            return self._result

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(conclude)
