"""Changes that a plan makes inside the model, recomputation and fused ops, by replacing `forward` of its modules.

Modules stay where they are and keep their names and parameters, so checkpoints and plans still fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.matching import modules_of

__all__ = ["apply", "compiler_obstacle"]


def apply(model: nn.Module, plan: FusionPlan) -> Callable[[], None]:
    """Apply the plan to the model; returns a function that undoes it.

    Consecutive fused modules of a Sequential run as one compiled function in place of the first. Other groups are
    compiled module by module, and without a compiler all are unchanged, with a RuntimeWarning.

    Raises:
        PlanError: The model lacks modules of the plan.
    """
    groups = [modules_of(model, group) for group in plan.fused_ops]
    again = modules_of(model, plan.recompute)
    undo: list[Callable[[], None]] = []
    carrier: dict[nn.Module, nn.Module] = {}
    device = next((p.device.type for p in model.parameters()), "cpu")
    if groups and (reason := compiler_obstacle(device)):
        warnings.warn(f"fused ops stay as they are: {reason}", RuntimeWarning, stacklevel=3)
        groups = []
    for names, group in zip(plan.fused_ops, groups, strict=False):
        carrier |= _fuse(model, names, group, undo)
    for module in dict.fromkeys(carrier.get(m, m) for m in again):
        _replace(module, partial(checkpoint, module.forward, use_reentrant=False), undo)

    def undo_all() -> None:
        while undo:
            undo.pop()()

    return undo_all


@cache
def compiler_obstacle(device: str) -> str:
    """Reason why torch.compile does not work for a device type here; empty if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(_probe)(torch.ones(2, device=device))
    except Exception as error:
        return (
            f"torch.compile failed for {device}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        )
    return ""


def _probe(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def _fuse(
    model: nn.Module, names: Sequence[str], group: list[nn.Module], undo: list[Callable[[], None]]
) -> dict[nn.Module, nn.Module]:
    """Which module computes what the modules of the group did."""
    if len(group) > 1 and not _follow(model, names):
        told = f"{', '.join(names)} do not follow each other in a Sequential; each is compiled alone"
        warnings.warn(told, RuntimeWarning, stacklevel=4)
        for module in group:
            _replace(module, torch.compile(module.forward), undo)
        return {}
    forwards = [module.forward for module in group]
    _replace(group[0], torch.compile(partial(_chain, forwards)), undo)
    for module in group[1:]:
        _replace(module, _same, undo)
    return dict.fromkeys(group, group[0])


def _follow(model: nn.Module, names: Sequence[str]) -> bool:
    parents = {name.rpartition(".")[0] for name in names}
    parent = model.get_submodule(next(iter(parents)))
    children = [name for name, _ in parent.named_children()]
    places = [children.index(name.rpartition(".")[2]) for name in names if len(parents) == 1]
    in_order = places == list(range(places[0], places[0] + len(places))) if places else False
    return in_order and isinstance(parent, nn.Sequential)


def _chain(forwards: Sequence[Callable[..., Any]], x: Any) -> Any:
    for forward in forwards:
        x = forward(x)
    return x


def _same(x: Any) -> Any:
    return x


def _replace(module: nn.Module, forward: Callable[..., Any], undo: list[Callable[[], None]]) -> None:
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward

    def back() -> None:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before

    undo.append(back)
