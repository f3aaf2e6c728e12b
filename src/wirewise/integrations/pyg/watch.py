"""Detection of changed module attributes, which trigger a new proof of the model."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.nn import MessagePassing

from wirewise.integrations.pyg.budget import Interval

__all__ = ["CheckInterval", "ModuleWatch", "freeze_value", "remember"]

_FREELY = 8
"""First changes of an attribute that are all checked; later ones at doubling distances, such as a step counter's."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_INTERNAL = {*vars(nn.Module()), *vars(MessagePassing()), "training", "forward", "_wirewise_step"}
_LONG = 1000
_DICTS = 4
"""Dicts of a module, its attributes first."""


def is_due(count: int, free_checks: int = _FREELY) -> bool:
    """Whether the n-th change is to be checked."""
    return count <= free_checks or count & (count - 1) == 0


class ModuleWatch:
    """Attributes of a module and its submodules, compared by value, by identity, or by shape for tensors.

    Unchanged modules are compared as lists of dicts in C: 5 microseconds for 16 modules.

    Args:
        module: The distributed copy.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._counts: dict[str, int] = {}
        self._states: list[_State] = []
        self._modes: dict[bool, list[bool]] = {}
        self._arguments: Any = None
        self._kept: dict[bool, list[dict[Any, Any]]] = {}
        """Contents of all dicts of all modules when nothing had changed, by the mode of the whole."""
        self._read()

    def _read(self) -> None:
        self._states = [_State(name, module) for name, module in self.module.named_modules()]
        self._dicts = [held for state in self._states for held in state.dicts()]
        self._own = [n for n, state in enumerate(self._states) if not n or state.is_of_script()]
        self._deep = [state for state in self._states if state.deep]
        self._kept.clear()

    def changed(self, *, briefly: bool = False) -> bool:
        """Whether a change since the last call needs a check; train and eval mode count.

        Args:
            briefly: Check only attributes of the whole module and of modules of the script's own classes.
        """
        if self._same(briefly):
            return False
        paths = self._changes()
        if any(path.endswith("modules inside") for path in paths):
            self._read()
        due = self._count(paths, _FREELY)
        due |= self._mode_changed()
        self._keep()
        return due

    def _same(self, briefly: bool = False) -> bool:
        """Whether all is as it was in the present mode, by one comparison in C."""
        kept = self._kept.get(self.module.training)
        if kept is None:
            return False
        if briefly:
            return all(_equal(kept[_DICTS * n], self._dicts[_DICTS * n]) for n in self._own)
        return _equal(kept, self._dicts) and all(state.deeply_same() for state in self._deep)

    def _keep(self) -> None:
        self._deep = [state for state in self._states if state.deep]
        self._kept[self.module.training] = [dict(held) for held in self._dicts]

    def detect_changes(self) -> bool:
        """Whether the forward pass itself made a change that needs a check, since the last call."""
        if self._same():
            return False
        # Modes of modules are compared at the next call only.
        self._kept.clear()
        return self._count(self._changes(), 0)

    def _changes(self) -> list[str]:
        # Nearly always nothing; a list of lists would take half as long again.
        return [path for state in self._states if not state.unchanged() for path in state.changes()]

    def _mode_changed(self) -> bool:
        """Whether a module inside is in another mode than when the whole was in its present mode before."""
        modes = [state.module.training for state in self._states]
        before = self._modes.get(self.module.training)
        self._modes[self.module.training] = modes
        return before is not None and before != modes and self._count(["training of a module"], _FREELY)

    def arguments_changed(self, args: Any, kwargs: Any) -> bool:
        """Whether arguments other than tensors differ from those of the last call."""
        leaves = [leaf for leaf in (*args, *kwargs.values()) if not isinstance(leaf, Tensor)]
        if not leaves and not self._arguments:
            # Tensors alone, as mostly.
            self._arguments = ()
            return False
        if not all(isinstance(leaf, _PLAIN) for leaf in leaves):
            # A walk of nests takes 20 microseconds, also where there are none.
            leaves = pytree.tree_leaves(leaves)
        now = tuple(leaf for leaf in leaves if isinstance(leaf, _PLAIN))
        before, self._arguments = self._arguments, now
        return before is not None and before != now and self._count(["arguments"], _FREELY)

    def _count(self, paths: list[str], freely: int) -> bool:
        due = False
        for path in paths:
            self._counts[path] = count = self._counts.get(path, 0) + 1
            due |= is_due(count, freely)
        return due


class _State:
    """Attributes of a module at an earlier time."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module = name, module
        self.now = vars(module)
        """Attributes of the module as they are at any time."""
        self._take()

    def dicts(self) -> tuple[dict[Any, Any], ...]:
        """All dicts in which a change may be made."""
        now = self.now
        return now, now["_modules"], now["_forward_hooks"], now["_forward_pre_hooks"]

    def is_of_script(self) -> bool:
        """Whether the class of the module is the script's own."""
        return not type(self.module).__module__.startswith(("torch.", "torch_geometric."))

    def _take(self) -> None:
        self.attributes = {key: value for key, value in self.now.items() if key != "training"}
        self.inside, self.hooks = dict(self.module._modules), self._hooks()
        self.deep = {
            k: freeze_value(v) for k, v in self.attributes.items() if k not in _INTERNAL and _is_mutable(v)
        }

    def _hooks(self) -> tuple[int, ...]:
        """Number and last of the hooks; torch counts hooks up, and so a new one is never taken for an old one."""
        after, before = self.now["_forward_hooks"], self.now["_forward_pre_hooks"]
        return len(after), len(before), next(reversed(after), 0), next(reversed(before), 0)

    def unchanged(self) -> bool:
        """Whether all is as it was when a change was asked for last."""
        now = self.now
        # `training` is put in, as dicts are compared fastest whole.
        self.attributes["training"] = now.get("training")
        return (
            _equal(self.attributes, now)
            and self.inside == now["_modules"]
            and self.hooks == self._hooks()
            and self.deeply_same()
        )

    def deeply_same(self) -> bool:
        """Whether the contents of mutable attributes are as they were."""
        return all(freeze_value(self.now[key]) == value for key, value in self.deep.items())

    def changes(self) -> list[str]:
        """Names of what changed since this was asked last."""
        now = self.now
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
            return bool(freeze_value(now[key]) == self.deep[key])
        return self.attributes[key] is now[key] or bool(
            freeze_value(self.attributes[key]) == freeze_value(now[key])
        )


def _equal(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (RuntimeError, ValueError, TypeError):
        # Tensors and arrays do not say in one word whether they are equal.
        return False


def _is_mutable(value: Any) -> bool:
    return not isinstance(value, (*_PLAIN, Tensor, nn.Module, type, *_CODE)) and not type(
        value
    ).__module__.startswith(("torch", "wirewise"))


_CODE: tuple[type, ...] = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def freeze_value(value: Any, depth: int = 3) -> Any:
    """Return an immutable fingerprint of a value: plain values, tensor shapes, identities of all else."""
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
        return type(value), tuple(freeze_value(item, depth - 1) for item in items)
    if depth and hasattr(value, "__dict__") and not type(value).__module__.startswith(("torch", "wirewise")):
        return id(value), freeze_value(vars(value), depth - 1)
    return id(value)


class CheckInterval:
    """Schedule of checks: at each new key, at intervals, and on suspicion.

    After the first ones, new keys and suspicions are skipped if they occur at more than one call in eight.

    Args:
        interval: Calls between unconditional checks.
        free_checks: Number of new keys and suspicions that are always checked.
    """

    def __init__(self, interval: Interval, free_checks: int = _FREELY) -> None:
        self.interval, self.freely = interval, free_checks
        self.calls = self._looks = 0
        self.suspicious = False
        """Look at the next call."""
        self._seen: set[Any] = set()

    def due(self, key: Any) -> bool:
        """Whether to check now; counts the call."""
        self.calls += 1
        new, self.suspicious = self.suspicious or key not in self._seen, False
        if len(self._seen) >= _LONG:
            self._seen.clear()
        looks = new and self._looks < self.freely + self.calls / 8
        if self.interval.due(self.calls, force=looks):
            self._seen.add(key)
            self._looks += new
            return True
        return False


def remember(module: nn.Module) -> Callable[[], None]:
    """Save the attributes of all modules; returns a function that restores them, including lists, dicts and sets."""
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
