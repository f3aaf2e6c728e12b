"""Bar charts of modes: where an epoch's time goes, bytes sent, shares of bit widths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from wirewise.report import figures, series, svg
from wirewise.report.lines import colour
from wirewise.report.svg import Frame, Scale
from wirewise.results import ModeResult, RunResult

__all__ = ["bit_legend", "bits_charts", "bytes_chart", "phase_meanings", "phase_table", "phases_chart"]

_COLUMNS = 60
"""Most columns of one chart of bit widths."""
_ALL_COLUMNS = 400
"""Most columns of all charts of bit widths together, which keeps the page small."""


def phases_chart(result: RunResult, width: float = 820) -> str:
    """One stacked bar a mode: mean seconds of the mean rank in each phase; empty where none was timed."""
    means = {name: phases for name, mode in result.modes.items() if (phases := series.mean_phases(mode))}
    longest = max((sum(phases.values()) for phases in means.values()), default=0.0)
    if not longest:
        return ""
    left, step = _label_space(list(means)), 46.0
    x = Scale(0.0, longest, left, width - 90)
    parts = []
    for row, (name, phases) in enumerate(means.items()):
        top, at, total = 6 + step * row, left, sum(phases.values())
        parts.append(svg.text(left - 12, top + 20, name, f"label {colour(result, name)}", "end"))
        for phase, value in phases.items():
            wide = x(value) - left
            tip = f"{name}, {phase}: {figures.seconds(value)} ({100 * value / total:.1f} % of the epoch)"
            parts.append(svg.rect(at, top, wide, 30, f"p-{_known(phase)} seg", tip))
            for words in (f"{phase} {figures.seconds(value)}", phase):
                if svg.text_width(words, 11.5) + 8 < wide:
                    parts.append(svg.text(at + 6, top + 19.5, words, f"inside on-{_known(phase)}"))
                    break
            at += wide
        parts.append(svg.text(at + 8, top + 20, figures.seconds(total), "label"))
    return svg.document(width, step * len(means), "Mean time of an epoch by phase and mode", "".join(parts))


def phase_meanings(result: RunResult) -> dict[str, str]:
    """The phases that occur in any mode with their meaning, in the order they are drawn."""
    found = {phase for mode in result.modes.values() for phase in series.mean_phases(mode)}
    order = [p for p in series.PHASES if p in found] + sorted(found - set(series.PHASES))
    return {phase: series.PHASES.get(phase, "as the runtime names it") for phase in order}


def phase_table(result: RunResult) -> str:
    """The phases that occur with colour, meaning and seconds in each mode, as an HTML table."""
    means = {name: series.mean_phases(mode) for name, mode in result.modes.items()}
    head = "".join(
        f'<th scope="col" class="num"><span class="mode {colour(result, name)}">{escape(name)}</span></th>'
        for name in means
    )
    rows = "".join(
        f'<tr><th scope="row"><i class="chip p-{_known(phase)}"></i>{escape(phase)}</th>'
        + "".join(f'<td class="num">{figures.seconds(p.get(phase))}</td>' for p in means.values())
        + f'<td class="meaning">{escape(meaning)}</td></tr>'
        for phase, meaning in phase_meanings(result).items()
    )
    return f'<thead><tr><td></td>{head}<td class="meaning"></td></tr></thead><tbody>{rows}</tbody>'


def bytes_chart(result: RunResult, width: float = 820) -> str:
    """Two bars a mode: payload as packed and what the kernel counted; empty where nothing was sent."""
    rows: list[tuple[str, str, int, str]] = []
    for name, mode in result.modes.items():
        rows.append((name, "payload", mode.bytes_sent, ""))
        if mode.kernel_bytes_sent is not None:
            rows.append((name, "kernel counter", mode.kernel_bytes_sent, " faint"))
    largest = max((count for _, _, count, _ in rows), default=0)
    if not largest:
        return ""
    left = _label_space(list(result.modes)) + 104
    x = Scale(0.0, largest, left, width - 100)
    parts, top, before = [], 4.0, None
    for name, what, count, shade in rows:
        if name != before:
            top += 8 if before is not None else 0
            parts.append(svg.text(left - 116, top + 15, name, f"label {colour(result, name)}", "end"))
        before = name
        words = figures.size(count)
        parts.append(svg.text(left - 10, top + 15, what, "tick", "end"))
        parts.append(
            svg.rect(
                left,
                top,
                x(count) - left,
                20,
                f"bar {colour(result, name)}{shade}",
                f"{name}, {what}: {words}",
            )
        )
        parts.append(svg.text(x(count) + 8, top + 15, words, "label"))
        top += 24
    return svg.document(width, top + 2, "Bytes sent by mode", "".join(parts))


def bits_charts(result: RunResult) -> str:
    """For each mode with several widths one chart an exchange: shares of messages by width over epochs."""
    mixed = {name: mode for name, mode in result.modes.items() if series.bits_change(mode)}
    charts = sum(len(series.bit_exchanges(mode)) for mode in mixed.values())
    columns = max(8, min(_COLUMNS, _ALL_COLUMNS // max(charts, 1)))
    parts = []
    for name, mode in mixed.items():
        drawn = "".join(
            f"<figure><figcaption>{escape(exchange)}, {figures.bits(series.mean_bits(mode, exchange))} bits "
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
    items = "".join(f'<li><i class="chip {_bit_class(bits)}"></i>{bits} bit</li>' for bits in sorted(found))
    return f'<ul class="legend">{items}</ul>'


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


def _label_space(names: list[str]) -> float:
    return 24 + max((svg.text_width(name, 12.5) for name in names), default=0.0)
