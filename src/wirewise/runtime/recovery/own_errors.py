"""Own errors of this rank within a step's block that the script has caught, while the other ranks wait."""

from __future__ import annotations

import contextlib
import sys
import traceback
from types import FrameType

from wirewise.errors import InputError

__all__ = ["describe_error", "error_of_caught", "error_without_gradient"]

_OURS = (contextlib.__file__,)
_ADVICE = (
    "let the error rise, so that all ranks are told of it, or keep the batch with a loss of zero: "
    "`(0 * model(batch).sum()).backward()`"
)


def describe_error(error: BaseException) -> str:
    """Describe an error and where it was raised, in one line."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return f"{text} [{place.filename}:{place.lineno}]"


def error_of_caught(rank: int, step: int, cause: str) -> InputError:
    """Make the error for a rank that requests another batch after an exception has left its block.

    Args:
        rank: Rank of this process.
        step: Step of the block, counted from 1.
        cause: Description of the error, from `describe_error`.
    """
    return InputError(
        f"rank {rank} asks for another batch, and the script has caught an error that left its block of step {step}: "
        f"{cause}; the others wait for its gradients of that step. Expected no error that leaves the block: {_ADVICE}"
    )


def error_without_gradient(rank: int, step: int, whole: bool) -> InputError:
    """Make the error for a rank whose block ends without the gradients that the others wait for.

    Args:
        rank: Rank of this process.
        step: Step of the block, counted from 1.
        whole: Whether all gradients are missing, not only some.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    place = "" if frame is None else f" [{frame.f_code.co_filename}:{frame.f_lineno}]"
    got = "without a back-propagation" if whole else "after a back-propagation that did not come to its end"
    return InputError(
        f"rank {rank} ends its block of step {step} {got}{place}, such as after an error that the script has caught "
        f"inside; expected gradients, for which the others wait: {_ADVICE}, or skip batches on any rank with "
        "protect(sync=Buckets(unused='zeros'))"
    )


def _is_ours(file: str) -> bool:
    return file in _OURS or "/wirewise/runtime/recovery/" in file
