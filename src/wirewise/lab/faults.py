"""Faults that strike a host at a given time: kill, cut, heal, slow, slow-cpu, link."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wirewise import units
from wirewise.errors import InputError, LabError

if TYPE_CHECKING:
    from wirewise.lab.network import Lab

__all__ = ["HostFault", "parse_fault"]

_PLAIN = ("kill", "cut", "heal")
_WITH_FACTOR = ("slow", "slow-cpu")
_FORM = re.compile(r"([a-z-]+):(\d+)(?::([^@]+))?@(\d+(?:\.\d+)?)s?")


@dataclass(frozen=True, kw_only=True)
class HostFault:
    """What happens to a host."""

    kind: str
    """"kill": its processes die. "cut": it is off the network, silently. "heal": it is back, at full speed.
    "slow": its link is slower by `factor`. "slow-cpu": its processes are. "link": its link has `rate`."""
    host: int
    at_s: float
    """Seconds after the job's start."""
    factor: float = 1.0
    rate: str = ""

    def strike(self, lab: Lab) -> None:
        """Let it happen now."""
        if self.kind in _WITH_FACTOR:
            lab.slow(self.host, self.factor, what="cpu" if self.kind == "slow-cpu" else "link")
        elif self.kind == "link":
            lab.set_link(self.host, self.rate)
        else:
            {"kill": lab.kill, "cut": lab.cut, "heal": lab.heal}[self.kind](self.host)


def parse_fault(text: str) -> HostFault:
    """Read "kill:2@10s", "cut:1@5", "heal:1@9", "slow:3:10@4s" (ten times slower), "link:2:50mbit@5s".

    Raises:
        LabError: The text has another form.
    """
    match = _FORM.fullmatch(text.strip())
    try:
        if match is not None:
            kind, host, value, at_s = match[1], int(match[2]), match[3], float(match[4])
            if kind in _PLAIN and value is None:
                return HostFault(kind=kind, host=host, at_s=at_s)
            if kind in _WITH_FACTOR and value is not None and float(value) >= 1:
                return HostFault(kind=kind, host=host, at_s=at_s, factor=float(value))
            if kind == "link" and value is not None and units.parse_rate(value):
                return HostFault(kind=kind, host=host, at_s=at_s, rate=value)
    except (ValueError, InputError):
        pass
    raise LabError(
        f"fault {text!r} is not understood; expected kill:HOST@SECONDS, cut:..., heal:..., "
        "slow:HOST:FACTOR@SECONDS or slow-cpu:... with a factor of at least 1, or link:HOST:RATE@SECONDS"
    )
