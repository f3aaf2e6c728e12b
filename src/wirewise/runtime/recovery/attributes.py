"""State changed by training that is in no `state_dict`: plain attributes of optimizers and modules.

A count of steps, a scale, a queue of losses, a generator of random numbers, also in objects that an attribute holds.
Changing attributes are detected by comparing all of them; only those are copied in each step and sent to
replacements. Values that cannot be copied, such as functions or handles, are skipped.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wirewise.runtime.trees import Tree, copy_into, digest_of

__all__ = ["Attributes", "decoded", "encode_value"]

_DEPTH, _MOST = 4, 4096
"""Objects in objects that are copied, and entries of one container; more is data, which training does not change."""
_SKIPPED = {"__kind__": "skipped"}
_SMALL = 2**16
"""Bytes of attributes that are kept as they were at the beginning."""
_NUMBERS = (bool, int, float, str, type(None))
_KINDS = {"set": set, "frozenset": frozenset}


class Attributes:
    """Plain attributes of some objects.

    Args:
        owners: Objects, by their name in messages.

    Attributes:
        names: Attributes detected to change, each with its owner's name.
    """

    def __init__(self, owners: Mapping[str, Any]) -> None:
        self._owners = dict(owners)
        self._first = self._digests()
        self._start = {
            key: copy_into(encode_value(self._value(key))) for key, size in self._sizes() if size <= _SMALL
        }
        self.names: set[tuple[str, str]] = set()

    def detect_changes(self) -> None:
        """Detect attributes that have changed since construction."""
        self.names |= {key for key, digest in self._digests().items() if self._first.get(key) != digest}

    def state(self) -> Tree:
        """Values of the changing attributes; tensors are references."""
        found: dict[str, dict[str, Any]] = {}
        for owner, name in sorted(self.names):
            if name in vars(self._owners[owner]):
                found.setdefault(owner, {})[name] = encode_value(vars(self._owners[owner])[name])
        return found

    def of(self, kind: type) -> Tree:
        """Values of the changing attributes of owners of one kind."""
        return {
            owner: values for owner, values in self.state().items() if isinstance(self._owners[owner], kind)
        }

    def load(self, tree: Tree) -> None:
        """Load values from `state`, here or on another rank; missing attributes get their initial values."""
        for owner, name in self.names:
            if name not in tree.get(owner, {}) and (owner, name) in self._start:
                held = vars(self._owners[owner])
                held[name] = decoded(copy_into(self._start[owner, name]), held.get(name))
        for owner, values in tree.items():
            held = vars(self._owners[owner])
            for name, value in values.items():
                self.names.add((owner, name))
                held[name] = decoded(copy_into(value), held.get(name))

    def _value(self, key: tuple[str, str]) -> Any:
        return vars(self._owners[key[0]])[key[1]]

    def _sizes(self) -> list[tuple[tuple[str, str], int]]:
        """Attributes and the bytes of those that are tensors or arrays."""
        return [(key, getattr(self._value(key), "nbytes", 0)) for key in self._first]

    def _digests(self) -> dict[tuple[str, str], Any]:
        seen: set[int] = set()
        return {
            (owner, name): value if type(value) in _NUMBERS else digest_of(tree)
            for owner, one in self._owners.items()
            for name, value in list(_plain(one))
            if (tree := encode_value(value, visited=seen)) is not _SKIPPED
        }


def _plain(owner: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of an object but for what torch itself keeps in it."""
    known: set[str] = set()
    if type(owner).__module__.startswith("torch._dynamo"):
        return
    if isinstance(owner, nn.Module):
        known = _OF_MODULES
    elif isinstance(owner, Optimizer):
        known = _OF_OPTIMIZERS
    for name, value in vars(owner).items():
        if name not in known and not callable(value):
            yield name, value


_OF_MODULES = set(vars(nn.Module())) - {"training"}
_OF_OPTIMIZERS = set(vars(torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=0.0)))


def encode_value(value: Any, depth: int = _DEPTH, visited: set[int] | None = None) -> Tree:
    """Encode a value as a tree without code; unsupported parts are marked.

    Args:
        value: Number, text, tensor, container or object with attributes.
        depth: Maximum nesting depth of objects.
        visited: Identities of objects already visited, which are skipped.
    """
    visited = set() if visited is None else visited
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, Tensor):
        return _SKIPPED if value.grad_fn is not None or value.is_meta else value.detach()
    if isinstance(value, np.ndarray | np.generic):
        return _encoded_array(value)
    if (state := _state_of_generator(value)) is not None:
        return {"__kind__": "generator", "state": state}
    if isinstance(value, nn.Module | Optimizer) or callable(value) or id(value) in visited or not depth:
        return _SKIPPED
    visited.add(id(value))
    if type(value) in (list, tuple, deque, set, frozenset):
        return _encoded_items(value, depth, visited)
    if isinstance(value, dict):
        return _encoded_entries(value, depth, visited)
    # Objects of torch, such as those of its compiler, belong to a process.
    if hasattr(value, "__dict__") and not type(value).__module__.startswith("torch."):
        parts = {name: encode_value(one, depth - 1, visited) for name, one in list(_plain(value))}
        return {"__kind__": "object", "parts": parts} if len(parts) <= _MOST else _SKIPPED
    return _SKIPPED


def _encoded_array(value: Any) -> Tree:
    if value.dtype.kind not in "biuf":
        return _SKIPPED
    data = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else torch.empty(0)
    kind = "array" if isinstance(value, np.ndarray) else "scalar"
    return {"__kind__": kind, "dtype": value.dtype.str, "shape": list(value.shape), "data": data}


def _encoded_items(value: Any, depth: int, seen: set[int]) -> Tree:
    if len(value) > _MOST:
        return _SKIPPED
    ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    items = [encode_value(one, depth - 1, seen) for one in ordered]
    if type(value) in (list, tuple):
        return type(value)(items)
    more = {"maxlen": value.maxlen} if isinstance(value, deque) else {}
    return {"__kind__": type(value).__name__, "items": items, **more}


def _encoded_entries(value: dict[Any, Any], depth: int, seen: set[int]) -> Tree:
    if len(value) > _MOST or any(type(key) not in (bool, int, float, str, bytes) for key in value):
        return _SKIPPED
    return {
        "__kind__": "dict",
        "parts": {key: encode_value(one, depth - 1, seen) for key, one in value.items()},
    }


def decoded(tree: Tree, old: Any = None) -> Any:
    """Decode a tree, in place if the old value has the same type.

    Args:
        tree: Result of `encode_value`.
        old: Value to replace; keeps what a tree cannot hold.
    """
    if isinstance(tree, Tensor):
        if isinstance(old, Tensor) and (old.shape, old.dtype) == (tree.shape, tree.dtype) and old.is_leaf:
            with torch.no_grad():
                return old.copy_(tree)
        return tree.to(old.device) if isinstance(old, Tensor) else tree
    if isinstance(tree, list | tuple):
        before = list(old) if isinstance(old, list | tuple) and len(old) == len(tree) else [None] * len(tree)
        items = [decoded(one, its) for one, its in zip(tree, before, strict=True)]
        if isinstance(tree, tuple):
            return tuple(items)
        if isinstance(old, list):
            old[:] = items
            return old
        return items
    return _decoded_kind(tree, old) if isinstance(tree, Mapping) else tree


def _decoded_kind(tree: Mapping[str, Any], old: Any) -> Any:
    kind = tree["__kind__"]
    if kind in ("array", "scalar"):
        array = np.frombuffer(tree["data"].numpy().tobytes(), dtype=np.dtype(tree["dtype"]))
        array = array.reshape(tree["shape"]).copy()
        return array if kind == "array" else array[()]
    if kind == "generator":
        _set_generator(old, tree["state"])
    elif kind in ("set", "frozenset"):
        return _KINDS[kind](decoded(one) for one in tree["items"])
    elif kind == "deque":
        return deque((decoded(one) for one in tree["items"]), tree["maxlen"])
    elif kind == "dict":
        new = {
            key: decoded(one, old.get(key) if isinstance(old, dict) else None)
            for key, one in tree["parts"].items()
        }
        if not isinstance(old, dict):
            return new
        old.clear()
        old.update(new)
    elif kind == "object" and old is not None:
        for name, one in tree["parts"].items():
            vars(old)[name] = decoded(one, vars(old).get(name))
    return old


def _state_of_generator(value: Any) -> Tree:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return _texts(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _texts(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return [version, list(words), gauss]
    return None


def _texts(state: Any) -> Tree:
    """State of a generator of numpy, whose numbers may have more than 64 bits."""
    if isinstance(state, Mapping):
        return {key: _texts(one) for key, one in state.items()}
    if isinstance(state, np.ndarray):
        return {"__words__": [str(one) for one in state.tolist()], "dtype": state.dtype.str}
    return str(state) if type(state) is int else state


def _numbers(state: Tree) -> Any:
    if isinstance(state, Mapping):
        if "__words__" in state:
            return np.array([int(one) for one in state["__words__"]], dtype=np.dtype(state["dtype"]))
        return {key: _numbers(one) for key, one in state.items()}
    return int(state) if isinstance(state, str) and state.lstrip("-").isdigit() else state


def _set_generator(generator: Any, state: Tree) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _numbers(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_numbers(state))
    elif isinstance(generator, random.Random):
        generator.setstate((state[0], tuple(state[1]), state[2]))
