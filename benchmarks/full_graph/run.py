"""Claims about full-graph training: speed, overlap, the models behind the plans, and never losing to fp32.

    python benchmarks/full_graph/run.py --preset smoke|paper [--out FILE.md] [--only s1,s2,s3,s4,s5,s6,a4,a5]

Needs a lab (network namespaces and shaped links). The paper preset is sized for 8 minutes on two idle
processors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import exchanges
import trainings

from common import Page, arguments
from wirewise import lab

ROWS = ("s1", "s2", "s3", "a5", "a4", "s4", "s5", "s6")
PRESETS = {
    "smoke": {
        "rows": 2000, "width": 256, "rounds": 3, "rates": ["200mbit"],
        "probes": [1 << 16, 1 << 18, 1 << 20], "probe_rounds": 3,
        "a4_dataset": "block:nodes=2000", "a4_repeats": 3,
        "s4_dataset": "block:nodes=2000", "s4_links": {"200mbit": 9}, "turn": 3, "cycle": 4,
        "s6_datasets": ["block:nodes=1000"], "s6_epochs": 10,
    },
    "paper": {
        "rows": 8000, "width": 256, "rounds": 9, "rates": ["200mbit", "1gbit"],
        "probes": [1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22], "probe_rounds": 7,
        "a4_dataset": "block:nodes=20000", "a4_repeats": 9,
        "s4_dataset": "debian", "s4_links": {"loopback": 40, "200mbit": 40, "1gbit": 16, "10gbit": 16},
        "turn": 2, "cycle": 20,
        "s6_datasets": ["debian", "block:nodes=20000", "block:nodes=20000,directed=true"], "s6_epochs": 36,
    },
}  # fmt: skip


def main() -> None:
    given = arguments(__doc__, ROWS)
    preset = PRESETS[given.preset]
    os.environ["OMP_NUM_THREADS"] = "1"
    ok, reason = lab.available()
    if not ok:
        raise SystemExit(f"this benchmark needs a lab: {reason}")
    page = Page(
        "Full-graph training",
        given.preset,
        {
            "Repeats": f"{preset['rounds']} turns of each mode in S1 to S3; medians (quartiles)",
            "Ranks": "one process a rank, one thread each, in network namespaces of one machine",
        },
    )
    for name in ("s1", "s2", "s3", "a5"):
        if name in given.only:
            getattr(exchanges, name)(page, preset)
    if "a4" in given.only:
        trainings.a4(page, preset)
    if {"s4", "s5"} & set(given.only):
        trainings.s4_and_s5(page, preset, given.only)
    if "s6" in given.only:
        trainings.s6(page, preset)
    page.finish(given)


if __name__ == "__main__":
    main()
