"""Parts of the viewer's page common to all programs."""

from __future__ import annotations

__all__ = ["CONTROLS", "panes"]


def _icon(path: str) -> str:
    return f'<svg viewBox="0 0 14 14" aria-hidden="true" focusable="false"><path d="{path}"/></svg>'


def _button(name: str, label: str, path: str, keys: str) -> str:
    return f'<button type="button" id="{name}" aria-label="{label}" title="{label} ({keys})">{_icon(path)}</button>'


CONTROLS = (
    '<div class="bar" role="toolbar" aria-label="Playing">'
    + _button("first", "First step", "M1 1h2.4v12H1zM13 1v12L4 7z", "Home")
    + _button("back", "One step back", "M11 1v12L2 7z", "left arrow")
    + '<button type="button" id="play" aria-pressed="false" title="Play or pause (space)">'
    + _icon("M3 1v12l10-6z")
    + _icon("M2 1h4v12H2zM8 1h4v12H8z")
    + "<span>Play</span></button>"
    + _button("forward", "One step on", "M3 1v12l9-6z", "right arrow")
    + _button("last", "Last step", "M10.6 1H13v12h-2.4zM1 1v12l9-6z", "End")
    + '<input type="range" id="slider" min="0" value="0" aria-label="Moment"><span id="where"></span>'
    '<label>Speed <select id="speed"><option value="0.25">&#188;</option><option value="0.5">&#189;</option>'
    '<option value="1" selected>1</option><option value="2">2</option><option value="4">4</option></select></label>'
    '<fieldset><label><input type="radio" name="mode" id="mode-steps" checked><span>steps</span></label>'
    '<label><input type="radio" name="mode" id="mode-time"><span>time</span></label></fieldset>'
    '<label>Zoom <select id="zoom"><option value="1" selected>1</option><option value="2">2</option>'
    '<option value="4">4</option></select></label>'
    '<label>Ranks <input type="text" id="ranks" size="9" placeholder="all, or 0-7, 12" title="Rows to show"></label>'
    '<label{alone}>Show <select id="left">{options}</select></label>'
    '<label{alone}>beside <select id="right"><option value="-1">nothing</option>{options}</select></label>'
    '<button type="button" id="quiz-toggle" aria-pressed="false" title="Guess the next step (q)">Quiz</button></div>'
    '<div id="quiz" role="group" aria-label="Quiz" hidden></div>'
)

_HEAT = '<li><i class="heat"></i>part of the time that a link is busy, from none to all</li>'
_CUT = '<li><i class="red"></i>the tight cut: no program gets its bytes through it faster</li>'

_MEMORY = (
    "A row is the memory of a rank and a column a chunk, as wide as its part of the data. The colour of a cell is the "
    "rank that its value comes from; "
    "where values are added, a cell has one stripe for each rank whose value is in, and their number; in narrow cells "
    "its height is the logarithm of the number, and green is all. Dashed: has to "
    "be here complete at the end; solid frame: is. "
)
_TIMES = (
    "Arrows are messages, as thick as they are large. Times of a rank: sends above, receives below, in the colour of "
    "the sender. <kbd>space</kbd> plays, <kbd>&#8592;</kbd> <kbd>&#8594;</kbd> go on and back, <kbd>Home</kbd> "
    "<kbd>End</kbd> to the ends"
)
_MORE_KEYS = ", <kbd>m</kbd> changes between steps and time, <kbd>q</kbd> starts the quiz."
_RECORDED = (
    " Grey: the rank is in a collective of a library, whose own messages are not recorded. A message lasts from when "
    "its sender hands it over until it has come."
)


def panes(recorded: bool) -> str:
    """The two panes: memories, times, network; for a recorded run, times and pairs of ranks."""
    stages = "".join(
        f'<div class="pane side{side}"><h3 id="title{side}"></h3><p class="said" id="said{side}" '
        f'aria-live="polite"></p><canvas id="stage{side}" role="img" '
        f'aria-label="Memories of the ranks and the messages between them"></canvas></div>'
        for side in (0, 1)
    )
    times = "".join(
        f'<div class="pane side{side}"><h3 class="again" id="times-title{side}"></h3><div class="over">'
        f'<canvas id="times{side}" role="img" aria-label="Messages of each rank over time"></canvas>'
        f'<div class="now" id="now{side}"></div>'
        "</div></div>"
        for side in (0, 1)
    )
    networks = "".join(
        f'<div class="pane side{side}"><h3 class="again" id="network-title{side}"></h3>'
        f'<div class="network" id="network{side}"></div><p class="cut-words" id="cut{side}"></p></div>'
        for side in (0, 1)
    )
    words = f"{_TIMES}.{_RECORDED}" if recorded else f"{_MEMORY}{_TIMES}{_MORE_KEYS}"
    legend = _HEAT if recorded else _HEAT + _CUT
    return (
        f'<div class="panes">{stages}</div><p class="help">{words}</p><h2 class="part">When</h2>'
        f'<div class="panes">{times}</div><div class="where"><h2 class="part">Where</h2>'
        f'<ul class="legend keys-legend">{legend}</ul><div class="panes">{networks}</div></div>'
    )
