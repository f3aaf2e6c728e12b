"""Cost of the checks of distributed PyG models: epochs with them and without, alternating in one run.

    python benchmarks/pyg_checks/run.py --preset smoke|paper [--out FILE.md]

Without checks means: no look at the loss, its graph and its gradient, at attributes of modules, at parameters and
buffers of other ranks, and no second proof; one number a rank is agreed on before each back-propagation, as there was
before the checks. What is judged are the processor seconds inside the checks, which other programs lengthen least, as a
mean over epochs with all checks, with few and with none but the loss's graph, and of a proof the part that falls on one
epoch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from common import Page, basic_parser, spread, verdict
from wirewise import lab

WORKER = Path(__file__).resolve().parent / "epochs_worker.py"
PROVE_EVERY = 500
"""Mean distance of proofs in a thousand epochs, the default of `pyg.Job`: they are repeated at 200 and 600."""
MOST = 1.0
"""Percent of an epoch that the checks may take."""
PRESETS: dict[str, list[dict[str, int]]] = {
    "smoke": [{"nodes": 1000, "features": 16, "width": 16, "layers": 2, "pairs": 20}],
    "paper": [
        {"nodes": 1_000, "features": 16, "width": 16, "layers": 2, "pairs": 300},
        {"nodes": 1_000, "features": 128, "width": 128, "layers": 3, "pairs": 200},
        {"nodes": 10_000, "features": 128, "width": 128, "layers": 3, "pairs": 60},
        {"nodes": 20_000, "features": 128, "width": 256, "layers": 3, "pairs": 25},
    ],
}


def measured(setting: dict[str, int]) -> Any:
    with tempfile.TemporaryDirectory() as folder, lab.Loopback() as network:
        job = Path(folder) / "job.json"
        job.write_bytes(msgspec.json.encode(setting))
        result = network.run([str(WORKER), str(job)], processes_per_host=2, launcher="direct", timeout_s=900)
        if not result.ok:
            raise SystemExit(f"a rank failed: {result.tails}")
        return msgspec.json.decode((job.with_name("epochs.json")).read_bytes())


def main() -> None:
    options = basic_parser(__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    page = Page(
        "Checks of distributed PyG models",
        options.preset,
        {
            "Ranks": "2 processes of one thread each on this machine, gloo over loopback",
            "Model": "GraphSAGE of PyG, Adam, cross entropy of the training nodes; mode fp32",
            "Load": f"{os.getloadavg()[0]:.1f} at the start",
        },
    )
    titles = (
        "nodes", "width", "parameters", "pairs", "processor time of an epoch without, ms", "with / without",
        "all checks, ms", "few checks, ms", "else, ms", "epochs with all / few", "a proof, ms", "% of an epoch",
        "demanded",
    )  # fmt: skip
    with page.table(*titles) as row:
        for setting in PRESETS[options.preset]:
            figures = measured(setting)
            processor = np.array(figures["processor_s"])
            kinds = [np.array(figures[name]) for name in ("full_s", "brief_s", "rest_s")]
            epochs = sum(map(len, kinds))
            checks = sum(len(kind) / epochs * np.median(kind) for kind in kinds if len(kind))
            percent = (
                100 * (checks + np.median(figures["proof_s"]) / PROVE_EVERY) / np.median(processor[:, 1])
            )
            row(
                setting["nodes"], setting["width"], figures["parameters"], len(processor), spread(processor[:, 1], 1e3),
                spread(processor[:, 0] / processor[:, 1], digits=3),
                *(spread(kind, 1e3, 3) if len(kind) else "" for kind in kinds),
                " / ".join(f"{100 * len(kind) / epochs:.0f} %" for kind in kinds[:2]), spread(figures["proof_s"], 1e3),
                f"{percent:.2f}", verdict(percent, most=MOST),
            )  # fmt: skip
    page.finish(options)


if __name__ == "__main__":
    main()
