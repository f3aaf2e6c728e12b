"""Progress display: a bar per mode in a terminal, lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from wirewise.report import figures
from wirewise.report.tables import plain_console
from wirewise.results import EpochRecord

__all__ = ["TrainingProgress"]

_LINES = 10
"""Lines that a mode writes where there is no terminal."""


class _ModeState:
    """Reports of one mode so far."""

    def __init__(self) -> None:
        self.done = 0
        self.spent_s = 0.0
        self.last_s = 0.0
        self.loss: float | None = None
        self.validation: float | None = None

    def take(self, record: EpochRecord) -> None:
        self.done += 1
        self.spent_s += record.train_s + record.eval_s
        self.last_s = record.train_s
        self.loss = record.loss
        self.validation = record.accuracy.get("validation", self.validation)

    def left_s(self, epochs: int) -> float:
        return max(epochs - self.done, 0) * self.spent_s / max(self.done, 1)


class TrainingProgress:
    """Progress display of modes.

    Args:
        to_stderr: Write to standard error, so that standard output stays free for a result.
    """

    def __init__(self, to_stderr: bool = False) -> None:
        self._console: Console = plain_console(to_stderr=to_stderr)
        self._states: dict[str, _ModeState] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars: Progress | None = None
        self._epochs = 0

    def start(self, modes: list[str], epochs: int) -> None:
        """Begin training of `modes` for `epochs` epochs each."""
        self.finish()
        self._epochs = epochs
        self._states = {mode: _ModeState() for mode in modes}
        self._tasks = {}
        if self._console.is_terminal:
            self._bars = _bars(self._console)
            self._tasks = {
                mode: self._bars.add_task("", total=epochs, mode=mode, told="waiting", left="")
                for mode in modes
            }
            self._bars.start()

    def epoch(self, mode: str, record: EpochRecord) -> None:
        """Update after a finished epoch of a mode."""
        state = self._states.setdefault(mode, _ModeState())
        state.take(record)
        left = f"{figures.seconds(state.left_s(self._epochs))} left" if state.done < self._epochs else "done"
        if self._bars is None:
            if self._line_due(state):
                width = max(map(len, self._states))
                self._write(f"{mode:<{width}}  epoch {state.done}/{self._epochs}  {_told(state)}  {left}")
        elif mode in self._tasks:
            self._bars.update(self._tasks[mode], completed=state.done, told=_told(state), left=left)

    def note(self, text: str) -> None:
        """Write a line, above the bars if there are any."""
        self._write(text)

    def finish(self) -> None:
        """End the display; idempotent."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _line_due(self, state: _ModeState) -> bool:
        before, now = ((d * _LINES) // max(self._epochs, 1) for d in (state.done - 1, state.done))
        return state.done == 1 or now > before

    def _write(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)


def _bars(console: Console) -> Progress:
    # Text from outside, such as a mode's name, is not markup.
    return Progress(
        TextColumn("{task.fields[mode]}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}", markup=False),
        TextColumn("{task.fields[told]}", markup=False),
        TextColumn("{task.fields[left]}", style="dim", markup=False),
        console=console,
    )


def _told(state: _ModeState) -> str:
    parts = [f"loss {figures.plain(state.loss)}"]
    if state.validation is not None:
        parts.append(f"validation {figures.percent(state.validation)}")
    parts.append(f"{figures.seconds(state.last_s)}/epoch")
    return "  ".join(parts)
