"""Interception of collectives that a script calls itself, in addition to a library's.

All collectives of torch's Python interface are methods of `ProcessGroup`, whichever group they are called with. Once
a handler is installed, these methods ask the handlers, one after another, how to execute a call.
"""

from __future__ import annotations

import ctypes
import datetime
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch.distributed import ProcessGroup

from wirewise.errors import PeerError
from wirewise.runtime.calls import CallLog

__all__ = ["Handler", "intercept", "leak_group", "watch"]

Handler = Callable[[str, Callable[..., Any], ProcessGroup, tuple[Any, ...], dict[str, Any]], Any]
"""Function of name, method, group and arguments of a call that returns its result, or NotImplemented to leave the call
to other handlers."""

_NAMES = (
    "allreduce allreduce_coalesced broadcast reduce allgather _allgather_base allgather_coalesced "
    "allgather_into_tensor_coalesced all_gather_single all_gather_single_coalesced gather scatter reduce_scatter "
    "_reduce_scatter_base reduce_scatter_single reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced "
    "alltoall alltoall_base all_to_all_single send recv recv_anysource barrier monitored_barrier"
).split()
_LOOK_S = 0.25
"""Seconds between two looks at the other ranks while a call waits."""
_handlers: list[Handler] = []
_latest: weakref.ref[CallLog] | None = None
"""Log of the newest job: in one before it ranks may be apart, and the script has gone on from that."""


def intercept(handler: Handler, *, first: bool = False) -> None:
    """Install a handler that is called at each collective of this process, until the process ends.

    Args:
        handler: Handler that decides on calls.
        first: Whether to call it before the other handlers.
    """
    if handler not in _handlers:
        _handlers.insert(0 if first else len(_handlers), handler)
    for name in _NAMES:
        original = getattr(ProcessGroup, name, None)
        if original is not None and not hasattr(original, "is_intercepted"):
            setattr(ProcessGroup, name, _asking(name, original))


def _asking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(group: ProcessGroup, *args: Any, **named: Any) -> Any:
        for handler in _handlers:
            result = handler(name, original, group, args, named)
            if result is not NotImplemented:
                return result
        return original(group, *args, **named)

    method.is_intercepted = True  # type: ignore[attr-defined]
    return method


def watch(log: CallLog) -> None:
    """End waits in the script's own collectives if another rank waits in a call of a log, or has left it."""
    global _latest
    _latest = weakref.ref(log)
    intercept(_watched)


def _watched(
    name: str, original: Callable[..., Any], group: ProcessGroup, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    # Calls of wirewise's own are in the logs themselves; a receive waits for one rank, which may take its time.
    caller = sys._getframe(2).f_globals.get("__name__", "")
    log = None if _latest is None else _latest()
    if log is None or not caller.startswith("torch.distributed") or "gloo" not in group.name().lower():
        return NotImplemented
    work = original(group, *args, **named)
    if work is None or name.startswith(("send", "recv")):
        return work
    return _GuardedWork(work, group, f"{name} of the script", log)


class _GuardedWork:
    """A collective of the script under way."""

    def __init__(self, work: Any, group: ProcessGroup, label: str, log: CallLog) -> None:
        self._work, self._group, self._what, self._log = work, group, label, log

    def wait(self, timeout: Any = None) -> bool:
        """Wait, and look at the other ranks meanwhile.

        Raises:
            PeerError: Another rank waits elsewhere, or has left with an error and not returned.
        """
        start_s = time.monotonic()
        self._log.end_script_call()
        while timeout is None and not self._ended():
            if fault := self._log.explain_script_deadlock(self._what, time.monotonic() - start_s):
                # It stays in the log, where the other ranks find the reason too.
                leak_group(self._group)
                raise PeerError(fault)
        self._log.end_script_call()
        try:
            return bool(self._work.wait() if timeout is None else self._work.wait(timeout))
        except RuntimeError as error:
            if "onnection" not in str(error):
                raise
            raise PeerError(
                f"a rank closed its connection while others waited in {self._what} (it died, or its script ended); "
                f"look at the logs of all ranks [{str(error).splitlines()[0][:200]}]"
            ) from error

    def _ended(self) -> bool:
        try:
            self._work.wait(datetime.timedelta(seconds=_LOOK_S))
        except RuntimeError:
            return bool(self._work.is_completed())
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def leak_group(group: ProcessGroup) -> None:
    """Leak a group on purpose: one of its threads is still blocked, and the destructor would join that thread."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
