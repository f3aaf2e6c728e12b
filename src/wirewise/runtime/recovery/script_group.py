"""Collectives of the script outside of the block, such as those of an evaluation, when a rank is lost.

The loop of a script cannot be entered again where an error has left it. So a collective that fails since a rank is
lost raises nothing while a `ScriptCollectives` is in force: it and all that follow do nothing, the code runs on to the
top of the loop, and what it has changed is undone and done again there. A block that has failed is followed by code
whose collectives would meet nobody; they do nothing either.

All collectives of torch's Python interface are methods of `ProcessGroup`, whichever group they are called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from wirewise.errors import InputError, PeerError

__all__ = ["Mode", "ScriptCollectives"]

Mode = Literal["live", "muted", "alone"]
"""Collectives are carried out; do nothing; or are refused but for barriers, before the loop of a replacement."""

_NAMES = (
    "allreduce allreduce_coalesced broadcast reduce allgather _allgather_base allgather_coalesced "
    "allgather_into_tensor_coalesced all_gather_single all_gather_single_coalesced gather scatter reduce_scatter "
    "_reduce_scatter_base reduce_scatter_single reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced "
    "alltoall alltoall_base all_to_all_single send recv recv_anysource barrier monitored_barrier"
).split()
_in_force: ScriptCollectives | None = None


class ScriptCollectives:
    """Collectives of the script in one stretch of its code.

    Args:
        mode: What becomes of them.
        wait: Waits for one, and raises `PeerError` where a rank is lost.
        is_failure: Whether an error comes from the failure of another rank.

    Attributes:
        failure: Error of the collective that met the failure of another rank; None: none has.
    """

    def __init__(
        self, mode: Mode, wait: Callable[[Any, str], None], is_failure: Callable[[Exception], bool]
    ) -> None:
        self.failure: PeerError | None = None
        self._mode, self._wait, self._is_failure = mode, wait, is_failure

    def enter(self) -> None:
        """Put it in force, until `leave` or until another one is."""
        global _in_force
        _patch()
        _in_force = self

    @staticmethod
    def leave() -> None:
        """Let collectives of this process be torch's again."""
        global _in_force
        _in_force = None

    def call(
        self, name: str, original: Callable[..., Any], group: ProcessGroup, *args: Any, **named: Any
    ) -> Any:
        """Carry out a collective of the script, or not."""
        if self._mode == "alone" and "barrier" not in name:
            raise InputError(
                f"the script calls {name} of torch.distributed before its loop, and this process has taken the place "
                "of a lost rank while the others are in theirs; expected collectives within the loop only: protect() "
                "has made model, optimizers and objects alike already"
            )
        if self._mode != "live" or self.failure is not None:
            _fill_alone(name, args)
            return _Done()
        try:
            work = original(group, *args, **named)
        except (RuntimeError, ValueError) as error:
            self.settle(error)
            return _Done()
        return work if work is None else _Waiting(work, self, name)

    def wait(self, work: Any, name: str) -> None:
        """Wait for a collective; one that a lost rank has cut short counts as done."""
        try:
            self._wait(work, f"{name} of the script")
        except (RuntimeError, ValueError, PeerError) as error:
            self.settle(error)

    def settle(self, error: Exception) -> None:
        """Note the failure of another rank.

        Raises:
            Exception: The error, where it comes from none.
        """
        if self.failure is not None:
            return
        if not self._is_failure(error):
            raise error
        self.failure = PeerError(str(error))


class _Done:
    """A collective that did nothing."""

    def wait(self, *_: Any, **__: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def _source_rank(self) -> int:
        return 0


class _Waiting:
    """A collective under way."""

    def __init__(self, work: Any, of: ScriptCollectives, name: str) -> None:
        self._work, self._of, self._name = work, of, name

    def wait(self, *_: Any, **__: Any) -> bool:
        self._of.wait(self._work, self._name)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _fill_alone(name: str, args: Sequence[Any]) -> None:
    """Give gathered values of all ranks those of this one: objects that are read out of them are whole then."""
    if "gather" not in name or len(args) < 2:
        return
    outputs, inputs = _tensors(args[0]), _tensors(args[1])
    with torch.no_grad():
        for output in outputs:
            if inputs and inputs[0].numel() and output.numel() % inputs[0].numel() == 0:
                output.view(-1, inputs[0].numel()).copy_(inputs[0].reshape(1, -1))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [one for part in value for one in _tensors(part)] if isinstance(value, list | tuple) else []


def _patch() -> None:
    """Let methods of process groups ask what is in force; once a process, and only where there is an agent."""
    for name in _NAMES:
        original = getattr(ProcessGroup, name, None)
        if original is not None and not hasattr(original, "of_script"):
            setattr(ProcessGroup, name, _asking(name, original))


def _asking(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(group: ProcessGroup, *args: Any, **named: Any) -> Any:
        own = _in_force
        if own is None:
            return original(group, *args, **named)
        return own.call(name, original, group, *args, **named)

    method.of_script = True  # type: ignore[attr-defined]
    return method
