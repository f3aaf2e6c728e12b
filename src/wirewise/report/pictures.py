"""Pictures of a page, each as a separate SVG file with title, legend and chart, for slides and documents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

from wirewise.errors import InputError
from wirewise.report import svg
from wirewise.report.shell import write_page

__all__ = ["Picture", "is_page", "pictures_of", "write_pictures"]

_MARGIN, _LINE = 20.0, 22.0
_LEAST_WIDTH = 420.0
"""Narrower charts, such as small multiples, keep room for their title."""
_PIECES = re.compile(
    r"<h[23][^>]*>(?P<title>.*?)</h[23]>|<figcaption[^>]*>(?P<caption>.*?)</figcaption>"
    r'|<ul class="legend">(?P<legend>.*?)</ul>|(?P<chart><svg [^>]*role="img".*?</svg>)',
    re.DOTALL,
)
_ITEM = re.compile(r'<li>(?:<i class="chip (?P<colour>[^"]*)"></i>)?(?P<name>.*?)</li>', re.DOTALL)
_SIZE = re.compile(r'viewBox="\S+ \S+ (\S+) (\S+)"')
_HEAD = re.compile(rb"\s*<!doctype html", re.IGNORECASE)


class Picture(NamedTuple):
    """Chart of a page."""

    title: str
    """Heading of its section or caption, as text."""
    svg: str
    """A whole SVG file, in light or dark colours as the viewer prefers."""


def is_page(path: str | os.PathLike[str]) -> bool:
    """Whether a file starts like a report page."""
    try:
        with Path(path).open("rb") as file:
            return _HEAD.match(file.read(64)) is not None
    except OSError:
        return False


def pictures_of(page: str) -> list[Picture]:
    """Extract the charts of a report page, except those that its script draws later.

    Args:
        page: HTML of the page.
    """
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    return list(_pictures(re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL), style))


def _pictures(page: str, style: str) -> Iterator[Picture]:
    title, caption, legend = "", "", list[tuple[str, str]]()
    for piece in _PIECES.finditer(page):
        if piece["title"] is not None:
            title, caption, legend = _text(piece["title"]), "", []
        elif piece["caption"] is not None:
            caption = _text(piece["caption"])
        elif piece["legend"] is not None:
            legend = [(item["colour"] or "", _text(item["name"])) for item in _ITEM.finditer(piece["legend"])]
        elif size := _SIZE.search(piece["chart"]):
            name = ", ".join(filter(None, (title, caption))) or "picture"
            yield Picture(name, _file(name, legend, piece["chart"], (float(size[1]), float(size[2])), style))


def _text(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html)).strip()


def _file(
    title: str, legend: list[tuple[str, str]], chart: str, size: tuple[float, float], style: str
) -> str:
    width = max(size[0], _LEAST_WIDTH)
    meanings, below = _legend(legend, _MARGIN + _LINE, width)
    height = below + size[1] + _MARGIN
    place = (
        f'<svg x="{svg.number(_MARGIN)}" y="{svg.number(below)}" width="{size[0]:g}" height="{size[1]:g}" '
    )
    outer = f"{svg.number(width + 2 * _MARGIN)} {svg.number(height)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {outer}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        '<rect width="100%" height="100%" style="fill:var(--paper)"/>'
        f"{svg.text(_MARGIN, _MARGIN + 14, title, 'title')}{meanings}{chart.replace('<svg ', place, 1)}</svg>\n"
    )


def _legend(legend: list[tuple[str, str]], top: float, width: float) -> tuple[str, float]:
    """Chips with their meanings, in lines of at most `width` pixels, and where the chart begins below them."""
    parts, x, y = list[str](), _MARGIN, top + 8
    for colour, name in legend:
        room = 18 + svg.text_width(name) + 20
        if x > _MARGIN and x + room > _MARGIN + width:
            x, y = _MARGIN, y + _LINE
        if colour:
            parts.append(svg.rect(x, y, 12, 12, f"bar {colour}"))
        parts.append(svg.text(x + 18 if colour else x, y + 10, name))
        x += room
    return "".join(parts), (y + _LINE if legend else y) + 4


def write_pictures(page: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Write every chart of a page into a folder, as `01-title.svg` and so on.

    Args:
        page: HTML file of a report.
        folder: Output folder; created if missing.

    Raises:
        InputError: The page is unreadable or has no chart, or the folder is not writable.
    """
    try:
        text = Path(page).read_text("utf-8")
        pictures = pictures_of(text)
        Path(folder).mkdir(parents=True, exist_ok=True)
    except UnicodeDecodeError as error:
        raise InputError(f"{page} is no page of wirewise: it is not UTF-8") from error
    except OSError as error:
        raise InputError(f"cannot use {error.filename}: {error.strerror}") from error
    if not pictures:
        raise InputError(
            f"{page} has no charts; expected a page that a command wrote with --html, other than one that a script "
            "draws, such as that of a collective"
        )
    files = []
    for number, picture in enumerate(pictures, 1):
        slug = re.sub(r"[^a-z0-9]+", "-", picture.title.lower()).strip("-")[:48].strip("-")
        files.append(Path(folder) / f"{number:02d}-{slug or 'picture'}.svg")
        write_page(picture.svg, files[-1])
    return files
