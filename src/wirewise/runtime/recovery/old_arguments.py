"""Arguments that `protect` took before its strategy objects, refused with the form that replaces them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from wirewise.errors import InputError
from wirewise.runtime.recovery.arguments import Checkpoints, Ranks, State
from wirewise.runtime.recovery.sync import DDP, Backward, Buckets, Fold, Shards

__all__ = ["OLD_ARGUMENTS", "new_form", "refuse_old_arguments"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SYNC = {kind.name: kind for kind in (Buckets, DDP, Fold, Backward)}
_REDUCTION = ("through", "plan", "unused", "compression", "mirrored", "consistency", "shard", "replicas")
_STATE = ("schedulers", "scaler", "clip", "objects")
_CHECKPOINTS = {"checkpoint_every": "every", "accept_changes": "accept_changes"}
_RANKS = ("timeout_s", "device", "backend", "compare_every")
OLD_ARGUMENTS = (*_REDUCTION, *_STATE, *_CHECKPOINTS, *_RANKS)
"""Names of all former arguments that are fields of a strategy object now."""


def refuse_old_arguments(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function raise for former arguments, by the form that replaces them; its signature stays."""

    @functools.wraps(call)
    def wrapper(*args: _P.args, **named: _P.kwargs) -> _R:
        old = {name: value for name, value in named.items() if name in OLD_ARGUMENTS}
        if old:
            raise InputError(_refusal(old, named.get("checkpoints")))
        return call(*args, **named)

    return wrapper


def new_form(old: Mapping[str, Any], folder: Any = None) -> dict[str, str]:
    """Current arguments that replace former ones, as source text by name.

    Args:
        old: Values of former arguments, by name.
        folder: Folder of checkpoints that was given with them. Defaults to the name `folder`.
    """
    found: dict[str, str] = {}
    if reduction := {name: value for name, value in old.items() if name in _REDUCTION}:
        found["sync"] = _sync(reduction)
    if state := {name: old[name] for name in _STATE if name in old}:
        found["state"] = f"{State.__name__}({_listed(state)})"
    if saving := {new: old[name] for name, new in _CHECKPOINTS.items() if name in old}:
        place = "folder" if folder is None else _text("folder", folder)
        found["checkpoints"] = f"{Checkpoints.__name__}({place}, {_listed(saving)})"
    if ranks := {name: old[name] for name in _RANKS if name in old}:
        found["ranks"] = f"{Ranks.__name__}({_listed(ranks)})"
    return found


def _refusal(old: Mapping[str, Any], folder: Any) -> str:
    form = new_form(old, folder)
    kinds = ", ".join(text.partition("(")[0] for text in form.values())
    new = ", ".join(f"{name}={text}" for name, text in form.items())
    without = _left_out(old)
    left = f", without {', '.join(without)}, which it never used" if without else ""
    return f"protect(..., {_listed(old)}) is now {new}{left}; import {kinds} from wirewise.runtime.recovery"


def _sync(old: Mapping[str, Any]) -> str:
    kind = _kind(old)
    if kind is Shards:
        return f"{Shards.__name__}(shard, replicas={old.get('replicas') or 2})"
    own = {one.name for one in fields(kind)}
    given = {name: value for name, value in old.items() if name in own and name != "plan"}
    # Mirrors and compression are of codecs, which a plan has.
    planned = old.get("plan") is not None or given.get("mirrored") or given.get("compression") is not None
    parts = ["plan"] if planned and "plan" in own else []
    return f"{kind.__name__}({', '.join([*parts, *_parts(given)])})"


def _kind(old: Mapping[str, Any]) -> type[Buckets | DDP | Fold | Backward | Shards]:
    if old.get("shard") is not None or old.get("replicas"):
        return Shards
    return _SYNC.get(old.get("through", Buckets.name), Buckets)


def _left_out(old: Mapping[str, Any]) -> list[str]:
    """Former arguments of the reduction that had no effect with its strategy, which has no such field."""
    kept = {"through", "shard", "replicas", *(one.name for one in fields(_kind(old)))}
    return [name for name in old if name in _REDUCTION and name not in kept]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(_parts(values))


def _parts(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{name}={_text(name, value)}" for name, value in values.items())


def _text(name: str, value: Any) -> str:
    """A value as source text; an object is told by the name of its argument."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return repr(list(value))
    return name
