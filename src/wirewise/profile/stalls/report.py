"""Report of `wirewise profile stalls`: writing, reading, and comparison with a replay."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from wirewise.cost.stalls import COMPONENTS, Amount, DataTimes, StashTimes, stash_formulas
from wirewise.decoding import decode_json
from wirewise.errors import InputError

__all__ = ["Difference", "StallReport", "load_report", "reconcile"]

_SMALL = 0.03
_WORDS = {
    "interconnect": "the interconnect inside a machine",
    "network": "the network between machines",
    "prep": "preparing data",
    "fetch": "fetching data from storage",
}


class StallReport(msgspec.Struct, frozen=True, kw_only=True):
    """Step time and its parts in seconds; the six parts add up to the total."""

    compute_s: Amount
    interconnect_s: Amount
    network_s: Amount
    prep_s: Amount
    fetch_s: Amount
    residual_s: Amount
    total_s: Amount
    runs_s: dict[str, list[float]]
    """Mean seconds of a step in each repeat of each run."""
    command: list[str]
    ranks: int
    hosts: int
    steps: int
    warmup: int
    link_bytes_per_s: float | None
    network: str
    """Network of the measurement: "lab" and "loopback" are on one machine; "own" is that of the user's command."""
    facts: dict[str, Any]
    data: DataTimes | None = None
    """Times of the data. None if the batch size is unknown."""
    hit_rates: dict[str, float] = msgspec.field(default_factory=dict)
    """Cache hit rate, by run."""
    notes: list[str] = msgspec.field(default_factory=list)
    format: str = "wirewise stalls 1"

    @property
    def largest(self) -> str | None:
        """Largest stall. None if none is above 3 % of the step."""
        stalls = {name: getattr(self, f"{name}_s").mean_s for name in _WORDS}
        name = max(stalls, key=stalls.__getitem__)
        return name if stalls[name] > _SMALL * self.total_s.mean_s else None

    def sentence(self) -> str:
        """Main finding, in one sentence."""
        total, name = self.total_s.mean_s, self.largest
        if name is None:
            return f"A step takes {total * 1e3:.1f} ms and computes: no stall is above 3 % of it."
        stall: Amount = getattr(self, f"{name}_s")
        low, high = stall.ci95_s
        return (
            f"The largest stall is {_WORDS[name]}: {stall.mean_s * 1e3:.1f} ms of a step of {total * 1e3:.1f} ms "
            f"({100 * stall.mean_s / total:.0f} %; 95 % interval {low * 1e3:.1f} to {high * 1e3:.1f} ms)."
        )

    def rows(self) -> list[tuple[str, Amount]]:
        """Parts and total, by name."""
        return [(name, getattr(self, f"{name}_s")) for name in (*COMPONENTS, "total")]

    def compat(self) -> dict[str, dict[str, float]]:
        """Results of Stash's own formulas for whole runs, "as_published" and "as_coded"."""
        run = {name: median(times) * self.steps for name, times in self.runs_s.items()}
        machine = run.get("machine", run["compute"])
        return stash_formulas(
            StashTimes(
                synthetic_one_s=run["compute"],
                synthetic_s=run.get("network", machine),
                cold_s=run["cold"],
                cached_s=run["cached"],
                one_machine_s=machine if "network" in run else None,
            )
        )


def load_report(path: str | os.PathLike[str]) -> StallReport:
    """Read the output of `wirewise profile stalls --json`.

    Raises:
        InputError: The file is unreadable or malformed.
    """
    try:
        return decode_json(Path(path).read_bytes(), StallReport)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{os.fspath(path)} holds no stalls: {error}; expected a file of wirewise profile stalls --json"
        ) from error


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Measured stall compared with the gain that a replay predicts without it."""

    stall: str
    measured: Amount
    predicted: Amount
    agree: bool
    """Whether the two intervals overlap."""
    sentence: str


def reconcile(stalls: StallReport, counterfactuals: Mapping[str, Amount]) -> list[Difference]:
    """Compare measured stalls with the gains that a replay predicts.

    The two are independent: one removes the cause and measures, the other simulates a recorded step without it.
    Disagreements reveal blind spots: a trace does not show that compute itself is slower while data is prepared, and
    runs do not show waits that only shift elsewhere.

    Args:
        stalls: Stalls that were measured.
        counterfactuals: Predicted savings per step in seconds, with an interval: "no_communication" is compared with
            interconnect and network together, "instant_data" with prep and fetch together. Others are ignored.

    Raises:
        InputError: Both savings are missing.
    """
    pairs = {"no_communication": ("interconnect", "network"), "instant_data": ("prep", "fetch")}
    known = [name for name in pairs if name in counterfactuals]
    if not known:
        raise InputError(f"got {sorted(counterfactuals)}; expected {' or '.join(pairs)}")
    return [_difference(stalls, pairs[name], counterfactuals[name]) for name in known]


def _difference(stalls: StallReport, names: tuple[str, str], predicted: Amount) -> Difference:
    parts: list[Amount] = [getattr(stalls, f"{name}_s") for name in names]
    mean = sum(p.mean_s for p in parts)
    # Half widths of independent parts add up as their squares do.
    half = sum(((p.ci95_s[1] - p.ci95_s[0]) / 2) ** 2 for p in parts) ** 0.5
    measured = Amount(mean, (mean - half, mean + half))
    agree = measured.ci95_s[0] <= predicted.ci95_s[1] and predicted.ci95_s[0] <= measured.ci95_s[1]
    title = " and ".join(names)
    return Difference(
        stall=title,
        measured=measured,
        predicted=predicted,
        agree=agree,
        sentence=(
            f"{title}: measured {mean * 1e3:.1f} ms, replay {predicted.mean_s * 1e3:.1f} ms, "
            + ("which agree." if agree else "which DISAGREE beyond both intervals.")
        ),
    )
