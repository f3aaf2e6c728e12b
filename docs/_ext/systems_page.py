"""Sphinx extension: pages made from `systems.toml`, so that the table has one source.

`{systems-table}` draws one row for each system, `{systems-details}` a section for each, and `{questions}` the
questions of the landing page with the systems that answer them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_FILE = Path(__file__).parents[1] / "systems.toml"
_STATUS = {"done": "ready", "partial": "in part", "planned": "planned"}


def _systems() -> list[dict[str, Any]]:
    systems: list[dict[str, Any]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["system"]
    return systems


def _paper(system: dict[str, Any]) -> str:
    paper = system["paper"]
    where = ", ".join(str(paper[key]) for key in ("venue", "year") if paper.get(key))
    arxiv = f" [arXiv:{paper['arxiv']}](https://arxiv.org/abs/{paper['arxiv']})" if paper.get("arxiv") else ""
    authors = f"{paper['authors']}: " if paper.get("authors") else ""
    return f"{authors}*{paper['title']}*. {where}.{arxiv}"


def _code(words: list[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


class _Generated(SphinxDirective):
    """A directive whose Markdown is made from the table."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(_FILE))
        return self.parse_text_to_nodes("\n".join(self.lines()), allow_section_headings=True)

    def lines(self) -> list[str]:
        raise NotImplementedError


class _Table(_Generated):
    def lines(self) -> list[str]:
        rows = [
            f"| [{s['title']}](#{s['name']}) | {s['question']} | {_STATUS[s['status']]} |" for s in _systems()
        ]
        return ["| system | question | state |", "|---|---|---|", *rows]


class _Details(_Generated):
    def lines(self) -> list[str]:
        return [line for system in _systems() for line in _section(system)]


def _section(system: dict[str, Any]) -> list[str]:
    items = {
        "State": _STATUS[system["status"]],
        "Paper": _paper(system),
        "Command": _code([system["command"]]) if system.get("command") else "",
        "Front door": _code([system["front_door"]]),
        "Parts": _code(system["parts"]),
        "Shown here": system.get("reproduced", ""),
        "Not here": system.get("missing", ""),
        "Tests": _code(system.get("tests", [])),
        "Benchmarks": _code(system.get("benchmarks", [])),
    }
    rows = [f"- **{name}**: {' '.join(text.split())}" for name, text in items.items() if text]
    return [f"({system['name']})=", f"## {system['title']}", "", *rows, ""]


class _Questions(_Generated):
    def lines(self) -> list[str]:
        answers: dict[str, list[str]] = {}
        for system in _systems():
            link = f"[{system['title']}](systems.md#{system['name']})"
            note = "" if system["status"] != "planned" else " (planned)"
            answers.setdefault(system["question"], []).append(link + note)
        lines = ["| question | systems |", "|---|---|"]
        return lines + [f"| **{question}** | {', '.join(links)} |" for question, links in answers.items()]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("systems-table", _Table)
    app.add_directive("systems-details", _Details)
    app.add_directive("questions", _Questions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
