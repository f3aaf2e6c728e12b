"""Modules of models of which only gradients were recorded."""

from __future__ import annotations

import os

from wirewise.trace.gradients import read_gradient_trace
from wirewise.trace.modules import Module


def read_gradients(path: str | os.PathLike[str], *, forward_share: float = 0.5) -> list[Module]:
    """Modules, one a tensor, from a file of float32 gradients in the order in which they are ready.

    Args:
        path: JSON with "tensors": a list of objects with name, elements, and gap_us, the time since the one before.
        forward_share: Time of the forward pass over that of the backward pass, which is assumed.

    Raises:
        InputError: The file cannot be read or is not of this form.
    """
    modules = [
        Module(
            name=one.name,
            forward_s=forward_share * 1e-6 * one.gap_us,
            backward_s=1e-6 * one.gap_us,
            gradient_bytes=4.0 * one.elements,
        )
        for one in read_gradient_trace(path).tensors
    ]
    return modules[::-1]
