"""One step on a graph in a process of its own: `worker.py STEP JSON`; prints processor seconds and peak of memory.

The peak is of anonymous memory above what the process held before the step, kernels loaded by a small graph: pages of
mapped files do not count, as the kernel takes them back when memory is short.
"""

import json
import re
import sys
import threading
import time
from pathlib import Path

import numpy as np

from wirewise.graph import BlockModel, convert, load, partition, save_parts, write_block_model

SMALL = {"nodes": 1000, "classes": 12, "features": 8}
PERIOD_S = 0.005


def anonymous_bytes() -> int:
    return resident_bytes("RssAnon") + resident_bytes("RssShmem")


def resident_bytes(field: str) -> int:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


class Peak:
    """The most anonymous memory while it is entered, sampled; METIS holds the interpreter, so that none is sampled."""

    def __enter__(self) -> "Peak":
        self.base = self.most = anonymous_bytes()
        # The kernel's own peak begins here: of all pages, those of mapped files too.
        Path("/proc/self/clear_refs").write_text("5")
        self.resident = resident_bytes("VmRSS")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._started = time.process_time()
        return self

    def _watch(self) -> None:
        while not self._over.wait(PERIOD_S):
            self.most = max(self.most, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._started
        self.most = max(self.most, anonymous_bytes())
        self.grown = resident_bytes("VmHWM") - self.resident
        self._over.set()
        self._thread.join()


def generate(knobs: dict, folder: str) -> None:
    write_block_model(BlockModel(**knobs), folder)


def to_npz(source: str, path: str) -> None:
    """An npz file of a mapped graph, array by array."""
    data = load(source)
    np.savez(path, edge_index=data.edge_index, x=data.x, y=data.y, split=data.split)


def main() -> None:
    step, given = sys.argv[1], json.loads(sys.argv[2])
    small = Path(given["folder"]) / "small"
    if not (small / "graph.json").exists():
        generate(SMALL, str(small))
    calls = {
        "generate": lambda graph, out: generate(given["knobs"] if graph else SMALL, out),
        "to_npz": lambda graph, out: to_npz(graph or str(small), out),
        "convert": lambda graph, out: convert(graph or f"{small}.npz", out),
        "partition": lambda graph, out: np.save(
            out, partition(load(graph or str(small)), given["parts"], given["method"])
        ),
        "parts": lambda graph, out: save_parts(
            data := load(graph or str(small)),
            np.load(given["owner"]) if graph else np.arange(data.num_nodes) % given["parts"],
            out,
        ),
    }
    calls[step]("", str(Path(given["folder"]) / f"warm-{step}.npy"))
    with Peak() as peak:
        calls[step](given["graph"], given["out"])
    metis = given.get("method", "").startswith("metis")
    print(json.dumps({"seconds": peak.seconds, "peak_bytes": peak.grown if metis else peak.most - peak.base}))


if __name__ == "__main__":
    main()
