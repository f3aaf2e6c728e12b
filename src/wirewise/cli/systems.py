"""The table of published systems, `systems.toml`: next to the package in a wheel, in docs in a checkout."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import wirewise
from wirewise.errors import InputError

__all__ = ["load_systems", "systems_file"]


def systems_file() -> Path:
    """Path of the table.

    Raises:
        InputError: Neither the wheel's place nor the checkout's holds it.
    """
    package = Path(wirewise.__file__).parent
    places = [package / "systems.toml", package.parents[1] / "docs" / "systems.toml"]
    for place in places:
        if place.is_file():
            return place
    raise InputError(
        f"the table of systems is not at {' or '.join(map(str, places))}; install wirewise again, "
        "or restore docs/systems.toml in the checkout"
    )


def load_systems() -> list[dict[str, Any]]:
    """The systems in the order of the table, each as written there."""
    systems: list[dict[str, Any]] = tomllib.loads(systems_file().read_text(encoding="utf-8"))["system"]
    return systems
