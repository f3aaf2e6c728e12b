"""What all pages share: one HTML file that loads nothing, with head line, cards, sections and tables."""

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
    "explained",
    "figure",
    "head",
    "legend",
    "notes",
    "page",
    "section",
    "table",
    "terms",
    "unbroken",
    "write_page",
]

ROOMY = 3
"""Most columns of a table that has room for the meanings of its rows."""
_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\.?\d")
_NOTHING = ("", "-", "\N{EN DASH}")


def page(title: str, sections: Iterable[str], *, style: str = "", script: str = "") -> str:
    """A whole page; the sections are HTML, the title is text.

    Args:
        title: Text of the browser's window.
        sections: HTML of the page in its order.
        style: Rules that follow those of all pages.
        script: Script that follows that of all pages.
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


def figure(chart: str, legend: str = "") -> str:
    """A drawing below its legend, from HTML; empty where there is no drawing."""
    return f"{legend}<figure>{chart}</figure>" if chart else ""


def legend(colours: Mapping[str, str], remark: str = "") -> str:
    """Meanings of colours, from text.

    Args:
        colours: CSS class of the colour of each meaning.
        remark: Text that follows, without a colour.
    """
    items = "".join(f'<li><i class="chip {kind}"></i>{escape(name)}</li>' for name, kind in colours.items())
    return f'<ul class="legend">{items}{f"<li>{escape(remark)}</li>" if remark else ""}</ul>'


def notes(title: str, sentences: Iterable[str], facts: Mapping[str, str] | None = None) -> str:
    """A section of sentences and of facts by name, from text; empty without both."""
    items = "".join(f"<li>{escape(unbroken(text))}</li>" for text in sentences)
    return section(title, "", (f'<ul class="how">{items}</ul>' if items else "") + terms(facts or {}))


def terms(meanings: Mapping[str, str], kind: str = "") -> str:
    """Names with what they mean, from text; a command is set as code.

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
        f"<p>{escape(unbroken(detail))}</p></div>"
        for title, value, detail in figures
    )
    return f'<div class="cards">{body}</div>' if body else ""


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table from text; columns of figures are set to the right; empty without rows."""
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


def explained(
    columns: Mapping[str, str], rows: Iterable[tuple[str, Sequence[str], str]], kind: str = ""
) -> str:
    """A table with a row a measure: its name, a figure for each column, what it means.

    The meanings are left out where the columns take their room, and on narrow screens.

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


def unbroken(text: str) -> str:
    """The text with numbers tied to their units, so that no line ends between them."""
    return re.sub(
        r"(?<=\d) (?=(?:%|us|ms|s|min|h|[kMGT]?bit/s|[kMGT]?B|points)\b|%)", "\N{NO-BREAK SPACE}", text
    )
