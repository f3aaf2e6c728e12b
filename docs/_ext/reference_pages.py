"""Sphinx extension: a page of reference for each public package and module, made from its `__all__` at every build.

`{reference-table}` draws one row for each, with the first line of its docstring and a link to its page.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import wirewise
import wirewise_papers

# The command line is no interface for programs.
_HIDDEN = ("wirewise.cli", "wirewise.__main__")
# Packages that only hold modules; what starts ranks is no part of the interface.
_SHELVES = ("wirewise", "wirewise.integrations")
_FOLDER = Path("reference") / "generated"


def public_names() -> Iterator[str]:
    """Names of the packages that export something, and of the modules on `_SHELVES`."""
    packages = chain(
        pkgutil.walk_packages(wirewise.__path__, "wirewise."),
        pkgutil.walk_packages(wirewise_papers.__path__, "wirewise_papers."),
    )
    for module in packages:
        parent, _, name = module.name.rpartition(".")
        if module.name.startswith(_HIDDEN) or name.startswith("_") or name.endswith("_worker"):
            continue
        if (module.ispkg or parent in _SHELVES or name == "experiment") and _exports(module.name):
            yield module.name


def _exports(name: str) -> list[str]:
    """What a package or module exports, made visible for autodoc where it is imported on first use."""
    module = importlib.import_module(name)
    exported: list[str] = getattr(module, "__all__", [])
    vars(module).update({word: getattr(module, word) for word in exported})
    return exported


def _page(name: str, names: list[str]) -> str:
    options = [":members:", ":imported-members:"]
    module = sys.modules[name]
    elsewhere = [word for word in _exports(name) if _is_of_another(getattr(module, word), name, names)]
    if elsewhere:
        options.append(f":exclude-members: {', '.join(elsewhere)}")
    parent, _, last = name.rpartition(".")
    if last in _exports(parent) and callable(getattr(sys.modules[parent], last)):
        # A planner and the package that holds it have one name, and the index has room for one.
        options.append(":no-index:")
    lines = [name, "=" * len(name), "", f".. automodule:: {name}"]
    lines += [f"   {option}" for option in options]
    if elsewhere:
        words = ", ".join(f"``{word}``" for word in elsewhere)
        lines += ["", f"Also here, and on the pages of their own packages: {words}."]
    return "\n".join([*lines, ""])


def _is_of_another(found: object, name: str, names: list[str]) -> bool:
    """Whether another package, in which a class is defined, exports it too."""
    home = getattr(found, "__module__", None)
    if not isinstance(found, type) or home is None or home.startswith(name):
        return False
    others = [other for other in names if other != name and home.startswith(f"{other}.")]
    return any(found.__name__ in _exports(other) for other in others)


def _write_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir) / _FOLDER
    folder.mkdir(exist_ok=True)
    names = list(public_names())
    pages = {f"{name}.rst": _page(name, names) for name in names}
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for file, text in pages.items():
        path = folder / file
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


class _Table(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        rows = [
            f"| [`{name}`](generated/{name}.rst) | {(importlib.import_module(name).__doc__ or '').splitlines()[0]} |"
            for name in public_names()
        ]
        return self.parse_text_to_nodes("\n".join(["| package | holds |", "|---|---|", *rows]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before sources are read, and register the directive."""
    app.connect("builder-inited", _write_pages)
    app.add_directive("reference-table", _Table)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
