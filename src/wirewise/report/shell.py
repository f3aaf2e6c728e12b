"""What all pages share: one HTML file that loads nothing, with head line, cards, sections and tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from wirewise.files import atomic_file

__all__ = ["cards", "head", "page", "section", "table", "unbroken", "write_page"]

_NUMBER = re.compile(r"[-+\N{MINUS SIGN}\N{EN DASH}\d]")


def page(title: str, sections: Iterable[str], *, style: str = "", script: str = "") -> str:
    """A whole page; the sections are HTML, the title is text.

    Args:
        title: Of the window.
        sections: In their order.
        style: More rules, after those of all pages.
        script: More script, after that of all pages.
    """
    assets = resources.files("wirewise.report")
    style = (assets / "colours.css").read_text("utf-8") + (assets / "page.css").read_text("utf-8") + style
    script = (assets / "page.js").read_text("utf-8") + script
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - wirewise</title><style>{style}</style></head><body><main>"
        f'{"".join(sections)}</main><div id="tip" role="status"></div>'
        f"<script>{script}</script></body></html>\n"
    )


def write_page(text: str, path: str | os.PathLike[str]) -> None:
    """Write a page or a picture; an older file at `path` stays whole until the new one is complete.

    Args:
        text: HTML or SVG of a whole file.
        path: File to write.

    Raises:
        InputError: The folder or the disk does not take the file.
    """
    with atomic_file(path) as file:
        file.write(text.encode())


def head(kind: str, sentence: str) -> str:
    """The first lines of a page, from text."""
    return f'<header><p class="kind">{escape(kind)}</p><h1>{escape(unbroken(sentence))}</h1></header>'


def section(title: str, lead: str, body: str) -> str:
    """A section from HTML; empty where it has no body."""
    told = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{title}</h2>{told}{body}</section>" if body else ""


def cards(figures: Iterable[tuple[str, str, str]]) -> str:
    """Title, large figure and detail of each card, from text."""
    body = "".join(
        f'<div class="card"><h3>{escape(title)}</h3><p class="big">{escape(value)}</p>'
        f"<p>{escape(unbroken(detail))}</p></div>"
        for title, value, detail in figures
    )
    return f'<div class="cards">{body}</div>'


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table from text; columns of figures are set to the right; empty without rows."""
    cells = [list(row) for row in rows]
    if not cells:
        return ""
    right = [any(_NUMBER.match(row[i]) for row in cells) for i in range(len(titles))]
    right[0] = False

    def line(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="num">{escape(cell)}</{tag}>' if number else f"<{tag}>{escape(cell)}</{tag}>"
            for cell, number in zip(row, right, strict=True)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in cells)
    return (
        f'<div class="scroll"><table><thead><tr>{line("th", titles)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def unbroken(text: str) -> str:
    """The text with numbers tied to their units, so that no line ends between them."""
    return re.sub(r"(?<=\d) (?=(?:%|us|ms|s|min|h|[kMGT]?bit/s|points)\b|%)", "\N{NO-BREAK SPACE}", text)
