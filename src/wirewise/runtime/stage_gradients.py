"""Gradients of one stage's parameters, for functions that concern the parameters of all stages.

`torch.nn.utils.clip_grad_norm_` and scripts that add up norms see only the parameters of this rank's stage. Gradients
that know their parameter detect this: a reduction of one number per parameter is executed over all stages, or refused
by name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from wirewise.errors import InputError

__all__ = [
    "NUMBERS",
    "REDUCTIONS",
    "GradientScope",
    "Reduction",
    "TrackedMixin",
    "as_stage_gradient",
    "tensor_leaves",
]

Reduction = Callable[[Tensor], Tensor]

NUMBERS = {"__bool__", "__float__", "__int__", "item", "tolist"}
"""Functions that return a tensor's values as Python numbers."""
REDUCTIONS = {"all", "amax", "any", "linalg_vector_norm", "norm", "sum", "vector_norm"}
"""Functions of a row of numbers, one for each parameter, that are executed over all stages."""
_OPTIMIZERS = str(Path(torch.optim.__file__).parent)
_JOINS = {"cat", "concat", "concatenate", "hstack", "stack"}


class GradientScope:
    """Parameters of this rank's stage, among those of all stages.

    Args:
        stage: Index of the stage.
        parameters: Number of trained parameters of this rank.
        instead: Advice for code that needs parameters of all stages.
        reduce_everywhere: Function that reduces one number per parameter over all stages. None if that is
            unsupported.
    """

    def __init__(
        self,
        stage: int,
        parameters: int,
        instead: str,
        reduce_everywhere: Callable[[dict[str, Tensor], Reduction], Tensor] | None = None,
    ) -> None:
        self.stage, self.instead = stage, instead
        self._everywhere = reduce_everywhere
        self._read: set[str] = set()
        # One number is a record; a second one may be added to it, and where there is one parameter it is all.
        self._enough = min(2, parameters)
        self._warned = False

    def reduce(self, numbers: dict[str, Tensor], reduction: Reduction, label: str) -> Tensor:
        """Reduce one number per parameter over the parameters of all stages.

        Raises:
            InputError: The reduction is unsupported.
        """
        if self._everywhere is None:
            raise self.refusal(label)
        return self._everywhere(numbers, reduction)

    def refusal(self, label: str) -> InputError:
        """Make the error for a function of several parameters."""
        return InputError(
            f"{label} got several parameters of stage {self.stage}, or their gradients, and the other stages have "
            f"theirs: its result would be that of this stage alone. Expected {self.instead}"
        )

    def note_read(self, name: str) -> None:
        """Warn once if numbers of several parameters are read as Python numbers, which may be summed.

        torch's optimizers read them parameter by parameter (Adafactor), and never sum them.
        """
        if sys._getframe(2).f_code.co_filename.startswith(_OPTIMIZERS):
            return
        self._read.add(name)
        if len(self._read) >= self._enough and not self._warned:
            self._warned = True
            warnings.warn(
                f"numbers of {sorted(self._read)[:2]} or their gradients were read; this rank has the parameters of "
                f"stage {self.stage} alone, and a sum over them lacks the other stages: expected {self.instead}",
                UserWarning,
                stacklevel=6,
            )


class TrackedMixin:
    """Tensor that knows its parameter, or the parameters of which it has one number each."""

    scope: GradientScope | None = None
    """Scope of the parameters. None if the parameters of all stages are here."""
    owners: tuple[str, ...] = ()
    is_row = False
    """Whether it has one number for each owner."""
    kept: ClassVar[set[str] | None] = None
    """Functions whose results are tracked, in addition to scalar results. Defaults to all."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        tracked = [one for one in tensor_leaves([*args, *kwargs.values()]) if isinstance(one, TrackedMixin)]
        scope = next((one.scope for one in tracked if one.scope is not None), None)
        with torch._C.DisableTorchFunctionSubclass():
            if scope is not None:
                if name == "_amp_foreach_non_finite_check_and_unscale_":
                    raise scope.refusal("a GradScaler")
                if _is_joint(name, tracked, args):
                    return cls._joint(scope, function, name, tracked, args, kwargs)
                if tracked[0].is_row:
                    return cls._of_row(scope, function, name, tracked[0], args, kwargs)
                if name in NUMBERS:
                    scope.note_read(tracked[0].owners[0])
            return cls._track_results(name, tracked, cls.execute(function, name, args, kwargs))

    @classmethod
    def execute(cls, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Compute the plain result of a function."""
        return function(*args, **kwargs)

    @classmethod
    def track(
        cls, tensor: Tensor, scope: GradientScope | None, owners: tuple[str, ...], *, row: bool = False
    ) -> Any:
        """Tracked tensor that shares the memory of another."""
        if isinstance(tensor, TrackedMixin):
            return tensor
        tracked = cls.of_plain(tensor)
        tracked.scope, tracked.owners, tracked.is_row = scope, owners, row
        return tracked

    @classmethod
    def of_plain(cls, tensor: Any) -> Any:
        """Wrap an untracked tensor, sharing its memory."""
        return tensor.as_subclass(cls)

    def plain(self: Any) -> Tensor:
        """Unwrap to a tensor of torch, sharing its memory."""
        result: Tensor = self.as_subclass(Tensor)
        return result

    def whole(self) -> Tensor:
        """Convert to a plain tensor of all values."""
        return self.plain()

    def alike(self, value: Tensor) -> Tensor:
        """Wrap a number that is equal on all ranks, for functions of such tensors."""
        return value

    @classmethod
    def _joint(
        cls, scope: GradientScope, function: Any, name: str, tracked: list[Any], args: Any, kwargs: Any
    ) -> Any:
        """The result of a function of several parameters: a row of their numbers, or a refusal."""
        scalars = all(not one.is_row and not one.dim() for one in tracked)
        if not scalars or name not in _JOINS or len(list(tensor_leaves(args[:1]))) != len(tracked):
            raise scope.refusal(f"torch.{name}")
        owners = tuple(one.owners[0] for one in tracked)
        return cls.track(cls.execute(function, name, args, kwargs), scope, owners, row=True)

    @classmethod
    def _of_row(cls, scope: GradientScope, function: Any, name: str, row: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function of one number for each of several parameters."""
        if name in REDUCTIONS:
            numbers = dict(zip(row.owners, row.whole().unbind(), strict=True))
            total = scope.reduce(
                numbers,
                lambda values: function(*(values if one is row else one for one in args), **kwargs),
                f"torch.{name}",
            )
            return row.alike(total)
        result = cls.execute(function, name, args, kwargs)
        if isinstance(result, Tensor) and result.shape == row.shape:
            return cls.track(result, scope, row.owners, row=True)
        if isinstance(result, Tensor) and not result.dim():
            raise scope.refusal(f"torch.{name}")
        return result

    @classmethod
    def _track_results(cls, name: str, tracked: Sequence[Any], result: Any) -> Any:
        """Results of one parameter, or of several, one after the other."""
        if isinstance(result, list | tuple) and result and isinstance(result[0], Tensor):
            sources = tracked if len(tracked) >= len(result) else [tracked[0]] * len(result)
            kept = [cls._track_results(name, [one], part) for one, part in zip(sources, result, strict=False)]
            return (
                kept
                if type(result) is list
                else type(result)(*kept)
                if hasattr(result, "_fields")
                else tuple(kept)
            )
        if not tracked or not isinstance(result, Tensor):
            return result
        still = cls.kept is None or not result.dim() or name in cls.kept
        return cls.track(result, tracked[0].scope, tracked[0].owners) if still else result

    def __deepcopy__(self, memo: Any) -> Any:
        return self.plain().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)


class _TrackedTensor(TrackedMixin, Tensor):
    """A gradient of a plain parameter."""

    kept: ClassVar[set[str] | None] = {
        "__get__", "abs", "contiguous", "detach", "double", "flatten", "float", "isfinite", "isinf", "isnan", "mul",
        "norm", "pow", "ravel", "reshape", "square", "to", "view",
    }  # fmt: skip
    """Functions that norms are made of; others, such as `clone`, give states of optimizers, which stay plain."""


def as_stage_gradient(gradient: Tensor, scope: GradientScope, owner: str) -> Tensor:
    """Wrap a parameter's gradient, sharing its memory, so that functions of several gradients are detected."""
    # The module takes a second to import, and without it there is no DTensor.
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(gradient, module.DTensor):
        from wirewise.runtime.exact_dtensors import ExactDTensor

        return ExactDTensor.track(gradient, scope, (owner,))  # type: ignore[no-any-return]
    return _TrackedTensor.track(gradient, scope, (owner,))  # type: ignore[no-any-return]


def tensor_leaves(values: Any) -> Iterator[Any]:
    """Arguments of a torch function, with lists flattened."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _is_joint(name: str, tracked: list[Any], args: Any) -> bool:
    """Whether a function takes several parameters, or joins those of all into one tensor."""
    if name.startswith(("_foreach", "_fused")):
        return False
    alone = name in _JOINS and len(tracked) == 1 and len(list(tensor_leaves(args[:1]))) == 1
    return alone or len({one.owners for one in tracked}) > 1
