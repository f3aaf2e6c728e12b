"""Model as a list of modules: their names and input sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wirewise.errors import InputError

__all__ = ["INPUT", "is_list", "layer_sources", "named_layers"]

INPUT = "input"
"""Name of the model's input among the sources of a module."""


def is_list(modules: Any) -> bool:
    """Whether this is a list of modules, rather than a model with its own forward pass."""
    forward = getattr(type(modules), "forward", None)
    lists = ("torch.nn.modules.container", "torch.nn.modules.module")
    return forward is None or (forward.__module__ in lists and isinstance(modules, Iterable))


def named_layers(modules: Any) -> dict[str, Any]:
    """Modules by name, in forward order; a repeated one has two names.

    Args:
        modules: An `nn.Sequential`, `nn.ModuleList` or `nn.ModuleDict`, a mapping from names, or a list, whose
            modules are named by index.

    Raises:
        InputError: The argument is no such list, has no modules, or one is named like the model's input.
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
    names: Iterable[str], sources: Mapping[str, Sequence[str]] | None, inputs: Sequence[str] = (INPUT,)
) -> dict[str, tuple[str, ...]]:
    """Inputs of each module: names of earlier modules, or of model inputs.

    Args:
        names: All modules, in order.
        sources: Sources of modules that do not read the previous module's output; the first one defaults to the first
            input.
        inputs: Names of the model's inputs.

    Raises:
        InputError: Sources are given for an unknown module, or are not earlier modules.
    """
    sources, found, before = dict(sources or {}), dict[str, tuple[str, ...]](), list(inputs)
    for name in names:
        found[name] = tuple(sources.pop(name, (before[-1] if len(before) > len(inputs) else inputs[0],)))
        unknown = [one for one in found[name] if one not in before]
        if unknown or not found[name]:
            raise InputError(
                f"module {name!r} takes {list(found[name])}, of which {unknown} does not come before it; expected one "
                f"or more of: {', '.join(before)}"
            )
        before.append(name)
    if sources:
        raise InputError(
            f"got sources of {sorted(sources)}; expected those of modules: {', '.join(before[len(inputs) :])}"
        )
    return found
