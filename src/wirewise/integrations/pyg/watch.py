"""Notices that attributes of modules changed, so that what was proven about a model is proven again."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.nn import MessagePassing

__all__ = ["ModuleWatch", "Recheck", "frozen", "remember"]

_FREELY = 8
"""Changes of one attribute that are all looked at; later ones at doubling distances, as of a counter of steps."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_INTERNAL = {*vars(nn.Module()), *vars(MessagePassing()), "training", "forward", "_wirewise_step"}
_LONG = 1000


def is_due(count: int, freely: int = _FREELY) -> bool:
    """Whether the n-th change is to be looked at."""
    return count <= freely or count & (count - 1) == 0


class ModuleWatch:
    """Attributes of a module and all modules inside it, compared by value, by identity, or by shape for tensors.

    A comparison of unchanged modules is one of dicts in C, about a microsecond a module.

    Args:
        module: The distributed copy.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._counts: dict[str, int] = {}
        self._states: list[_State] = []
        self._modes: dict[bool, list[bool]] = {}
        self._arguments: Any = None
        self._read()

    def _read(self) -> None:
        self._states = [_State(name, module) for name, module in self.module.named_modules()]

    def changed(self) -> bool:
        """Whether a change since the last call, that is to be looked at, was made."""
        paths = [path for state in self._states for path in state.changes()]
        if any(path.endswith("modules inside") for path in paths):
            self._read()
        return self._count(paths, _FREELY)

    def settle(self) -> bool:
        """Whether the forward itself made a change that is to be looked at, since the last call."""
        return self._count([path for state in self._states for path in state.changes()], 0)

    def mode_changed(self) -> bool:
        """Whether a module inside is in another mode than when the whole was in its present mode before."""
        modes = [state.module.training for state in self._states]
        before = self._modes.get(self.module.training)
        self._modes[self.module.training] = modes
        return before is not None and before != modes and self._count(["training of a module"], _FREELY)

    def arguments_changed(self, args: Any, kwargs: Any) -> bool:
        """Whether arguments other than tensors differ from those of the last call."""
        now = frozen([a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, _PLAIN)])
        before, self._arguments = self._arguments, now
        return before is not None and before != now and self._count(["arguments"], _FREELY)

    def _count(self, paths: list[str], freely: int) -> bool:
        due = False
        for path in paths:
            self._counts[path] = count = self._counts.get(path, 0) + 1
            due |= is_due(count, freely)
        return due


class _State:
    """What a module had for attributes."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self._take()

    def _take(self) -> None:
        self.attributes = {key: value for key, value in vars(self.module).items() if key != "training"}
        self.inside, self.hooks = dict(self.module._modules), self._hooks()
        self.deep = {
            k: frozen(v) for k, v in self.attributes.items() if k not in _INTERNAL and _is_mutable(v)
        }

    def _hooks(self) -> tuple[int, ...]:
        """Number and last of the hooks; torch counts hooks up, and so a new one is never taken for an old one."""
        after, before = self.module._forward_hooks, self.module._forward_pre_hooks
        return len(after), len(before), next(reversed(after), 0), next(reversed(before), 0)

    def changes(self) -> list[str]:
        """Names of what changed since this was asked last."""
        now = vars(self.module)
        # `training` is put in, as dicts are compared fastest whole.
        self.attributes["training"] = now.get("training")
        if (
            _equal(self.attributes, now)
            and self.inside == self.module._modules
            and self.hooks == self._hooks()
            and (not self.deep or all(frozen(now[key]) == value for key, value in self.deep.items()))
        ):
            return []
        found = [key for key in self.attributes.keys() | now.keys() if not self._same(key, now)]
        if self.inside != self.module._modules:
            found.append("modules inside")
        if self.hooks != self._hooks():
            found.append("hooks")
        self._take()
        return [f"{self.name}.{key}" for key in found]

    def _same(self, key: str, now: dict[str, Any]) -> bool:
        if key not in now or key not in self.attributes:
            return False
        if key in self.deep:
            return bool(frozen(now[key]) == self.deep[key])
        return self.attributes[key] is now[key] or bool(frozen(self.attributes[key]) == frozen(now[key]))


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return one == other
    except (RuntimeError, ValueError, TypeError):
        # Tensors and arrays do not say in one word whether they are equal.
        return False


def _is_mutable(value: Any) -> bool:
    return not isinstance(value, (*_PLAIN, Tensor, nn.Module, type, *_CODE)) and not type(
        value
    ).__module__.startswith(("torch", "wirewise"))


_CODE: tuple[type, ...] = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def frozen(value: Any, depth: int = 3) -> Any:
    """Something that stays as it is when the value changes: plain values, shapes of tensors, identities of the rest."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, (nn.Module, type, *_CODE)):
        return value if isinstance(value, types.MethodType) else id(value)
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        if depth == 0 or len(value) > _LONG:
            return type(value), len(value)
        items = value.items() if isinstance(value, dict) else value
        return type(value), tuple(frozen(item, depth - 1) for item in items)
    if depth and hasattr(value, "__dict__") and not type(value).__module__.startswith(("torch", "wirewise")):
        return id(value), frozen(vars(value), depth - 1)
    return id(value)


class Recheck:
    """When to look again: at each new key, every so many calls, and when something was suspicious.

    New keys and suspicions are passed over where they come at more than one call in eight, after the first ones.

    Args:
        every: Calls after which it is looked again in any case.
        freely: Number of new keys and suspicions that are all looked at.
    """

    def __init__(self, every: int, freely: int = _FREELY) -> None:
        self.every, self.freely = every, freely
        self.calls = self._looks = self._last = 0
        self.suspicious = False
        """Look at the next call."""
        self._seen: set[Any] = set()

    def due(self, key: Any) -> bool:
        """Whether to look now; counts the call."""
        self.calls += 1
        new, self.suspicious = self.suspicious or key not in self._seen, False
        if len(self._seen) >= _LONG:
            self._seen.clear()
        if (new and self._looks < self.freely + self.calls / 8) or self.calls - self._last >= self.every:
            self._seen.add(key)
            self._looks, self._last = self._looks + new, self.calls
            return True
        return False


def remember(module: nn.Module) -> Callable[[], None]:
    """Keep the attributes of all modules; the result puts them back, with the contents of lists, dicts and sets."""
    kept = []
    for inner in module.modules():
        own = vars(inner)
        contents = [
            (value, value.copy())
            for key, value in own.items()
            if key not in _INTERNAL and isinstance(value, (list, dict, set))
        ]
        kept.append((own, dict(own), contents))

    def undo() -> None:
        for own, before, contents in kept:
            if own.keys() != before.keys() or any(own[key] is not value for key, value in before.items()):
                own.clear()
                own.update(before)
            for value, copied in contents:
                if isinstance(value, list):
                    value[:] = copied
                else:
                    value.clear()
                    value.update(copied)

    return undo
