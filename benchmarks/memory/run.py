"""The claim about memory: a rank's peak is the documented formula, within a bound.

    python benchmarks/memory/run.py --preset smoke|paper [--out FILE.md] [--only sage,gcn,debian,freed]

The paper preset is sized for 4 minutes on two idle processors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
from worker import Memory

from common import Page, arguments, scratch, verdict
from wirewise import graph, lab
from wirewise.runtime import full_graph
from wirewise_papers.adaqp.job import FullGraphJob

WORKER = str(Path(__file__).parent / "worker.py")
ROWS = ("sage", "gcn", "debian", "freed")
PRESETS = {
    "smoke": {
        "block": "block:nodes=6000,features=64", "debian": "block:nodes=3000,features=32", "hidden": 256,
        "epochs": 3,
    },
    "paper": {
        "block": "block:nodes=60000,features=128", "debian": "debian", "hidden": 256, "epochs": 4,
    },
}  # fmt: skip
RANKS = 2
CLAIM = 1.3
MEGA = 1e6
TERMS = ("part", "inputs", "matrices", "messages", "parameters", "activations")


def measure(
    dataset: str,
    model: str,
    modes: tuple[str, ...],
    preset: dict,
    *,
    ranks: int = RANKS,
    kept_bytes: int = full_graph.KEPT_BYTES,
) -> Memory:
    """Train on parts of a graph, after a tiny one of the same kind that is not counted."""
    job = FullGraphJob(
        workers=ranks,
        hosts=1,
        network="loopback",
        model=model,
        hidden=preset["hidden"],
        epochs=preset["epochs"],
        modes=modes,
    )
    with scratch() as folder:
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        for name, source in (("tiny", "block:nodes=600,features=16"), ("parts", dataset)):
            data = graph.load(source)
            graph.save_parts(data, graph.partition(data, ranks, seed=0), folder / name)
        with lab.Loopback() as loopback:
            command = [WORKER, str(folder / "job.json"), str(kept_bytes)]
            result = loopback.run(command, processes_per_host=ranks, launcher="direct", timeout_s=300)
        if not result.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in result.tails for line in tail)]))
        return msgspec.json.decode((folder / "memory.json").read_bytes(), type=Memory)


def compared(
    page: Page, title: str, dataset: str, runs: list[tuple[str, ...]], model: str, preset: dict
) -> None:
    """The formula term by term and the peak, for each set of modes that one process trains."""
    page.add(
        f"## {title}\n\nModel {model}, P={RANKS} on loopback, `{dataset}`, hidden width {preset['hidden']}, "
        f"{preset['epochs']} epochs with the first plan, an evaluation after each, the last one in float32. "
        "Formula: `full_graph.memory_terms`, term by term in MB. Growth: peak "
        "of the resident set above that before the "
        "part was loaded, kernels compiled and the peak reset by then. "
        "Measured. Bits: mean width of the messages in the "
        "last epoch of the last mode; the formula counts 8 where they are planned."
    )
    titles = (
        "modes",
        "bits",
        "rank",
        *TERMS,
        "formula MB",
        "1 epoch MB",
        "growth MB",
        "growth / formula",
        "threshold",
    )
    with page.table(*titles) as row:
        for modes in runs:
            found = measure(dataset, model, modes, preset)
            for rank, terms in enumerate(found.terms):
                total = sum(terms.values())
                ratio = found.peak[rank] / total
                sizes = [terms[t] for t in TERMS] + [total, found.first[rank], found.peak[rank]]
                shown = [f"{size / MEGA:.1f}" for size in sizes]
                row(
                    ", ".join(modes),
                    f"{found.bits:.1f}",
                    rank,
                    *shown,
                    f"{ratio:.2f}",
                    verdict(ratio, most=CLAIM),
                )


def sage(page: Page, preset: dict) -> None:
    compared(page, "sage", preset["block"], [("fp32",), ("adaqp",), ("fp32", "adaqp")], "sage", preset)


def gcn(page: Page, preset: dict) -> None:
    compared(page, "gcn", preset["block"], [("fp32",), ("adaqp",)], "gcn", preset)


def debian(page: Page, preset: dict) -> None:
    runs = [("fp32",), ("adaqp",), ("fp32", "adaqp")]
    compared(page, "debian: sparse input features", preset["debian"], runs, "sage", preset)


def freed(page: Page, preset: dict) -> None:
    """What the C library keeps, for the whole range of `keep_freed_memory`."""
    page.add(
        "## freed\n\nHow much freed memory the C library keeps (`full_graph.keep_freed_memory`), for large matrices, "
        "those of `sage` above, and for small ones, those of a default run on `debian` (P=4, hidden width 128). "
        "Nothing is gated here: where matrices are smaller than the size from "
        "which on blocks are given back, the bound "
        "does not hold. Measured, all ranks; the seconds belong to this machine and its load, and lines were not "
        "interleaved."
    )
    small = preset | {"hidden": 128, "epochs": 12}
    large = preset | {"epochs": 8}
    kept = (
        ("all", full_graph.ALL_KEPT),
        (f"below {full_graph.KEPT_BYTES >> 20} MiB, as in a run", full_graph.KEPT_BYTES),
        ("below 4 MiB", 4 << 20),
        ("below 1 MiB", 1 << 20),
    )
    titles = (
        "matrices",
        "freed blocks kept",
        "formula MB",
        "growth MB",
        "growth / formula",
        "median epoch s",
    )
    with page.table(*titles) as row:
        for matrices, dataset, ranks, sizes in (
            ("large", preset["block"], RANKS, large),
            ("small", preset["debian"], 4, small),
        ):
            for name, size in kept:
                found = measure(dataset, "sage", ("fp32",), sizes, ranks=ranks, kept_bytes=size)
                totals = [sum(terms.values()) for terms in found.terms]
                ratios = [peak / total for peak, total in zip(found.peak, totals, strict=True)]
                shown = [", ".join(f"{v / MEGA:.0f}" for v in values) for values in (totals, found.peak)]
                row(matrices, name, *shown, ", ".join(f"{r:.2f}" for r in ratios), f"{found.epoch_s:.3f}")


SECTIONS: dict[str, Callable[[Page, dict], None]] = {
    "sage": sage,
    "gcn": gcn,
    "debian": debian,
    "freed": freed,
}


def main() -> None:
    given = arguments(__doc__, ROWS)
    os.environ["OMP_NUM_THREADS"] = "1"
    page = Page("Memory", given.preset, {"Repeats": "one run a line; a peak, not a time"})
    for name in given.only:
        SECTIONS[name](page, PRESETS[given.preset])
    page.finish(given)


if __name__ == "__main__":
    main()
