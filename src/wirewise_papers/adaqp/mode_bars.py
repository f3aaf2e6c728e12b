"""Bar charts of modes: epoch time by phase, bytes sent, fractions of bit widths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from wirewise.report import figures, shell, svg
from wirewise.report.bars import Bar, Stack, bars_chart, stacks_chart
from wirewise.report.svg import Frame, Scale
from wirewise_papers.adaqp import series
from wirewise_papers.adaqp.lines import colour
from wirewise_papers.adaqp.records import ModeResult, RunResult

__all__ = ["bit_legend", "bits_charts", "bytes_chart", "phase_meanings", "phase_table", "phases_chart"]

_COLUMNS = 60
"""Most columns of one chart of bit widths."""
_ALL_COLUMNS = 400
"""Most columns of all charts of bit widths together, which keeps the page small."""


def phases_chart(result: RunResult) -> str:
    """Mean time of the average rank in each phase, one bar per mode; empty if not timed."""
    means = {name: phases for name, mode in result.modes.items() if (phases := series.mean_phases(mode))}
    rows = [
        Stack(name, phases, figures.seconds(sum(phases.values())), colour=colour(result, name))
        for name, phases in means.items()
    ]
    colours = {phase: _known(phase) for phase in phase_meanings(result)}
    return stacks_chart(rows, colours, "Mean time of an epoch by phase and mode")


def phase_meanings(result: RunResult) -> dict[str, str]:
    """The phases that occur in any mode with their meaning, in the order they are drawn."""
    found = {phase for mode in result.modes.values() for phase in series.mean_phases(mode)}
    order = [p for p in series.PHASES if p in found] + sorted(found - set(series.PHASES))
    return {phase: series.PHASES.get(phase, "as the runtime names it") for phase in order}


def phase_table(result: RunResult) -> str:
    """HTML table of phases: colour, time in each mode, meaning."""
    means = {name: series.mean_phases(mode) for name, mode in result.modes.items()}
    rows = [
        (
            f'<i class="chip p-{_known(phase)}"></i>{escape(phase)}',
            [figures.seconds(phases.get(phase)) for phases in means.values()],
            meaning,
        )
        for phase, meaning in phase_meanings(result).items()
    ]
    return shell.measures_table({name: colour(result, name) for name in means}, rows, "phases")


def bytes_chart(result: RunResult) -> str:
    """Bar chart of payload bytes as packed and bytes counted by the kernel; empty if nothing was sent."""
    bars = [
        Bar(f"{name}, {what}", count, figures.size(count), f"{colour(result, name)}{shade}")
        for name, mode in result.modes.items()
        for what, count, shade in (
            ("payload", mode.bytes_sent, ""),
            ("kernel counter", mode.kernel_bytes_sent, " faint"),
        )
        if count is not None
    ]
    return bars_chart(bars, "Bytes sent by mode")


def bits_charts(result: RunResult) -> str:
    """Fractions of messages by bit width over epochs, one chart per exchange and mode with several widths."""
    mixed = {name: mode for name, mode in result.modes.items() if series.bits_change(mode)}
    charts = sum(len(series.bit_exchanges(mode)) for mode in mixed.values())
    columns = max(8, min(_COLUMNS, _ALL_COLUMNS // max(charts, 1)))
    parts = []
    for name, mode in mixed.items():
        drawn = "".join(
            f"<figure><figcaption>{escape(exchange)}, {figures.bits(series.mean_bits(mode.epochs, exchange))} bits "
            "on the mean</figcaption>"
            f"{_bits_chart(name, mode, exchange, columns)}</figure>"
            for exchange in series.bit_exchanges(mode)
        )
        parts.append(
            f'<h3 class="mode {colour(result, name)}">{escape(name)}</h3><div class="small">{drawn}</div>'
        )
    return "".join(parts)


def bit_legend(result: RunResult) -> str:
    """The bit widths that occur with their colours, as HTML."""
    found = {
        bits
        for mode in result.modes.values()
        if series.bits_change(mode)
        for record in mode.epochs
        for counts in record.bits.values()
        for bits in counts
    }
    return shell.legend({f"{bits} bit": _bit_class(bits) for bits in sorted(found)})


def _bits_chart(name: str, mode: ModeResult, exchange: str, columns: int) -> str:
    """Shares of one exchange: a column an epoch, or one for a run of epochs with the same counts."""
    frame = Frame(46, 6, 252, 108)
    runs = _runs(mode, exchange)
    kept = [runs[i] for i in svg.thin(len(runs), columns)]
    if not kept:
        return ""
    first, last = kept[0].first, kept[-1].last
    x = Scale(first, last + 1, frame.left, frame.right)
    shapes: dict[int, list[str]] = {}
    hover = []
    for number, run in enumerate(kept):
        # Runs that were left out are covered by the one before them.
        end = kept[number + 1].first if number + 1 < len(kept) else last + 1
        left, wide, top = svg.number(x(run.first)), x(end) - x(run.first), frame.bottom
        for bits, share in series.shares(run.counts).items():
            high = share * (frame.bottom - frame.top)
            top -= high
            box = f"M{left} {top:.1f}h{wide + 0.3:.1f}v{high:.1f}h{-wide - 0.3:.1f}z"
            shapes.setdefault(bits, []).append(box)
        tip = f"{name}, {exchange}, {run.words()}"
        hover.append(svg.rect(x(run.first), frame.top, wide, frame.bottom - frame.top, "clear", tip))
    parts = [f'<path d="{"".join(boxes)}" class="{_bit_class(bits)}"/>' for bits, boxes in shapes.items()]
    parts += [
        svg.text(frame.left - 6, frame.top + 8, "100 %", "tick", "end"),
        svg.text(frame.left - 6, frame.bottom, "0", "tick", "end"),
        svg.text(frame.left, frame.bottom + 16, f"epoch {first}", "tick"),
        svg.text(frame.right, frame.bottom + 16, str(last), "tick", "end"),
    ]
    label = f"Messages of {name} by bit width in {exchange} over epochs"
    return svg.document(256, 130, label, "".join(parts + hover))


@dataclass(frozen=True)
class _Run:
    """Consecutive epochs with the same counts."""

    first: int
    last: int
    counts: dict[int, int]

    def words(self) -> str:
        when = f"epoch {self.first}" if self.first == self.last else f"epochs {self.first} to {self.last}"
        shown = ", ".join(f"{b} bit {100 * share:.1f} %" for b, share in series.shares(self.counts).items())
        mean = sum(b * n for b, n in self.counts.items()) / sum(self.counts.values())
        return f"{when}: {shown}; mean {mean:.2f} bits"


def _runs(mode: ModeResult, exchange: str) -> list[_Run]:
    runs: list[_Run] = []
    for record in mode.epochs:
        counts = {b: n for b, n in sorted(record.bits.get(exchange, {}).items()) if n}
        if not counts:
            continue
        if runs and runs[-1].counts == counts:
            runs[-1] = _Run(runs[-1].first, record.epoch, counts)
        else:
            runs.append(_Run(record.epoch, record.epoch, counts))
    return runs


def _bit_class(bits: int) -> str:
    return f"b{2 ** round(math.log2(min(max(bits, 1), 32)))}"


def _known(phase: str) -> str:
    return phase if phase in series.PHASES else "other"
