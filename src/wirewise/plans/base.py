"""Shared parts of all plans: JSON, the check against a topology, and a table for display.

A plan is a frozen record with a tag, `family`. Conformance tests over every family in `PLANS` ensure that `to_json`
round-trips, `check` raises and shows the faulty place, the simulator accepts it, and `table` and `summary` draw it.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import ClassVar, Protocol, Self

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import PlanError
from wirewise.notebooks import table_html

__all__ = ["Plan", "TopologyLike", "explain_error", "matrix_picture"]


class TopologyLike(Protocol):
    """Part of a topology against which a plan is checked."""

    @property
    def hosts(self) -> Sized:
        """Hosts with the devices."""
        ...

    @property
    def devices(self) -> Sized:
        """Accelerators or processes, one per rank."""
        ...


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="family"):
    """Decision about a distributed job, as data."""

    family: ClassVar[str] = ""
    """Name of the family in `PLANS`; subclasses set it equal to their tag."""

    world_size: int
    """Number of ranks of the plan."""
    planner: str
    """Name of the planner that made it."""
    seed: int = 0

    def to_json(self) -> str:
        """Serialise to JSON; `from_json` and `loads` read it back equal."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a plan of this family.

        Raises:
            PlanError: The text is not JSON, of another family, or has an invalid value; the message names the path
                inside the JSON.
        """
        try:
            return decode_json(text, cls)
        except msgspec.DecodeError as error:
            raise PlanError(explain_error(error, cls.family)) from error

    def check_itself(self) -> None:
        """Raise if the plan is inconsistent in itself, independent of topology and job.

        Raises:
            PlanError: The plan is inconsistent; the message names the place.
        """
        if self.world_size < 1:
            raise PlanError(
                f"world_size is {self.world_size} - at `$.world_size`; expected at least 1, make the plan again"
            )

    def check(self, topology: TopologyLike) -> None:
        """Raise if the plan is inconsistent or does not fit the topology.

        Raises:
            PlanError: The plan is inconsistent or does not fit; the message names the place.
        """
        ranks = len(topology.devices) or len(topology.hosts)
        if ranks != self.world_size:
            raise PlanError(
                f"plan {self.planner!r} was made for world size {self.world_size}, the topology has {ranks} "
                f"ranks; make the plan again for {ranks} ranks or start {self.world_size}"
            )
        self.check_itself()

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column titles and rows for display."""
        raise NotImplementedError(f"{type(self).__name__} must say how it is drawn")

    @property
    def headline(self) -> str:
        """Kind and purpose of the plan, in one line."""
        return f"{self.family} plan by {self.planner!r} for {self.world_size} ranks"

    def summary(self) -> str:
        """Plan as an aligned text table under its headline."""
        titles, rows = self.table()
        widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]
        cells = [[cell.rjust(w) for cell, w in zip(row, widths, strict=True)] for row in [titles, *rows]]
        return "\n".join([self.headline, *("  ".join(row) for row in cells)])

    def _repr_html_(self) -> str:
        return table_html(self.headline, *self.table())


def explain_error(error: Exception, family: str) -> str:
    """Explain a msgspec error, with the path inside the JSON and a remedy."""
    return (
        f"cannot read a {family or 'wirewise'} plan: {error}; expected a plan written by `plans.save`, "
        "mend the named place or make the plan again"
    )


def matrix_picture(size: int, faulty: Sequence[tuple[int, int]]) -> str:
    """Draw a sender-by-receiver grid with the faulty channels crossed; only up to 16 ranks."""
    if not 0 < size <= 16:
        return ""
    head = "sender\\receiver " + " ".join(f"{r:>2}" for r in range(size))
    rows = [
        f"{s:>15} " + " ".join(" X" if (s, r) in faulty else " -" if s == r else " ." for r in range(size))
        for s in range(size)
    ]
    return "\n" + "\n".join([head, *rows])
