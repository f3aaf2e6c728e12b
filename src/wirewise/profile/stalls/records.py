"""Files written by the ranks of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError, PeerError
from wirewise.profile.stalls.data import LANE

__all__ = ["Lanes", "ProfiledRun", "read_run"]


@dataclass(frozen=True)
class Lanes:
    """Sums over all items served by the data sets of a run."""

    fetch_s: float = 0.0
    prepare_s: float = 0.0
    items: int = 0
    hits: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Fraction of cached items. None if no item was counted."""
        return self.hits / self.items if self.items else None


@dataclass(frozen=True)
class ProfiledRun:
    """Measurements of one run."""

    step_s: NDArray[np.float64]
    """Seconds of each measured step, mean over ranks."""
    facts: dict[str, Any]
    """Facts of rank 0: its loader and its gradients."""
    lanes: Lanes


def read_run(folder: Path, ranks: int, warmup: int, steps: int, ending: str) -> ProfiledRun:
    """Read the files of all ranks.

    Args:
        folder: Folder of the run.
        ranks: Number of ranks.
        warmup: Steps to leave out.
        steps: Number of steps after the warm-up.
        ending: Description of how the job ended, with its last log lines.

    Raises:
        PeerError: The script failed.
        InputError: The script stepped no optimizer, too few times, or has no loader.
    """
    series = [_times(folder / f"rank-{rank}.steps") for rank in range(ranks)]
    needed = 1 + warmup + steps
    least = min(len(times) for times in series)
    path = folder / "rank-0.json"
    facts = dict(json.loads(path.read_text())) if path.exists() else {}
    if least < needed:
        raise _shortage(least, needed, facts, ending)
    if not facts.get("loaders"):
        raise InputError(
            "the script steps an optimizer but never iterates a torch.utils.data.DataLoader, so its data cannot "
            "be taken apart; load data through a DataLoader"
        )
    measured = np.stack([np.diff(times[:needed])[warmup:] for times in series])
    return ProfiledRun(measured.mean(axis=0), facts, _lanes(folder))


def _shortage(found: int, needed: int, facts: dict[str, Any], ending: str) -> Exception:
    if not ending.startswith("exit code 0"):
        return PeerError(f"the script failed after {found} of {needed} optimizer steps, {ending}")
    if found:
        return InputError(
            f"the script ended by itself after {found} optimizer steps of a rank; expected {needed}: the first, "
            "warm-up and measured ones. Give fewer --steps, or let it train longer"
        )
    loads = "iterated a DataLoader but" if facts.get("loaders") else "iterated no DataLoader and"
    return InputError(
        f"the script {loads} never stepped a torch.optim optimizer in a rank of the command; expected a training "
        f"script started by torchrun, or one rank by python. It ended with {ending}"
    )


def _times(path: Path) -> NDArray[np.float64]:
    if not path.exists():
        return np.empty(0)
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) // 8 * 8], dtype="<f8")


def _lanes(folder: Path) -> Lanes:
    contents = (path.read_bytes() for path in sorted(folder.glob("lane-*.bin")))
    rows = [row for one in contents for row in LANE.iter_unpack(one[: len(one) // LANE.size * LANE.size])]
    if not rows:
        return Lanes()
    fetch, prepare, items, hits = np.sum(rows, axis=0).tolist()
    return Lanes(fetch, prepare, round(items), round(hits))
