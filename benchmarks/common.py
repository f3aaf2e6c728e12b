"""What the benchmark scripts share: command line, medians, verdicts, and the page that they print and write."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import seals
import wirewise
from wirewise import lab
from wirewise.files import atomic_file
from wirewise.results import EpochRecord
from wirewise.topology import processor

MOST_LOAD = 3.0
"""Load average on two processors above which a page warns of its seconds."""


def basic_parser(description: str) -> argparse.ArgumentParser:
    """The options of every benchmark: --preset, --out and --report-only."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--preset", choices=("smoke", "paper"), default="smoke")
    parser.add_argument("--out", type=Path, help="Markdown file that takes the page.")
    parser.add_argument(
        "--report-only", action="store_true", help="Exit with 0 even where a threshold was not met."
    )
    return parser


def arguments(description: str, rows: Sequence[str], **others: Sequence[str]) -> argparse.Namespace:
    """Basic options and --only; --only and options for other lists of names are checked against the names."""
    parser = basic_parser(description)
    parser.add_argument("--only", type=lambda text: chosen(text, rows), default=list(rows), metavar="ROW,...")
    for name, known in others.items():
        parser.add_argument(
            f"--{name}",
            type=lambda text, known=known: chosen(text, known),
            default=list(known),
            metavar=f"{name.upper()},...",
        )
    return parser.parse_args()


def chosen(text: str, rows: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in rows]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected some of {','.join(rows)}")
    return names


def spread(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Median and quartiles: "12.1 (11.9 to 12.6)"."""
    low, median, high = np.percentile(np.asarray(values) * scale, [25, 50, 75])
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def need_lab() -> None:
    """End the script, saying why, where no lab can be built."""
    possible, reason = lab.available()
    if not possible:
        raise SystemExit(f"no lab can be built here: {reason}")


def verdict(value: float | None, *, least: float | None = None, most: float | None = None) -> str:
    """The threshold and whether the value meets it; both ends belong to what is allowed."""
    ends = ((">=", least), ("<=", most))
    bounds = [f"{sign} {bound:.4g}" for sign, bound in ends if bound is not None]
    held = (
        value is not None
        and np.isfinite(value)
        and (least is None or value >= least)
        and (most is None or value <= most)
    )
    return f"{' and '.join(bounds)}: {'holds' if held else 'FAILS'}"


def paired(reference: Sequence[float], other: Sequence[float]) -> np.ndarray:
    """Speed against a reference, turn by turn: both numbers of a ratio were measured next to each other."""
    count = min(len(reference), len(other))
    return np.asarray(reference[:count]) / np.asarray(other[:count])


class Page:
    """A Markdown page that is printed while it grows."""

    def __init__(self, title: str, preset: str, facts: Mapping[str, str]) -> None:
        self._started, self._parts, self._out = time.perf_counter(), [], None
        self._failed, self._preset = 0, preset
        # As it is now: a long run outlives changes of the tree.
        self._code, self._commit = measured(), seals.commit()
        self.add(f"# {title}, {date.today().isoformat()}")
        lines = {
            "Hardware": hardware(), "Versions": versions(), "Commit": self._commit, "Command": f"`{command()}`",
            "Priority": priority(),
        }  # fmt: skip
        if os.getloadavg()[0] > MOST_LOAD:
            facts = {**facts, "Caution": "load was high at the start; figures of seconds may be too high"}
        self.add("\n".join(f"- {k}: {v}" for k, v in {**lines, "Preset": preset, **facts}.items()))

    def add(self, text: str) -> None:
        print(text + "\n", flush=True)
        self._parts.append(text)

    @contextmanager
    def table(self, *titles: str) -> Iterator[Callable[..., None]]:
        """A function that adds a row; cells are written as `str` gives them."""
        lines: list[str] = []

        def row(*cells: object) -> None:
            lines.append("| " + " | ".join(str(c) for c in cells) + " |")
            print(lines[-1], flush=True)
            self._failed += sum("FAILS" in str(c) for c in cells)

        row(*titles)
        row(*["---"] * len(titles))
        yield row
        print(flush=True)
        self._parts.append("\n".join(lines))

    def finish(self, options: argparse.Namespace) -> None:
        """Write the page and judge it: sizes of the smoke preset are too small for the thresholds.

        Raises:
            SystemExit: A threshold was not met, and neither --report-only nor the smoke preset was chosen.
        """
        seconds = time.perf_counter() - self._started
        smoke = self._preset == "smoke"
        judged = " Smoke: not judged." if smoke else ""
        self.add(f"Whole script: {seconds:.0f} s. Thresholds that were not met: {self._failed}.{judged}")
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(seals.sealed("\n\n".join(self._parts), self._commit, self._code))
        if self._failed and not smoke and not options.report_only:
            raise SystemExit(f"thresholds that were not met: {self._failed} (marked FAILS above)")


class KeptFigures(UserDict[str, Any]):
    """What was measured, by a key, also in a file, so that a long run can be made in pieces; remove it to start anew.

    Figures that are older than the code are left out, as another program measured them.

    Args:
        path: File beside the page; None: figures are not kept.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self._path, self._at_s = path, dict[str, float]()
        if path is not None and path.exists():
            packages = Path(__file__).parent, Path(wirewise.__file__).parent
            code_s = max(file.stat().st_mtime for package in packages for file in package.rglob("*.py"))
            for key, (at_s, value) in msgspec.json.decode(path.read_bytes()).items():
                if at_s > code_s:
                    self.data[key], self._at_s[key] = value, at_s

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key], self._at_s[key] = msgspec.to_builtins(value), time.time()
        if self._path is not None:
            with atomic_file(self._path) as file:
                file.write(
                    msgspec.json.encode({key: (self._at_s[key], one) for key, one in self.data.items()})
                )


class Quiet:
    """Hears of a run and says nothing."""

    def start(self, modes: list[str], epochs: int) -> None: ...

    def epoch(self, mode: str, record: EpochRecord) -> None: ...

    def note(self, text: str) -> None: ...

    def finish(self) -> None: ...


def hardware() -> str:
    model, _ = processor()
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} processors, {model}; load average at the start {load:.1f}"


def versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numba", "numpy"))
    here = f"Python {platform.python_version()}, wirewise {wirewise.__version__}"
    return f"{here}, {packages}, Linux {platform.release()}"


def priority() -> str:
    """Priority of the script, processors that it may use, and the quota of its control group."""
    quota, period = "max", "1"
    with suppress(OSError, ValueError):
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        quota, period = (Path("/sys/fs/cgroup") / group / "cpu.max").read_text().split()
    limit = "no quota" if quota == "max" else f"a quota of {int(quota) / int(period):.2f} processors"
    return f"nice {os.nice(0)}, {len(os.sched_getaffinity(0))} processors allowed, {limit}"


def measured() -> dict[str, str]:
    """Digests of the code behind this script; none for a script outside benchmarks/."""
    try:
        return seals.measured_code(seals.script_of(command()))
    except ValueError:
        return {}


def command() -> str:
    script = Path(sys.argv[0]).resolve()
    root = Path(__file__).resolve().parents[1]
    shown = script.relative_to(root) if script.is_relative_to(root) else Path(script.name)
    return shlex.join(["python", str(shown), *sys.argv[1:]])


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wirewise-bench-") as folder:
        yield Path(folder)
