"""Claims about deployment on unequal hosts: predicted against measured steps, gains over data parallelism.

    python benchmarks/deployment/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...] [--labs LAB,...]

Rows: `factors` (F6: a layer's sufficient factors against an all-reduce), `plans` (F2, F4, F7: plans of TAG against
torch's DistributedDataParallel on four labs, predicted and measured), `real` (hosts of speed 1 and 0.5 that compute at
full speed, the slower one throttled); with --out what these two measure is kept beside the page in FILE.json and not
measured again, so that a long run can be made in pieces; remove that file to start anew. Simulated: `unseen` (TAG next
to other planners on clusters and models that no training saw), `slow-link` (F4), `tree` (F3: tree search against
enumeration, with and without the learned policy).

The others run in a lab: TCP, bytes, links and numbers are real. Computing is emulated but in `real`, as two processors
would measure the scheduler: a pass takes at least the time of the device that a rank stands for, and the rest is
slept.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measured
import planned
from measured import LABS

from common import KeptFigures, Page, arguments

ROWS = {**measured.ROWS, **planned.ROWS}
PRESETS = {
    "smoke": {
        "clusters": 2, "simulations": 100, "trees": 2,
        "turns": 1, "steps": 2, "compute_ms": 100.0, "width": 256, "real_batch": 8, "pairs": (("two groups", "mlp"),),
    },
    "paper": {
        "clusters": 20, "simulations": 2000, "trees": 20,
        "turns": 2, "steps": 2, "compute_ms": 1000.0, "width": 2048, "real_batch": 64,
        "pairs": (
            ("quarter", "cnn"), ("two groups", "cnn"), ("four speeds", "cnn"), ("slow pair", "cnn"),
            ("four speeds", "mlp"), ("two groups", "mlp"), ("slow pair", "mlp"), ("four speeds", "gpt"),
        ),
    },
}  # fmt: skip


def main():
    options = arguments(__doc__, list(ROWS), labs=tuple(LABS))
    page = Page(
        "Deployment on unequal hosts",
        options.preset,
        {"Steps": "simulated, or measured in namespaces of a lab, as rows say"},
    )
    kept = KeptFigures(options.out and options.out.with_suffix(".json"))
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset] | {"labs": options.labs, "kept": kept})
    page.finish(options)


if __name__ == "__main__":
    main()
