"""Gradient traces: the tensors of a model in the order in which their gradients get ready."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np

from wirewise.decoding import decode_json
from wirewise.errors import InputError

__all__ = ["GradientTensor", "GradientTrace", "read_gradient_trace"]


class GradientTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A float32 gradient."""

    name: str
    elements: int
    gap_us: float
    """Microseconds of back-propagation since the previous gradient was ready."""


class GradientTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A model's gradients in the order of back-propagation."""

    tensors: tuple[GradientTensor, ...]
    model: str = ""
    device: str = ""

    def check_itself(self) -> None:
        """Raise if a value is invalid.

        Raises:
            InputError: A tensor is invalid, which the message names, or there is none.
        """
        if not self.tensors:
            raise InputError("there are no tensors - at `$.tensors`; expected at least one")
        seen: dict[str, int] = {}
        for number, one in enumerate(self.tensors):
            where = f"tensor {one.name!r} - at `$.tensors[{number}]`"
            if not one.name or one.name in seen:
                raise InputError(f"{where}: an empty name, or one that stands twice; expected each name once")
            seen[one.name] = number
            if one.elements < 1 or not 0 <= one.gap_us < np.inf:
                raise InputError(
                    f"{where}: {one.elements} elements after {one.gap_us} us; expected at least 1 and a finite time"
                )


def read_gradient_trace(path: str | os.PathLike[str]) -> GradientTrace:
    """Read JSON with "tensors": a list of objects with name, elements and gap_us.

    Raises:
        InputError: The file is unreadable, or not of this form; the message names the file and the place.
    """
    try:
        found = decode_json(Path(path).read_bytes(), GradientTrace)
        found.check_itself()
    except (OSError, msgspec.MsgspecError, InputError) as cause:
        raise InputError(f"cannot read gradients from {os.fspath(path)}: {cause}; check the file") from cause
    return found
