"""Lazy imports of a package's public names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Build a package's `__getattr__`, so that `from package import name` loads only the module that defines the name.

    Args:
        package: Name of the package, its `__name__`.
        names: Public names by module, relative to the package; "name=other" exposes the module's `other` as `name`.
            No name may equal a submodule's, which Python would set in its place.
    """
    modules: dict[str, tuple[str, str]] = {}
    for module, listed in names.items():
        for name in listed:
            public, _, other = name.partition("=")
            modules[public] = f".{module}", other or public

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, inner = modules[name]
        found = getattr(import_module(module, package), inner)
        setattr(sys.modules[package], name, found)
        return found

    return find
