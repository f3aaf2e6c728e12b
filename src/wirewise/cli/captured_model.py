"""A user's model from a file, captured as a graph of operators with their seconds."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wirewise.cli.profile_stages import user_function
from wirewise.errors import InputError
from wirewise.trace.operator_graph import OperatorGraph

if TYPE_CHECKING:
    from wirewise.runtime.joint_graph import JointStep

__all__ = ["Device", "TimedStep", "capture_model"]

Device = Literal["cpu", "v100", "a100", "h100"]
"""Source of operator times: measured on this machine, or figures of a GPU."""


class TimedStep(NamedTuple):
    """Captured training step with the seconds of its operators."""

    graph: OperatorGraph
    capture_s: float
    """Seconds of the capture."""
    costs_s: float
    """Seconds of measuring or estimating."""


def capture_model(source: str, batch: int | None, device: Device) -> TimedStep:
    """Capture the training step of a function that returns a model, its inputs and perhaps a loss.

    The function is called with fake tensors where possible, so that a model of any size can be captured. It is called
    with real tensors where that fails, or where a module must run to be captured as a whole.

    Args:
        source: File and function, as FILE.py:NAME.
        batch: Number of samples, for a function with an argument `batch`.
        device: Device whose operator times are used.

    Raises:
        InputError: The function does not exist or has a wrong return value, or the step cannot be captured.
    """
    from wirewise.sim.operator_times import roofline_times

    file, _, name = source.rpartition(":")
    function = user_function(file, name)
    given = {} if batch is None else {"batch": batch}
    if given and "batch" not in inspect.signature(function).parameters:
        raise InputError(
            f"{name} in {file} takes no argument `batch`, which --batch {batch} would be given to; let it take "
            "one, or leave --batch out"
        )
    began = perf_counter()
    step = _captured(source, lambda: function(**given))
    captured = perf_counter()
    if device == "cpu":
        from wirewise.profile.operator_graph import measured_times

        graph = measured_times(step.graph, step.module)
    else:
        graph = roofline_times(step.graph, device)
    return TimedStep(graph, captured - began, perf_counter() - captured)


def _captured(source: str, build: Callable[[], Any]) -> JointStep:
    from torch._subclasses import FakeTensorMode

    from wirewise.runtime.joint_graph import capture_step

    try:
        with FakeTensorMode():
            made = build()
    except Exception:
        return capture_step(*_checked(source, _built(source, build)))
    model, *others = _checked(source, made)
    try:
        return capture_step(model, *others)
    except InputError:
        held = sum(p.numel() * p.element_size() for p in model.parameters())
        if 4 * held > _memory_bytes():
            raise
    return capture_step(*_checked(source, _built(source, build)))


def _built(source: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except Exception as error:
        raise InputError(f"{source} cannot be called: {type(error).__name__}: {error}") from error


def _checked(source: str, made: Any) -> tuple[Any, ...]:
    from torch import nn

    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise InputError(
            f"{source} returns {_said(made)}; expected a model that returns its loss and its inputs, or a model, "
            "inputs and a function loss(model, inputs)"
        )
    if len(made) == 3 and not callable(made[2]):
        raise InputError(
            f"{source} returns {_said(made[2])} as its loss; expected a function loss(model, inputs)"
        )
    return made


def _said(made: Any) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(one).__name__ for one in made)})"
    return f"a {type(made).__name__}"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
