"""The claim about predictions: `wirewise.sim.dispatch` against what plans of every family take on shaped links.

    python benchmarks/prediction/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `gradients` (families fusion and compression), `collectives`, `exchanges` (bits of full-graph training), `batches`
(caches), `placements`. All need a lab; where none can be built the script says so. $WIREWISE_DATA holds the recorded
gradients. With --out the settings of a measured row are kept beside the page in FILE.json and not measured again, so
that a long run can be made in pieces; remove that file to start anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import batches
import exchanges
import gradients
import msgspec
import numpy as np
import placements
from setting import Setting

import collectives
from common import KeptFigures, Page, arguments, need_lab, verdict

ROWS: dict[str, tuple[str, Callable[..., Iterator[Setting]]]] = {
    "gradients": (gradients.TOLD, gradients.settings),
    "collectives": (collectives.TOLD, collectives.settings),
    "exchanges": (exchanges.TOLD, exchanges.settings),
    "batches": (batches.TOLD, batches.settings),
    "placements": (placements.TOLD, placements.settings),
}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "gradients": {"networks": [(2, "200mbit")], "rounds": 1},
        "collectives": {
            "names": ["4 hosts, 100mbit"], "collectives": {"all_reduce": 1}, "repeats": 3
        },
        "exchanges": {"networks": {"200mbit": {}}, "epochs": 2},
        "batches": {"links": ["200mbit"], "policies": {"vip": 0.1}, "epochs": 1},
        "placements": {"seeds": range(1), "policies": ("iter",), "turns": 1},
    },
    "paper": {
        "gradients": {
            "networks": [(2, "50mbit"), (2, "200mbit"), (4, "50mbit"), (4, "200mbit")],
            "rounds": 4,
        },
        "collectives": {
            "names": list(collectives.NETWORKS),
            "collectives": {"all_reduce": 4, "all_gather": 4, "broadcast": 4},
            "repeats": 9,
        },
        "exchanges": {"networks": {"50mbit": {}, "200mbit": {}, "100mbit": {1: "25mbit"}}, "epochs": 8},
        "batches": {
            "links": ["50mbit", "200mbit"],
            "policies": {"vip": 0.1, "degree": 0.5, "halo": 0.2},
            "epochs": 2,
        },
        "placements": {"seeds": range(3), "policies": ("iter", "oes"), "turns": 2},
    },
}  # fmt: skip
MEAN, WORST = 0.05, 0.08


def main() -> None:
    options = arguments(__doc__, list(ROWS))
    need_lab()
    page = Page("Predictions of plans of all families", options.preset, {"Ranks": "one a host of the lab"})
    kept = Kept(options.out and options.out.with_suffix(".json"))
    found = [one for name in options.only for one in judged(page, name, PRESETS[options.preset][name], kept)]
    claim(page, found)
    page.finish(options)


class Kept:
    """Settings of measured rows, also in a file."""

    def __init__(self, path: Path | None) -> None:
        self._found = KeptFigures(path)

    def settings(self, row: str, sizes: dict[str, Any]) -> Iterator[Setting]:
        """Settings of a row, measured unless they are there."""
        if row in self._found:
            yield from msgspec.convert(self._found[row], list[Setting])
            return
        measured = []
        for one in ROWS[row][1](**sizes):
            measured.append(one)
            yield one
        self._found[row] = measured


def judged(page: Page, row_name: str, sizes: dict[str, Any], kept: Kept) -> list[Setting]:
    page.add(f"## {row_name.capitalize()}\n\n{ROWS[row_name][0]}")
    found = []
    with page.table("family", "where", "plan", "predicted ms", "measured ms", "error %", "within") as row:
        for one in kept.settings(row_name, sizes):
            found.append(one)
            row(
                one.family, one.where, one.plan, f"{1e3 * one.predicted_s:.1f}", measured(one),
                f"{100 * one.error:+.1f}", verdict(abs(one.error), most=WORST),
            )  # fmt: skip
    return found


def measured(one: Setting) -> str:
    low, median, high = (1e3 * seconds for seconds in one.quartiles_s)
    return f"{median:.1f} ({low:.1f} to {high:.1f})"


def claim(page: Page, found: list[Setting]) -> None:
    page.add("## All families")
    with page.table("family", "settings", "mean error %", "worst error %") as row:
        for family in dict.fromkeys(one.family for one in found):
            errors = np.abs([one.error for one in found if one.family == family])
            row(family, len(errors), f"{100 * errors.mean():.1f}", f"{100 * errors.max():.1f}")
    errors = np.abs([one.error for one in found])
    with page.table("claim", "figure", "threshold") as row:
        row("settings", len(errors), verdict(len(errors), least=40))
        row("mean error", f"{100 * errors.mean():.1f} %", verdict(errors.mean(), most=MEAN))
        row("worst error", f"{100 * errors.max():.1f} %", verdict(errors.max(), most=WORST))


if __name__ == "__main__":
    main()
