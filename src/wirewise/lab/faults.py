"""Faults that strike a host at a given time: kill, cut, slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wirewise.errors import LabError

if TYPE_CHECKING:
    from wirewise.lab.network import Lab

__all__ = ["Fault", "parse_fault"]

_FORM = re.compile(r"(kill|cut|heal|slow):(\d+)(?::(\d+(?:\.\d+)?))?@(\d+(?:\.\d+)?)s?")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to a host."""

    kind: str
    """"kill": its processes die. "cut": it is off the network, silently. "heal": it is back. "slow": its link is
    slower by `factor`."""
    host: int
    at_s: float
    """Seconds after the job's start."""
    factor: float = 1.0

    def strike(self, lab: Lab) -> None:
        """Let it happen now."""
        if self.kind == "slow":
            lab.slow(self.host, self.factor)
        else:
            {"kill": lab.kill, "cut": lab.cut, "heal": lab.heal}[self.kind](self.host)


def parse_fault(text: str) -> Fault:
    """Read "kill:2@10s", "cut:1@5", "heal:1@9", "slow:3:10@4s" (ten times slower).

    Raises:
        LabError: The text has another form.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None or (match[1] == "slow") != (match[3] is not None):
        raise LabError(
            f"fault {text!r} is not understood; expected KIND:HOST@SECONDS with KIND kill, cut or heal, or "
            "slow:HOST:FACTOR@SECONDS"
        )
    return Fault(kind=match[1], host=int(match[2]), at_s=float(match[4]), factor=float(match[3] or 1.0))
