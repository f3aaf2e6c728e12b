"""Sphinx extension: docstrings of attributes and properties are text, in which a colon ends no type.

Napoleon reads "Offsets, [N + 1]: the rows of node i." as a type and its description. Types are annotations here.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon.docstring import GoogleDocstring


def _whole(self: Any) -> tuple[str, list[str]]:
    lines = [self._lines.next(), *self._dedent(self._consume_to_end())]
    return "", self.__class__(lines, self._config).lines()


def setup(app: Sphinx) -> dict[str, bool]:
    """Replace the reader of napoleon."""
    GoogleDocstring._consume_inline_attribute = _whole  # type: ignore[method-assign]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
