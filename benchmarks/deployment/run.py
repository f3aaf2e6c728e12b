"""Claims about deployment on unequal hosts: predicted against measured steps, gains over data parallelism.

    python benchmarks/deployment/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `factors` (F6: a layer's sufficient factors against an all-reduce), `two-groups` (F2, F7: predicted against
measured steps, losses), `speedup` (F4: a host of a quarter of the speed), `plans` (plans of TAG against torch's
DistributedDataParallel, on three labs).

These rows run in a lab: TCP, bytes, links and numbers are real. Computing is emulated, as two processors would measure
the scheduler: a pass takes at least the time of the device that a rank stands for, and the rest is slept.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measured import ROWS

from common import Page, arguments

PRESETS = {
    "smoke": {
        "turns": 1, "steps": 2, "compute_ms": 100.0, "width": 256, "models": ("mlp",), "plans": ("ddp", "proportional"),
        "pairs": (("two groups", "mlp"),),
    },
    "paper": {
        "turns": 2, "steps": 4, "compute_ms": 1000.0, "width": 2048, "models": ("cnn", "gpt", "unet"),
        "plans": ("ddp", "ddp-proportional", "proportional", "heterog", "tag"),
        "pairs": (
            ("four speeds", "cnn"), ("four speeds", "gpt"), ("four speeds", "mlp"), ("four speeds", "moe"),
            ("slow pair", "cnn"), ("slow pair", "gpt"), ("slow pair", "unet"), ("two groups", "cnn"),
        ),
    },
}  # fmt: skip


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page(
        "Deployment on unequal hosts", options.preset, {"Hosts": "namespaces of a lab; computing slept"}
    )
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
