"""V2: strong and weak scaling on 2 to 32 hosts of a lab, predicted and measured.

    python benchmarks/scaling/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `collectives` (rings of all-reduce and all-gather over the own transport), `gradients` (steps of data-parallel
training under a plan of buckets), `exchanges` (epochs of full-graph training), `batches` (mini-batches whose features
are fetched from their owners), `pipelines` (updates of eager 1F1B). All need a lab, a rank a host; computing is slept.
--ranks names some numbers of ranks. With --out, the efficiencies are drawn into FILE.svg, and what was
measured is kept in FILE.json, so that a long run can be made in pieces; remove that file to start anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "collectives"))
sys.path.insert(2, str(Path(__file__).resolve().parents[1] / "prediction"))

import families
import msgspec
import numpy as np
from families import Point
from plot import picture

from common import KeptFigures, Page, arguments, need_lab, verdict

ROWS: dict[str, tuple[str, Callable[..., Iterator[Point]]]] = {
    "collectives": (
        "Rings over the own transport. Strong: the whole buffer is the same on all numbers of ranks; weak: it grows "
        "with them. Predicted from the links' rates. Efficiency: the bound of the links over the time measured.",
        families.collectives,
    ),
    "gradients": (
        "Steps of data-parallel training, the reducer's four buckets of 1 MB, all-reduce of gloo. Strong: the samples "
        "of a step are the same; weak: those of a rank. Predicted from all-reduces of several sizes, up to that of a "
        "bucket, one and several at a time, which the ranks measure before they train. Efficiency: slept computing "
        "over the step.",
        families.gradients,
    ),
    "exchanges": (
        "Epochs of full-graph training, the exchanges of two layers forward and back in float32, random parts. Strong: "
        "one graph; weak: as many nodes a rank. Predicted from links that the ranks measure in pairs and all at once. "
        "Efficiency: slept computing over the epoch.",
        families.exchanges,
    ),
    "batches": (
        "Mini-batches whose features are fetched from their owners but for those that a cache keeps (`vip`, a tenth of "
        "all nodes), each made when it is asked for; one graph. Strong: the seeds of all ranks' batches are as many; "
        "weak: those of a rank. Predicted from the rows that the plan expects of a batch, links that the ranks measure "
        "in pairs and all at once, and the seconds that sampling, slicing and assembling took on links of 10 Gbit/s. "
        "Efficiency: slept training over the batch.",
        families.batches,
    ),
    "pipelines": (
        "Updates of eager 1F1B. Strong: one model in as many stages as ranks; weak: a stage is as large on all numbers "
        "of ranks. Predicted from the links' rates. Efficiency: slept computing over the update, so that the "
        "pipeline's filling and draining count.",
        families.pipelines,
    ),
}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "ranks": (2, 4),
        "link": "100mbit",
        "collectives": {"names": ("all_reduce",), "MB": 4, "segments": 2, "repeats": 2},
        "gradients": {"backward_s": 0.02, "tensors": 4, "MB": 1, "plan": "even:2", "steps": 2, "turns": 1},
        "exchanges": {
            "nodes": 100, "degree": 8, "width": 64, "central_s": 1e-3, "marginal_s": 1e-3, "epochs": 2
        },
        "batches": {
            "dataset": "block:nodes=2000,features=64,mean_degree=8,train=0.064", "seeds": 2, "fanouts": (5, 5),
            "alpha": 0.1, "train_s": 1e-3, "epochs": 2,
        },
        "pipelines": {"forward_s": 2e-3, "microbatches": 4, "values": 256, "turns": 1, "updates": 1},
    },
    "paper": {
        "ranks": (2, 4, 8, 16, 32),
        "link": "50mbit",
        "collectives": {"names": ("all_reduce", "all_gather"), "MB": 6, "segments": 2, "repeats": 3},
        "gradients": {"backward_s": 0.2, "tensors": 8, "MB": 4, "plan": "even:4", "steps": 3, "turns": 2},
        "exchanges": {
            "nodes": 300, "degree": 8, "width": 256, "central_s": 0.06, "marginal_s": 0.03, "epochs": 5
        },
        # 4 batches an epoch of strong scaling.
        "batches": {
            "dataset": "block:nodes=20480,features=512,mean_degree=16,train=0.1", "seeds": 16, "fanouts": (10, 5),
            "alpha": 0.1, "train_s": 0.05, "epochs": 3,
        },
        "pipelines": {"forward_s": 0.015, "microbatches": 16, "values": 8192, "turns": 2, "updates": 1},
    },
}  # fmt: skip
RANKS = tuple(str(ranks) for ranks in PRESETS["paper"]["ranks"])
MEAN, WORST = 0.05, 0.08


def main() -> None:
    options = arguments(__doc__, list(ROWS), ranks=RANKS)
    need_lab()
    preset = PRESETS[options.preset]
    preset = preset | {"ranks": [ranks for ranks in preset["ranks"] if str(ranks) in options.ranks]}
    link = preset["link"]
    page = Page(
        "Strong and weak scaling, predicted and measured", options.preset,
        {"In the lab": f"a rank a host, links of {link}; ranks share the processors, so computing is slept (emulated)"},
    )  # fmt: skip
    kept = KeptFigures(options.out and options.out.with_suffix(".json"))
    found: list[Point] = []
    for name in options.only:
        found += judged(page, name, preset, kept)
    claim(page, found, link)
    if options.out is not None:
        file = options.out.with_suffix(".svg")
        page.add(f"![Efficiency by ranks: measured and predicted]({file.name})")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(picture(found))
    page.finish(options)


def judged(page: Page, name: str, preset: dict[str, Any], kept: KeptFigures) -> Iterator[Point]:
    told, points = ROWS[name]
    page.add(f"## {name.capitalize()}\n\n{told}")
    titles = (
        "what",
        "scaling",
        "ranks",
        "predicted ms",
        "measured ms",
        "error %",
        "efficiency",
        "predicted",
        "within",
    )
    with page.table(*titles) as row:
        for ranks in preset["ranks"]:
            key = f"{name} {ranks} {preset['link']} {sorted(preset[name].items())}"
            if key not in kept:
                kept[key] = list(points(ranks, preset["link"], preset[name]))
            for one in msgspec.convert(kept[key], list[Point]):
                low, median, high = (1e3 * seconds for seconds in one.quartiles_s)
                row(
                    one.what, one.scaling, one.ranks, f"{1e3 * one.predicted_s:.1f}",
                    f"{median:.1f} ({low:.1f} to {high:.1f})", f"{100 * one.error:+.1f}",
                    f"{one.ideal_s / one.measured_s:.2f}", f"{one.ideal_s / one.predicted_s:.2f}",
                    verdict(abs(one.error), most=WORST),
                )  # fmt: skip
                yield one


def claim(page: Page, found: list[Point], link: str) -> None:
    page.add(f"## All of these, in the lab, links of {link}, computing slept")
    with page.table("what", "points", "mean error %", "worst error %", "V2: mean", "worst") as row:
        for what in (*dict.fromkeys(one.what for one in found), "all"):
            errors = np.abs([one.error for one in found if what in (one.what, "all")])
            row(
                what, len(errors), f"{100 * errors.mean():.1f}", f"{100 * errors.max():.1f}",
                verdict(float(errors.mean()), most=MEAN), verdict(float(errors.max()), most=WORST),
            )  # fmt: skip


if __name__ == "__main__":
    main()
