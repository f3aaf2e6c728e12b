"""The claim about memory: a rank's peak is the documented formula, within a bound.

    python benchmarks/memory/run.py --preset smoke|paper [--out FILE.md] [--only sage,gcn]

The paper preset is sized for 2 minutes on two idle processors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from worker import Memory

from common import Page, arguments, scratch, verdict
from wirewise import graph, lab
from wirewise.recipes.job import Job

WORKER = str(Path(__file__).parent / "worker.py")
ROWS = ("sage", "gcn")
PRESETS = {
    "smoke": {"nodes": 6_000, "features": 64, "hidden": 256, "epochs": 3},
    "paper": {"nodes": 60_000, "features": 128, "hidden": 256, "epochs": 4},
}
RANKS = 2
CLAIM = 1.3
MEGA = 1e6


def measure(model: str, preset: dict) -> Memory:
    job = Job(
        workers=RANKS,
        hosts=1,
        network="loopback",
        model=model,
        hidden=preset["hidden"],
        epochs=preset["epochs"],
        modes=("adaqp",),
    )
    with scratch() as folder:
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        for name, nodes in (("tiny", 600), ("parts", preset["nodes"])):
            data = graph.load(f"block:nodes={nodes},features={preset['features']}")
            graph.save_parts(data, graph.partition(data, RANKS, seed=0), folder / name)
        with lab.Loopback() as loopback:
            command = [WORKER, str(folder / "job.json")]
            result = loopback.run(command, processes=RANKS, launcher="direct", timeout_s=300)
        if not result.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in result.tails for line in tail)]))
        return msgspec.json.decode((folder / "memory.json").read_bytes(), type=Memory)


def section(page: Page, model: str, preset: dict) -> None:
    page.add(
        f"## {model}\n\nMode adaqp alone, P={RANKS} on loopback, block model of {preset['nodes']} nodes with "
        f"{preset['features']} features, hidden width {preset['hidden']}, {preset['epochs']} epochs with the "
        "first plan, then an evaluation. Growth is the peak of the resident set above that before the part was "
        "loaded, kernels compiled and the peak reset by then; formula: `wirewise.graph.part_memory_bytes` with "
        "`FullGraphNet.kept_widths`. Measured."
    )
    found = measure(model, preset)
    stages = list(found.growth)
    with page.table(
        "rank", "formula MB", *(f"{s} MB" for s in stages), "growth / formula", "threshold"
    ) as row:
        for rank, formula in enumerate(found.formula):
            growth = [found.growth[s][rank] for s in stages]
            ratio = growth[-1] / formula
            shown = [f"{g / MEGA:.0f}" for g in growth]
            row(rank, f"{formula / MEGA:.0f}", *shown, f"{ratio:.2f}", verdict(ratio, most=CLAIM))
    page.add(
        "What lives between epochs besides the part and is no term of the formula; `accounted` is the formula with "
        "these added."
    )
    titles = ("part MB", "input tensors MB", "sparse matrices MB", "exchange MB", "accounted MB")
    with page.table("rank", *titles, "growth / accounted") as row:
        for rank in range(RANKS):
            extra = [v[rank] for v in (found.inputs, found.structure, found.exchange)]
            accounted = found.formula[rank] + sum(extra)
            shown = [f"{value / MEGA:.1f}" for value in (found.part[rank], *extra, accounted)]
            row(rank, *shown, f"{found.growth[stages[-1]][rank] / accounted:.2f}")


def main() -> None:
    given = arguments(__doc__, ROWS)
    os.environ["OMP_NUM_THREADS"] = "1"
    page = Page("Memory", given.preset, {"Repeats": "one run a model; a peak, not a time"})
    for name in given.only:
        section(page, name, PRESETS[given.preset])
    page.finish(given.out)


if __name__ == "__main__":
    main()
