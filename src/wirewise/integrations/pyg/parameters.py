"""Parameters of distributed models: which they are, and that they stay as they were when they were distributed."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from wirewise.errors import InputError
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.data_parallel.hooks import WeakHook

__all__ = ["ParameterGuard", "claim", "is_distributed"]

# Beside the parameters, not on them: a parameter with attributes of ours could not be pickled.
_DISTRIBUTED: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
_REDUCERS: weakref.WeakValueDictionary[int, Reducer] = weakref.WeakValueDictionary()


def is_distributed(variable: Tensor) -> bool:
    """Whether a distributed model holds the parameter."""
    return _DISTRIBUTED.get(id(variable)) is variable


def claim(parameters: list[nn.Parameter], reducer: Reducer) -> None:
    """Let one reducer sum the gradients of a back-propagation.

    Raises:
        InputError: Another distributed model with one of the parameters does so already.
    """
    for parameter in parameters:
        other = _REDUCERS.get(id(parameter))
        if other is not None and other.active and other is not reducer:
            raise InputError(
                "two distributed models with the same parameters are in one loss; distribute the model once"
            )
        _REDUCERS[id(parameter)] = reducer


class ParameterGuard:
    """Refuses what a script did to parameters after they were distributed.

    Args:
        module: The distributed copy.
        owners: Classes whose hooks on parameters are ours.
    """

    def __init__(self, module: nn.Module, owners: tuple[type, ...]) -> None:
        self.module, self.owners = module, owners
        self.names = dict(module.named_parameters())
        self.trained = {name for name, parameter in self.names.items() if parameter.requires_grad}
        self._kinds = [(t.dtype, t.device) for t in self.names.values()]
        for parameter in self.names.values():
            _DISTRIBUTED[id(parameter)] = parameter

    def check(self) -> None:
        """Compare with the start.

        Raises:
            InputError: A parameter was converted, wrapped, replaced, added, removed, frozen, thawed or given a hook.
        """
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

    def _changed(self, name: str) -> InputError:
        return InputError(
            f"{name} was replaced, frozen or made trainable after job.distribute, which gathers the gradients of what "
            "it was given (parametrize, prune, weight_norm, fully_shard and FullyShardedDataParallel replace "
            "parameters too); change the model that this one came from, and distribute that again"
        )

    def _has_hooks(self, parameter: Any) -> bool:
        after = parameter._post_accumulate_grad_hooks or {}
        return bool(parameter._backward_hooks) or any(
            not isinstance(hook, WeakHook) or hook.owner not in self.owners for hook in after.values()
        )
