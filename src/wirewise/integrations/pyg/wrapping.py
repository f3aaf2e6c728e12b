"""Refusal of wrapping, copying or pickling a distributed model, and of wrapped models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from wirewise.errors import InputError

__all__ = ["refuse_wrapped", "refuse_wrappers"]


def refuse_wrapped(model: nn.Module) -> None:
    """Raise if a module cannot be distributed because it is compiled, wrapped, lazy or already distributed.

    Raises:
        InputError: There is such a module; the message names it.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"job.distribute got a {type(model).__name__}; expected a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch._dynamo.OptimizedModule) or getattr(module, "_compiled_call_impl", None):
            raise InputError(
                f"{name or type(model).__name__} is compiled already; expected a plain module: compile what "
                "job.distribute returns"
            )
        lazy = [p for p, t in module.named_parameters(recurse=False) if nn.parameter.is_lazy(t)]
        if lazy or any(nn.parameter.is_lazy(b) for b in module.buffers(recurse=False)):
            raise InputError(
                f"{name or type(model).__name__} is a {type(module).__name__} whose sizes are not known yet (-1 or a "
                "lazy module); expected parameters: call the model once on some rows on one process before "
                "job.distribute, or give the number of inputs"
            )
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            raise InputError(f"{name or 'the model'} is a {type(module).__name__}; give the module inside it")
        if "_wirewise_step" in vars(module):
            raise InputError(
                f"{name or type(model).__name__} is distributed already; give job.distribute the model that it came "
                "from"
            )


def refuse_wrappers(module: nn.Module) -> None:
    """Make wrappers that would reduce gradients a second time, pickling and copying raise an error that names them."""
    attributes: dict[str, Any] = {
        # DistributedDataParallel iterates over it when it is made.
        "_ddp_params_and_buffers_to_ignore": _Refuses(
            "DistributedDataParallel around a distributed model would average gradients that are summed over ranks "
            "already; use what job.distribute returned as it is"
        ),
        "_replicate_for_data_parallel": _refusal(
            "torch.nn.DataParallel around a distributed model would call it on parts of the rows; use what "
            "job.distribute returned as it is"
        ),
        "__deepcopy__": _refusal(
            "a distributed model cannot be copied, as by copy.deepcopy or AveragedModel; copy the model that it came "
            "from, which has the same parameters"
        ),
        "__reduce_ex__": _refusal(
            "a distributed model cannot be pickled, as by torch.save(model), since it belongs to the ranks of one run; "
            "save model.state_dict(), or the model that it came from"
        ),
    }
    for name, value in attributes.items():
        object.__setattr__(module, name, value)


def _refusal(message: str) -> Callable[..., NoReturn]:
    return functools.partial(_refuse, message)


def _refuse(message: str, *_: Any, **__: Any) -> NoReturn:
    raise InputError(message)


class _Refuses:
    """A collection that raises when it is read."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __iter__(self) -> NoReturn:
        raise InputError(self.message)
