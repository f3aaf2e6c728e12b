"""Recording of every collective and message of a process as an op: group, sequence number, bytes, end.

All of torch.distributed goes through the dispatcher's `c10d` operators: DistributedDataParallel's reducer in C++, and
the functional collectives of DTensor and of compiled graphs, which come without the autograd keys. The operators are
intercepted at the one dispatch key that every call passes, and redispatched unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from wirewise.instruments import add_wait_observer, remove_wait_observer
from wirewise.profile.clock import Mark
from wirewise.profile.recorder import Pending, Recorder, calling_thread

__all__ = ["CollectiveHooks", "size_of"]

_KEY = "BackendSelect"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_WAIT = "wait_tensor"
"""Operator with which functional collectives are waited for."""
_MOST_HELD_BYTES = 1 << 20
"""Larger results are let go when they are done; that they are waited for later is then not seen."""


class _Operator(NamedTuple):
    collective: str
    """One of trace.records.COLLECTIVES."""
    payload: int
    """Place of the argument that is this rank's payload; -1: none."""
    group: int
    """Place of the process group."""
    peer: int = -1
    """Place of the other end or the source; -1: none."""
    splits: int = -1
    """Place of the rows for each rank; -1: none."""


_OPERATORS = {
    "_allgather_base_": _Operator("all_gather", 1, 2),
    "_reduce_scatter_base_": _Operator("reduce_scatter", 1, 2),
    "allgather_": _Operator("all_gather", 1, 2),
    "allgather_coalesced_": _Operator("all_gather", 1, 2),
    "allgather_into_tensor_coalesced_": _Operator("all_gather", 1, 2),
    "allreduce_": _Operator("all_reduce", 0, 1),
    "allreduce_coalesced_": _Operator("all_reduce", 0, 1),
    "alltoall_": _Operator("all_to_all", 1, 2),
    "alltoall_base_": _Operator("all_to_all", 1, 2, splits=4),
    "barrier": _Operator("barrier", -1, 1),
    "broadcast_": _Operator("broadcast", 0, 1, peer=2),
    "gather_": _Operator("", 1, 2),
    "recv_": _Operator("recv", 0, 1, peer=2),
    "reduce_": _Operator("", 0, 1),
    "reduce_scatter_": _Operator("reduce_scatter", 1, 2),
    "reduce_scatter_tensor_coalesced_": _Operator("reduce_scatter", 1, 2),
    "scatter_": _Operator("", 1, 2),
    "send": _Operator("send", 0, 1, peer=2),
}
_OF_FUNCTIONAL = {
    "_allgather_base_",
    "_reduce_scatter_base_",
    "allgather_into_tensor_coalesced_",
    "allreduce_",
    "allreduce_coalesced_",
    "alltoall_base_",
    "broadcast_",
    "reduce_scatter_tensor_coalesced_",
}
"""Operators of functional collectives; their first argument takes the result."""
_MESSAGES = ("send", "recv")
_TAG = 3


def size_of(payload: Any) -> int:
    """Bytes of a tensor, or of tensors in nested lists."""
    if isinstance(payload, torch.Tensor):
        return payload.numel() * payload.element_size()
    return sum(map(size_of, payload))


class CollectiveHooks:
    """Hooks on the c10d operators and on waits in Python code; at most one per process.

    Args:
        recorder: Recorder of the ops.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._groups: dict[str, list[int]] = {}
        self._forms: dict[tuple[Any, ...], int] = {}
        self._plain: dict[tuple[str, str, int, str, str], int] = {}
        self._held: dict[int, tuple[Any, Pending]] = {}
        self.name: Callable[[str, int], tuple[str, tuple[str, ...]]] = lambda collective, _size: (
            collective,
            (),
        )
        """Names a collective of so many bytes, and the parameters in it."""
        self.launched: list[Pending] = []
        """Collectives since the list was emptied."""
        self.inside: dict[str, list[Pending]] = {}
        """Takes what these threads hand over."""
        self._functional: dict[int, Pending] = {}
        """Collectives whose results may be waited for by tensor, by address."""
        self._libraries = [torch.library.Library(name, "IMPL") for name in ("c10d", "_c10d_functional")]
        for operator, what in _OPERATORS.items():
            self._libraries[0].impl(operator, self._record_calls(operator, what), _KEY, with_keyset=True)
        self._libraries[1].impl(_WAIT, self._waited_by_tensor(), _KEY, with_keyset=True)
        self._wait = dist.Work.wait
        dist.Work.wait = self._waited(self._wait)  # type: ignore[method-assign, assignment]
        add_wait_observer(self._blocked)

    def remove(self) -> None:
        """Remove the hooks."""
        dist.Work.wait = self._wait  # type: ignore[method-assign]
        remove_wait_observer(self._blocked)
        for library in self._libraries:
            library._destroy()
        self._held.clear()
        self._functional.clear()

    def forget(self) -> None:
        """Drop references to completed results."""
        # Other threads take results out as they get done.
        self._held = {key: held for key, held in list(self._held.items()) if held[1].end is None}
        self._functional = {at: pending for at, pending in self._functional.items() if pending.end is None}
        self.launched.clear()

    def _record_calls(self, name: str, operator: _Operator) -> Callable[..., Any]:
        original = getattr(torch.ops.c10d, name).default

        def hear(keys: Any, *args: Any) -> Any:
            pending = self._begin(operator, args)
            result = original.redispatch(keys & _BELOW, *args)
            if pending is not None:
                boxed = result[-1] if isinstance(result, tuple) else result
                self._follow(dist.Work.unbox(boxed), pending)
                if name in _OF_FUNCTIONAL:
                    self._functional |= dict.fromkeys(_addresses(args[0]), pending)
            return result

        return hear

    def _begin(self, operator: _Operator, args: Sequence[Any]) -> Pending | None:
        if _is_traced(args[0]):
            return None
        group = dist.ProcessGroup.unbox(args[operator.group])
        name = group.group_name
        ranks = self._groups.get(name)
        if ranks is None:
            ranks = self._groups[name] = list(dist.get_process_group_ranks(group))
        message = operator.collective in _MESSAGES
        seq = -1 if message else self._recorder.number(name, ranks)
        if not self._recorder.active:
            return None
        size = size_of(args[operator.payload]) if operator.payload >= 0 else 0
        form, title = self._form(operator, args, name, ranks, size)
        pending = self._recorder.open(title, name, form, self._recorder.mark(), seq, size)
        self.launched.append(pending)
        if (inside := self.inside.get(pending.caller)) is not None:
            inside.append(pending)
        return pending

    def _form(
        self, operator: _Operator, args: Sequence[Any], group: str, ranks: list[int], size: int
    ) -> tuple[int, str]:
        caller = calling_thread()
        title, parameters = (
            self.name(operator.collective, size) if caller == "main" else (operator.collective, ())
        )
        plain = (operator.collective, group, size, title, caller)
        alike = operator.peer < 0 and operator.collective != "all_to_all"
        if alike and (known := self._plain.get(plain)) is not None:
            return known, title
        tensor = _first(args[operator.payload]) if operator.payload >= 0 else None
        more: dict[str, Any] = {
            "group": group,
            "collective": operator.collective,
            "size_bytes": size,
            "dtype": str(tensor.dtype).removeprefix("torch.") if tensor is not None else "",
            "split_bytes": _splits(operator, args, tensor),
            "peer": ranks[args[operator.peer]] if operator.peer >= 0 else -1,
            "tag": args[_TAG] if operator.collective in _MESSAGES else -1,
            "parameters": parameters,
            "caller": caller,
        }
        key = (title, *more.values())
        if key not in self._forms:
            self._forms[key] = self._recorder.form(title, "communication", thread="comm", **more)
        if alike:
            self._plain[plain] = self._forms[key]
        return self._forms[key], title

    def _follow(self, work: Any, pending: Pending) -> None:
        """Notice when the work is done."""
        self._held[id(work)] = (work, pending)
        key, large = id(work), pending.size_bytes >= _MOST_HELD_BYTES

        def done(_future: Any) -> None:
            pending.end = self._recorder.mark()
            if large:
                self._held.pop(key, None)

        try:
            work.get_future().add_done_callback(done)
        except (RuntimeError, NotImplementedError):
            # A message of gloo has no future; it is done when the wait for it is.
            pending.ends_with_wait = True

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            held = self._held.get(id(work))
            if held is None:
                return original(work, *args, **kwargs)
            start = self._recorder.mark()
            result = original(work, *args, **kwargs)
            self._end_wait(held[1], start)
            return result

        return wait

    def _blocked(self, name: str) -> Callable[[], None]:
        """A thread begins to wait for messages that another thread receives."""
        # Waits inside a recorded sum follow from its messages.
        if not self._recorder.active or calling_thread() in self.inside:
            return lambda: None
        start, form = self._recorder.mark(), self._recorder.form(name, "wait", thread=calling_thread())
        return lambda: self._recorder.add(form, start, self._recorder.mark())

    def _waited_by_tensor(self) -> Callable[..., torch.Tensor]:
        original = getattr(torch.ops._c10d_functional, _WAIT).default

        def wait(keys: Any, tensor: torch.Tensor) -> torch.Tensor:
            traced = _is_traced(tensor)
            pending = None if traced else self._functional.pop(tensor.data_ptr(), None)
            start = self._recorder.mark() if pending is not None else 0.0
            result: torch.Tensor = original.redispatch(keys & _BELOW, tensor)
            if pending is not None:
                self._end_wait(pending, start)
            return result

        return wait

    def _end_wait(self, pending: Pending, start: Mark) -> None:
        """The calling thread has waited for a communication."""
        end = self._recorder.mark()
        if pending.ends_with_wait:
            pending.end = end
        own = calling_thread()
        pending.waited |= own == "main"
        pending.elsewhere = pending.seq < 0 and own != pending.caller
        if not pending.elsewhere:
            self._recorder.add(self._recorder.wait_form(pending), start, end, pending.seq)


def _first(payload: Any) -> torch.Tensor | None:
    while isinstance(payload, (list, tuple)) and payload:
        payload = payload[0]
    return payload if isinstance(payload, torch.Tensor) else None


def _is_traced(payload: Any) -> bool:
    """Whether a graph is being captured, with tensors that hold nothing, so that nothing is sent."""
    tensor = _first(payload)
    return isinstance(tensor, FakeTensor) or (tensor is not None and tensor.is_meta)


def _addresses(results: Any) -> list[int]:
    tensors = [results] if isinstance(results, torch.Tensor) else results
    return [tensor.data_ptr() for tensor in tensors if tensor.layout is torch.strided]


def _splits(operator: _Operator, args: Sequence[Any], tensor: torch.Tensor | None) -> tuple[int, ...]:
    """Bytes to each rank of the group; empty: equal parts, or no such collective."""
    if operator.collective != "all_to_all" or tensor is None:
        return ()
    if operator.splits < 0:
        return tuple(map(size_of, args[operator.payload]))
    row_bytes = tensor.element_size() * math.prod(tensor.shape[1:])
    return tuple(int(rows) * row_bytes for rows in args[operator.splits])
