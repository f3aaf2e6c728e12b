"""Collectives of the script outside of the step's block, such as in an evaluation, when a rank is lost.

The loop of a script cannot be re-entered where an error has left it. While a `ScriptCollectives` is active, a
collective that fails because a rank is lost therefore raises nothing: it and all later ones become no-ops, the code
runs on to the top of the loop, and its changes are undone and repeated there. After a failed block, the collectives
of the following code would find no partner; they are no-ops too.

All collectives of torch's Python interface are methods of `ProcessGroup`, whichever group they are called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from wirewise.errors import InputError, PeerError
from wirewise.runtime.script_calls import intercept

__all__ = ["Mode", "ScriptCollectives"]

Mode = Literal["live", "muted", "alone"]
"""Handling of collectives: execute; skip; or, before the loop of a replacement, refuse all but barriers."""

_in_force: ScriptCollectives | None = None


class ScriptCollectives:
    """Handling of the script's collectives in one stretch of its code.

    Args:
        mode: How they are handled.
        wait: Function that waits for one, and raises `PeerError` if a rank is lost.
        is_failure: Function that returns whether an error was caused by a failure of another rank.

    Attributes:
        failure: Error of the collective that was hit by the failure of another rank. None if none was.
    """

    def __init__(
        self, mode: Mode, wait: Callable[[Any, str], None], is_failure: Callable[[Exception], bool]
    ) -> None:
        self.failure: PeerError | None = None
        self._mode, self._wait, self._is_failure = mode, wait, is_failure

    def enter(self) -> None:
        """Activate it, until `leave` or until another one is activated."""
        global _in_force
        intercept(_ask, first=True)
        _in_force = self

    @staticmethod
    def leave() -> None:
        """Restore torch's collectives in this process."""
        global _in_force
        _in_force = None

    def call(
        self, name: str, original: Callable[..., Any], group: ProcessGroup, *args: Any, **named: Any
    ) -> Any:
        """Execute or skip a collective of the script."""
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
            self.note_failure(error)
            return _Done()
        return work if work is None else _Waiting(work, self, name)

    def wait(self, work: Any, name: str) -> None:
        """Wait for a collective; one interrupted by a lost rank counts as done."""
        try:
            self._wait(work, f"{name} of the script")
        except (RuntimeError, ValueError, PeerError) as error:
            self.note_failure(error)

    def note_failure(self, error: Exception) -> None:
        """Record the failure of another rank.

        Raises:
            Exception: The error itself, if no rank failed.
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


def _ask(
    name: str, original: Callable[..., Any], group: ProcessGroup, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Let what is in force decide on a collective."""
    return NotImplemented if _in_force is None else _in_force.call(name, original, group, *args, **named)
