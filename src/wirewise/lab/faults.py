"""Faults injected into a host at a given time, or into a rank at a named point of a protected training."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wirewise import units
from wirewise.errors import InputError, LabError
from wirewise.hosts import OwnedFolder

if TYPE_CHECKING:
    from wirewise.lab.network import Lab

__all__ = [
    "FAULTS_VARIABLE",
    "ArmedFaults",
    "HostFault",
    "RankFault",
    "arm_faults",
    "parse_fault",
    "random_kills",
]

FAULTS_VARIABLE = "WIREWISE_FAULTS"
"""Variable in which ranks find their faults, as JSON; `runtime.points` reads it."""

_PLAIN = ("kill", "stop", "cut", "heal")
_AT_POINTS = ("kill", "stop")
_WITH_FACTOR = ("slow", "slow-cpu")
_FORM = re.compile(r"([a-z-]+):(\d+)(?::([^@]+))?@(.+)")
_NUMBER = r"(\d+(?:\.\d+)?)"
_INSTANT = re.compile(rf"{_NUMBER}s?")
_RANDOM = re.compile(rf"{_NUMBER}\.\.{_NUMBER}s?:(\d+)")
_POINT = re.compile(r"([a-z][a-z_-]*)(?::(\d+))?(?:#(\d+))?")


@dataclass(frozen=True, kw_only=True)
class HostFault:
    """Fault of a host at a given time."""

    kind: str
    """"kill": its processes die. "stop": they are stopped (SIGSTOP) and keep their connections. "cut": it is off the
    network, silently. "heal": it is back, at full speed, and runs. "slow": its link is slower by `factor`. "slow-cpu":
    its processes are. "link": its link has `rate`."""
    host: int
    at_s: float = 0.0
    """Seconds after the job's start."""
    factor: float = 1.0
    rate: str = ""

    def inject(self, lab: Lab) -> None:
        """Inject the fault now."""
        if self.kind in _WITH_FACTOR:
            lab.slow(self.host, self.factor, resource="cpu" if self.kind == "slow-cpu" else "link")
        elif self.kind == "link":
            lab.set_link(self.host, self.rate)
        else:
            actions = {"kill": lab.kill, "stop": lab.stop, "cut": lab.cut, "heal": lab.heal}
            actions[self.kind](self.host)


@dataclass(frozen=True, kw_only=True)
class RankFault:
    """Fault that a rank injects into itself, once, at a named point."""

    kind: str
    """"kill": it dies (SIGKILL). "stop": it is stopped (SIGSTOP) and keeps its connections."""
    rank: int
    point: str
    """Name of the point, such as "bucket"."""
    index: int | None = None
    """Index of the bucket, parameter or the like. None for the first that occurs."""
    step: int | None = None
    """Step in which it is injected, from 0. None for the first that reaches the point."""

    def __str__(self) -> str:
        index = "" if self.index is None else f":{self.index}"
        step = "" if self.step is None else f"#{self.step}"
        return f"{self.kind}:{self.rank}@{self.point}{index}{step}"


def parse_fault(text: str) -> HostFault | RankFault:
    """Parse "kill:2@10s", "slow:3:10@4s" (10x slower), "link:2:50mbit@5s", "kill:2@bucket:3", "stop:1@5..40s:7".

    "bucket:3" is a point in the first step that reaches it, "bucket:3#40" in step 40; the number before "@" is then a
    rank. "5..40s:7" is a random time between 5 and 40 s, with seed 7.

    Raises:
        LabError: The text is malformed.
    """
    match = _FORM.fullmatch(text.strip())
    try:
        if match is not None:
            kind, number, value, moment = match[1], int(match[2]), match[3], match[4]
            if (point := _POINT.fullmatch(moment)) is not None and kind in _AT_POINTS and value is None:
                index, step = (None if word is None else int(word) for word in point.groups()[1:])
                return RankFault(kind=kind, rank=number, point=point[1], index=index, step=step)
            at_s = _instant(moment)
            if at_s is not None and kind in _PLAIN and value is None:
                return HostFault(kind=kind, host=number, at_s=at_s)
            if at_s is not None and kind in _WITH_FACTOR and value is not None and float(value) >= 1:
                return HostFault(kind=kind, host=number, at_s=at_s, factor=float(value))
            if at_s is not None and kind == "link" and value is not None and units.parse_rate(value):
                return HostFault(kind=kind, host=number, at_s=at_s, rate=value)
    except (ValueError, InputError):
        pass
    raise LabError(
        f"fault {text!r} is not understood; expected kill:HOST@SECONDS, stop:..., cut:..., heal:..., "
        "slow:HOST:FACTOR@SECONDS or slow-cpu:... with a factor of at least 1, or link:HOST:RATE@SECONDS, with "
        "FIRST..LAST:SEED for a random instant; or kill:RANK@POINT[:INDEX][#STEP], stop:..."
    )


def _instant(text: str) -> float | None:
    """Seconds of what follows the @; None if it is no instant."""
    if (match := _INSTANT.fullmatch(text)) is not None:
        return float(match[1])
    match = _RANDOM.fullmatch(text)
    if match is None or float(match[1]) > float(match[2]):
        return None
    return random.Random(int(match[3])).uniform(float(match[1]), float(match[2]))


def random_kills(ranks: int, count: int, within_s: tuple[float, float], seed: int) -> list[tuple[float, int]]:
    """Sample times at which random ranks are killed, ascending; deterministic for a seed.

    Args:
        ranks: Number of ranks.
        count: Number of kills; each falls into a separate equal part of the interval.
        within_s: Start and end of the interval, in seconds.
        seed: Seed of ranks and times.
    """
    draw = random.Random(seed)
    part_s = (within_s[1] - within_s[0]) / max(count, 1)
    return [(within_s[0] + part_s * (n + draw.random()), draw.randrange(ranks)) for n in range(count)]


class ArmedFaults:
    """Faults that ranks inject into themselves, and the files in which they report them.

    Args:
        faults: Faults at points.
        folder: Folder of the files.
    """

    def __init__(self, faults: Sequence[RankFault], folder: Path) -> None:
        self._claims = {folder / str(number): fault for number, fault in enumerate(faults)}

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for the ranks of a job; empty without faults."""
        faults = [
            {"act": one.kind, "rank": one.rank, "point": one.point, "index": one.index, "step": one.step}
            | {"claim": str(claim)}
            for claim, one in self._claims.items()
        ]
        return {FAULTS_VARIABLE: json.dumps(faults)} if faults else {}

    @property
    def missed(self) -> list[RankFault]:
        """Faults at points that no rank reached."""
        return [fault for claim, fault in self._claims.items() if not claim.exists()]


@contextmanager
def arm_faults(faults: Sequence[RankFault]) -> Iterator[ArmedFaults]:
    """Arm the faults at points for one job, with a temporary folder for reports."""
    with OwnedFolder(Path(tempfile.gettempdir()), "wirewise-faults-") as folder:
        yield ArmedFaults(faults, folder.path)
