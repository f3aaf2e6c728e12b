"""Claims about parallel plans: carried out in a lab against their predictions, and next to what users write themselves.

    python benchmarks/parallel/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `plans` (P7: at least twelve plans of a model trained in a lab: rank correlation of predicted and measured steps,
bytes by the counters of interfaces, losses), `models` (GPT, mixture of experts, U-Net, CNN and graph convolutions on
three topologies: DDP, FSDP2, layers split by hand, the plan).

Numbers, messages and links are real. Products take as long as on an accelerator of 8 GFLOP/s: the rest is slept.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import Page, arguments
from lab import models_row, plans_row

ROWS = {"plans": plans_row, "models": models_row}
PRESETS = {
    "smoke": {"turns": 1, "steps": 1, "plans": 7, "model": "mlp", "models": ("mlp",), "links": 1},
    "paper": {
        "turns": 2,
        "steps": 2,
        "plans": 21,
        "model": "gpt",
        "models": ("gpt", "moe", "unet", "cnn", "gcn"),
        "links": 3,
    },
}


def main():
    options = arguments(__doc__, tuple(ROWS))
    page = Page("Parallel plans", options.preset, {"Measured": "steps; emulated: seconds of products"})
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
