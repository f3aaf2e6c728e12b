"""Claims about parallel plans: carried out in a lab against their predictions, and next to what users write themselves.

    python benchmarks/parallel/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `plans` (P7: at least twelve plans of a model trained in a lab: rank correlation of predicted and measured steps,
bytes by the counters of interfaces, losses), `models` (GPT, mixture of experts, U-Net, CNN and graph convolutions on
three topologies: DDP, FSDP2, layers split by hand, the plan, TAG's deployment; measured and predicted). What is
measured of models is kept in FILE.json beside the page, so that the row can be made in several goes.

Numbers, messages and links are real. Operators take as long as on an accelerator of 4 GFLOP/s and 10 GB/s, 200 us for
the smallest: the rest is slept. Predictions take what collectives are measured to take on the same links before.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import KeptFigures, Page, arguments
from lab import models_row, plans_row

ROWS = {"plans": plans_row, "models": models_row}
PRESETS = {
    "smoke": {"turns": 1, "steps": 1, "plans": 7, "model": "mlp", "models": ("mlp",), "links": 1},
    "paper": {
        "turns": 3,
        "steps": 1,
        "plans": 13,
        "model": "gpt",
        "models": ("gpt", "moe", "unet", "cnn", "gcn"),
        "links": 3,
    },
}


def main():
    options = arguments(__doc__, tuple(ROWS))
    page = Page("Parallel plans", options.preset, {"Measured": "steps; emulated: seconds of operators"})
    figures = KeptFigures(options.out and options.out.with_suffix(".json"))
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset], figures)
    page.finish(options)


if __name__ == "__main__":
    main()
