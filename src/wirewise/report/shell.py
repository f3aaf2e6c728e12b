"""Common parts of all pages: one self-contained HTML file with headline, cards, sections and tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources

from wirewise.files import atomic_file

__all__ = [
    "ROOMY",
    "cards",
    "figure",
    "head",
    "legend",
    "measures_table",
    "notes",
    "page",
    "section",
    "table",
    "terms",
    "tie_units",
    "write_page",
]

ROOMY = 3
"""Maximum number of columns of a table that also shows the meanings of its rows."""
_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\.?\d")
_NOTHING = ("", "-", "\N{EN DASH}")


def page(title: str, sections: Iterable[str], *, style: str = "", script: str = "") -> str:
    """Render a whole page; the sections are HTML, the title is text.

    Args:
        title: Title of the window.
        sections: HTML sections, in order.
        style: CSS appended to that of all pages.
        script: Script appended to that of all pages.
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
    """Write a page or a picture atomically.

    Args:
        text: Complete HTML or SVG.
        path: File to write.

    Raises:
        InputError: The folder is not writable.
    """
    with atomic_file(path) as file:
        # Names of files may hold bytes that are no text.
        file.write(text.encode(errors="backslashreplace"))


def head(kind: str, sentence: str) -> str:
    """Headline of a page, from text."""
    return f'<header><p class="kind">{escape(kind)}</p><h1>{escape(tie_units(sentence))}</h1></header>'


def section(title: str, lead: str, body: str) -> str:
    """Section from HTML; empty without a body."""
    told = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{title}</h2>{told}{body}</section>" if body else ""


def figure(chart: str, legend: str = "") -> str:
    """Drawing below its legend, from HTML; empty without a drawing."""
    return f"{legend}<figure>{chart}</figure>" if chart else ""


def legend(colours: Mapping[str, str], remark: str = "") -> str:
    """Colour legend, from text.

    Args:
        colours: CSS class of the colour for each meaning.
        remark: Text after the legend.
    """
    items = "".join(f'<li><i class="chip {kind}"></i>{escape(name)}</li>' for name, kind in colours.items())
    return f'<ul class="legend">{items}{f"<li>{escape(remark)}</li>" if remark else ""}</ul>'


def notes(title: str, sentences: Iterable[str], facts: Mapping[str, str] | None = None) -> str:
    """Section of sentences and named facts, from text; empty without both."""
    items = "".join(f"<li>{escape(tie_units(text))}</li>" for text in sentences)
    return section(title, "", (f'<ul class="how">{items}</ul>' if items else "") + terms(facts or {}))


def terms(meanings: Mapping[str, str], kind: str = "") -> str:
    """Definition list, from text; commands are set as code.

    Args:
        meanings: Meaning or value of each name.
        kind: CSS class of the list.
    """
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if name == 'command' else escape(text)}"
        "</dd></div>"
        for name, text in meanings.items()
    )
    return f'<dl class="{kind}">{rows}</dl>' if rows else ""


def cards(figures: Iterable[tuple[str, str, str]]) -> str:
    """Title, large figure and detail of each card, from text; empty without cards."""
    body = "".join(
        f'<div class="card"><h3>{escape(title)}</h3><p class="big">{escape(value)}</p>'
        f"<p>{escape(tie_units(detail))}</p></div>"
        for title, value, detail in figures
    )
    return f'<div class="cards">{body}</div>' if body else ""


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table from text, with numeric columns right-aligned; empty without rows."""
    cells = [list(row) for row in rows]
    if not cells:
        return ""
    right = [i > 0 and _figures(row[i] for row in cells) for i in range(len(titles))]

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


def _figures(cells: Iterable[str]) -> bool:
    """Whether at least half of the cells that say something begin with a number."""
    told = [cell.strip() for cell in cells if cell.strip() not in _NOTHING]
    return 2 * sum(bool(_NUMBER.match(cell)) for cell in told) >= len(told)


def measures_table(
    columns: Mapping[str, str], rows: Iterable[tuple[str, Sequence[str], str]], kind: str = ""
) -> str:
    """Table with one row per measure: its name, a figure for each column, and its meaning.

    Meanings are omitted if there are many columns, and on narrow screens.

    Args:
        columns: CSS class of the colour of each column's title.
        rows: Name as HTML, figures and meaning as text.
        kind: CSS class of the table.
    """
    head = "".join(
        f'<th scope="col" class="num"><span class="mode {colour}">{escape(name)}</span></th>'
        for name, colour in columns.items()
    )
    body = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td class="num">{escape(cell)}</td>' for cell in cells)
        + f'<td class="meaning">{escape(meaning)}</td></tr>'
        for name, cells, meaning in rows
    )
    many = " many" if len(columns) > ROOMY else ""
    return (
        f'<div class="scroll"><table class="modes {kind}{many}"><thead><tr><td></td>{head}<td class="meaning"></td>'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def tie_units(text: str) -> str:
    """Join numbers to their units with non-breaking spaces."""
    return re.sub(
        r"(?<=\d) (?=(?:%|us|ms|s|min|h|[kMGT]?bit/s|[kMGT]?B|points)\b|%)", "\N{NO-BREAK SPACE}", text
    )
