"""Sphinx extension: `{page-ages}` draws one row for each published page whose code has changed since it was written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import guard

_MOST_NAMES = 4


def rows() -> list[str]:
    """Lines of the table, the page with the most changes first."""
    tree = guard.Tree()
    lines = [
        "| page | date, commit | changed since | lines of the header that no script writes |",
        "|---|---|---|---|",
    ]
    for stem, seal, changed in sorted(tree.ages(), key=lambda age: -len(age[2])):
        date = re.search(r"\d{4}-\d\d-\d\d", tree.pages[stem])
        names = [f"`{name}`" for name in changed[:_MOST_NAMES]]
        if len(changed) > _MOST_NAMES:
            names.append(f"{len(changed) - _MOST_NAMES} more")
        if changed or seal.by_hand:
            when = f"{date[0] if date else 'not recorded'}, {seal.commit}"
            lines.append(
                f"| `{stem}` | {when} | {', '.join(names) or 'nothing'} | {', '.join(seal.by_hand) or '-'} |"
            )
    return lines


class _Ages(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(rows()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("page-ages", _Ages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
