"""Claims about tracing and replay: predicted against measured steps.

    python benchmarks/replay_accuracy/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `virtual` (R2, R3, R5, R6), `algorithms` (R7), `real` (R4), `overhead` (P1), `grid` (W1, W2, W6), `ranks` (W3),
`stragglers` (W4), `stalls` (W5), `clocks` (C1, C2, C4). All need a lab; where none can be built the script says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import algorithms
import clocks
import whatifs

import accuracy
from common import Page, arguments, need_lab

ROWS = {
    "virtual": accuracy.virtual,
    "algorithms": algorithms.algorithms,
    "real": accuracy.real,
    "overhead": accuracy.overhead,
    "grid": whatifs.grid,
    "ranks": whatifs.ranks,
    "stragglers": whatifs.stragglers,
    "stalls": whatifs.stalls,
    "clocks": clocks.clocks,
}
PRESETS = {
    "smoke": {
        "steps": 8,
        "algorithms_rate": "400mbit",
        "algorithm_models": ["mlp"],
        "virtual": [("200mbit", 2)],
        "real": [("200mbit", 2)],
        "overhead": [("real-mlp", 1.0)],
        "overhead_steps": 10,
        "turns": 2,
        "grid_models": ["transformer"],
        "grid_ranks": 2,
        "rates": ["100mbit", "200mbit", "400mbit"],
        "caps": [0.2, 0.5],
        "rank_counts": [2, 3],
        "faults": 1,
        "clock_runs": 1,
    },
    "paper": {
        "steps": 30,
        "algorithms_rate": "400mbit",
        "algorithm_models": ["mlp", "transformer"],
        "virtual": [("50mbit", 2), ("400mbit", 2), ("200mbit", 4), ("400mbit", 4), ("200mbit", 8)],
        "real": [("100mbit", 2), ("400mbit", 2)],
        "overhead": [("real-mlp", 1.0), ("real-mlp", 0.01), ("real-transformer", 0.01)],
        "overhead_steps": 40,
        "turns": 5,
        "grid_models": ["mlp", "transformer"],
        "grid_ranks": 2,
        "rates": ["50mbit", "100mbit", "200mbit", "400mbit"],
        "caps": [0.1, 0.25, 0.5, 1.0, 25.0],
        "rank_counts": [2, 4, 8],
        "faults": 5,
        "clock_runs": 2,
    },
}


def main() -> None:
    options = arguments(__doc__, list(ROWS))
    need_lab()
    preset = PRESETS[options.preset]
    page = Page("Tracing and replay", options.preset, {"Ranks": "one a host of the lab, one thread each"})
    for name in options.only:
        ROWS[name](page, preset)
    page.finish(options)


if __name__ == "__main__":
    main()
