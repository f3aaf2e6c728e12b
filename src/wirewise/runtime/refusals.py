"""Explanations of why torch cannot trace a model: the user's own line, and how to change it."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from pathlib import Path

import torch

from wirewise.errors import InputError

__all__ = ["is_users_file", "line_of", "trace_refusal", "user_code_line"]

_INSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1] / "runtime"))
_PYTHON = sysconfig.get_path("stdlib")

_HINTS = {
    (
        "DataDependentOutputException", "GuardOnDataDependentSymNode", "_local_scalar_dense", "item()",
        "data-dependent", "is_nonzero",
    ): (
        "what is computed there depends on values of tensors: compute both ways and choose with torch.where, or decide "
        "outside of the forward pass"
    ),
    ("DynamicOutputShapeException", "nonzero", "unique", "dynamic", "masked_select"): (
        "the shape of its result depends on values of tensors: use a mask of fixed shape, or torch.topk with a fixed "
        "number"
    ),
    ("numpy", ".data_ptr", "Cannot access data pointer", "tolist"): (
        "it leaves torch: use torch's own operations in the forward pass"
    ),
    ("leaf Variable", "in-place operation", "inplace"): "it changes a tensor in place: make a new tensor",
    ("mixing fake modes", "FakeTensorMode", "fake_impl", "real tensors"): (
        "it takes a tensor that is neither a parameter nor a buffer: register_buffer it, or move it into the batch"
    ),
}  # fmt: skip
"""Remedies, by words of torch's error."""


def trace_refusal(model: str, error: Exception) -> InputError:
    """Make the error for a model whose training step cannot be traced.

    Args:
        model: Name of the model.
        error: Exception of the tracer.
    """
    told = (str(error).strip().splitlines() or [""])[0][:300]
    reason = f"{type(error).__name__}: {told}"
    hint = next(
        (hint for words, hint in _HINTS.items() if any(word in f"{reason} {error}" for word in words)),
        "change that line so that it uses tensors of fixed shapes and torch's own operations",
    )
    where = user_code_line(error)
    return InputError(
        f"the training step of {model} cannot be captured{f' at {where}' if where else ''} ({reason}); {hint}"
    )


def user_code_line(error: Exception) -> str:
    """File, line and code of the innermost frame in user code; empty if there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users_file(f.filename)]
    return line_of(frames[-1].filename, frames[-1].lineno or 0) if frames else ""


def line_of(file: str, number: int) -> str:
    """File, number and code of a line."""
    return f"{file}:{number}: {linecache.getline(file, number).strip()}"


def is_users_file(file: str) -> bool:
    """Whether a file is user code, being neither torch's, Python's nor ours."""
    own = file.startswith(_PYTHON) and "site-packages" not in file
    return not own and not file.startswith((*_INSIDE, "<"))
