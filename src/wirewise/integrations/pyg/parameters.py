"""Parameters of distributed models, and checks that they are unchanged since distribution."""

from __future__ import annotations

import operator
import weakref
from itertools import chain
from typing import Any

from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.instruments import is_observer
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.data_parallel.hooks import WeakHook

__all__ = ["ParameterGuard", "claim", "is_distributed"]

# Beside the parameters, not on them: a parameter with attributes of ours could not be pickled.
_DISTRIBUTED: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
_SIGNS = operator.attrgetter("requires_grad", "dtype", "device", "_backward_hooks")
_AFTER = operator.attrgetter("_post_accumulate_grad_hooks")
_REDUCERS: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()


def is_distributed(variable: Tensor) -> bool:
    """Whether the parameter belongs to a distributed model."""
    return _DISTRIBUTED.get(id(variable)) is variable


def claim(parameters: list[nn.Parameter], reducer: Reducer) -> None:
    """Make one reducer the owner of the gradients in a back-propagation.

    Raises:
        InputError: Another distributed model with one of the parameters is the owner already.
    """
    for parameter in parameters:
        other = _REDUCERS.get(id(parameter))
        if other is not None and other.active and other is not reducer:
            raise InputError(
                "two distributed models with the same parameters are in one loss; distribute the model once"
            )
        _REDUCERS[id(parameter)] = reducer


class ParameterGuard:
    """Detector of changes that a script made to parameters after distribution.

    Args:
        module: The distributed copy.
        owners: Classes whose hooks on parameters are our own.
    """

    def __init__(self, module: nn.Module, owners: tuple[type, ...]) -> None:
        self.module, self.owners = module, owners
        self.names = dict(module.named_parameters())
        self.trained = {name for name, parameter in self.names.items() if parameter.requires_grad}
        self._kinds = [(t.dtype, t.device) for t in self.names.values()]
        for parameter in self.names.values():
            _DISTRIBUTED[id(parameter)] = parameter
        self._modules: list[nn.Module] = []
        self._dicts: list[dict[str, Any]] = []
        """Parameters and modules of each module."""
        self._before: list[Any] = []

    def check(self) -> None:
        """Compare the parameters with the initial ones.

        Raises:
            InputError: A parameter was converted, wrapped, replaced, added, removed, frozen, unfrozen or given a
                hook.
        """
        if self._before == self._visible():
            return
        self._compare()
        self._modules = list(self.module.modules())
        self._dicts = [held for m in self._modules for held in (m._parameters, m._modules)]
        self._before = self._visible()

    def _visible(self) -> list[Any]:
        """Everything that is not allowed to change, gathered by C: a walk of the module takes ten times as long."""
        held = chain.from_iterable(map(dict.values, self._dicts))
        parameters = self.names.values()
        hooks = [len(after or ()) for after in map(_AFTER, parameters)]
        of_modules = [len(m._backward_hooks) + len(m._backward_pre_hooks) for m in self._modules]
        return [list(map(id, held)), list(map(_SIGNS, parameters)), hooks, of_modules]

    def _compare(self) -> None:
        now = dict(self.module.named_parameters())
        for name in sorted(now.keys() ^ self.names.keys()):
            raise self._changed(name)
        if self._kinds != [(t.dtype, t.device) for t in now.values()]:
            raise InputError(
                "parameters changed their type or device after job.distribute; call .double(), .half() or .to() "
                "before it"
            )
        for name, parameter in now.items():
            if parameter is not self.names[name] or parameter.requires_grad != (name in self.trained):
                raise self._changed(name)
            if self._has_hooks(parameter):
                raise InputError(
                    f"{name} has a hook, which would see the gradient of one rank before it is summed over ranks; "
                    "expected no Tensor.register_hook and no register_post_accumulate_grad_hook on parameters: read "
                    "or change p.grad after backward()"
                )

        for name, module in self.module.named_modules():
            if module._backward_hooks or module._backward_pre_hooks:
                raise InputError(
                    f"module {name!r} has a backward hook, which would see the gradient of own rows only; expected "
                    "none: read or change p.grad after backward()"
                )

    def _changed(self, name: str) -> InputError:
        return InputError(
            f"{name} was replaced, frozen or made trainable after job.distribute, which gathers the gradients of what "
            "it was given (parametrize, prune, weight_norm, fully_shard and FullyShardedDataParallel replace "
            "parameters too); change the model that this one came from, and distribute that again"
        )

    def _has_hooks(self, parameter: Any) -> bool:
        after = parameter._post_accumulate_grad_hooks or {}
        return bool(parameter._backward_hooks) or not all(map(self._is_ours, after.values()))

    def _is_ours(self, hook: object) -> bool:
        """Whether a hook is that of an owner, or of a recording, which reads no gradient."""
        return is_observer(hook) or (isinstance(hook, WeakHook) and hook.owner in self.owners)
