"""Packages that are installed only by extras of wirewise."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wirewise.errors import InputError

__all__ = ["import_extra"]


def import_extra(package: str, extra: str, use: str) -> Any:
    """Import a package of an extra.

    Args:
        package: Name of the module to import.
        extra: Extra of wirewise that installs it.
        use: Subject of the error message, such as "a partition by METIS".

    Raises:
        InputError: The package is not installed; the message names the extra.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if not f"{package}.".startswith(f"{error.name}."):
            raise
        name = package.partition(".")[0]
        raise InputError(
            f"{use} needs the package {name}; install it with: pip install 'wirewise[{extra}]'"
        ) from error
