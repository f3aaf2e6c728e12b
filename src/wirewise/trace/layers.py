"""A model as a list of modules: their names, and where each takes its inputs from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wirewise.errors import InputError

__all__ = ["INPUT", "is_list", "layer_sources", "named_layers"]

INPUT = "input"
"""Name of what the model is given, among the sources of a module."""


def is_list(modules: Any) -> bool:
    """Whether this is a list of modules, rather than a model with a forward pass of its own."""
    forward = getattr(type(modules), "forward", None)
    lists = ("torch.nn.modules.container", "torch.nn.modules.module")
    return forward is None or (forward.__module__ in lists and isinstance(modules, Iterable))


def named_layers(modules: Any) -> dict[str, Any]:
    """Modules by name, in the order of the forward pass; one that stands twice has two names.

    Args:
        modules: An `nn.Sequential`, `nn.ModuleList` or `nn.ModuleDict`, a mapping from names, or a list, whose modules
            are called by their number.

    Raises:
        InputError: Something else, no modules, or one that is called as the model's input is.
    """
    if not is_list(modules):
        raise InputError(
            f"got a {type(modules).__name__} with a forward pass of its own; expected a list of modules: "
            "`wirewise.runtime.pipeline.LayerGraph(model)` has its `modules` and `sources`"
        )
    # `named_children` would leave out a module that stands in the list again.
    inside = getattr(modules, "_modules", modules)
    if not isinstance(modules, Iterable):
        raise InputError(
            f"got a {type(modules).__name__}; expected a list of modules, each of which feeds the next, an "
            "nn.Sequential, or modules by name"
        )
    pairs = inside.items() if isinstance(inside, Mapping) else enumerate(inside)
    named = {str(name): module for name, module in pairs}
    if not named or INPUT in named or not all(hasattr(one, "named_parameters") for one in named.values()):
        raise InputError(
            f"got modules {list(named)[:20]}; expected at least one, each an nn.Module, none of them named {INPUT!r}"
        )
    return named


def layer_sources(
    names: Iterable[str], given: Mapping[str, Sequence[str]] | None, inputs: Sequence[str] = (INPUT,)
) -> dict[str, tuple[str, ...]]:
    """What each module is called with: names of modules that come before it, or of what the model is given.

    Args:
        names: All modules, in order.
        given: Sources of those that do not take the output of the one before.
        inputs: Names of what the model is given.

    Raises:
        InputError: Sources of another module, or some that do not come before.
    """
    given, found, before = dict(given or {}), dict[str, tuple[str, ...]](), list(inputs)
    for name in names:
        found[name] = tuple(given.pop(name, (before[-1],)))
        unknown = [one for one in found[name] if one not in before]
        if unknown or not found[name]:
            raise InputError(
                f"module {name!r} takes {list(found[name])}, of which {unknown} does not come before it; expected one "
                f"or more of: {', '.join(before)}"
            )
        before.append(name)
    if given:
        raise InputError(
            f"got sources of {sorted(given)}; expected those of modules: {', '.join(before[len(inputs) :])}"
        )
    return found
