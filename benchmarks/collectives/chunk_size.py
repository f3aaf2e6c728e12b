"""Row `chunk_size` (B4): chunk sizes that the ranks find in twelve probes against a measured grid of sizes."""

import numpy as np
from jobs import MB, ms, run, saved

from common import paired, scratch, verdict
from wirewise.collective import network
from wirewise.collective.builders import build
from wirewise.lab import Lab
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.topology import preset

LEAST_BYTES = 16_384


def chunk_size(page, preset_):
    page.add(
        "## Chunk sizes found by running (B4)\n\n`tune_chunk_size`: doublings and steps back, at most twelve probes of "
        "three calls; each network is tuned several times. Grid: chunks of 16 KiB, 32 KiB and so on to one whole "
        "chunk. After the tuning the sizes of the grid and the tuned ones take turns. Reached: time in the best size "
        "of the grid over that in the tuned size, median of pairs."
    )
    with page.table(
        "network", "program", "MB", "grid", "whole ms", "best of grid KiB", "best ms", "tuned KiB", "probes",
        "tuned ms", "reached", "claimed", "probes, claimed",
    ) as row:  # fmt: skip
        for size_mb in preset_["chunks_mb"]:
            for name, program, make in cases(size_mb * MB):
                with scratch() as folder, make() as lab:
                    job = {
                        "program": saved(folder, program), "size_bytes": size_mb * MB, "least_bytes": LEAST_BYTES,
                        "tunings": preset_["tunings"], "turns": preset_["turns"],
                    }  # fmt: skip
                    (found,), *_ = run(lab, "chunks_worker.py", job)
                for cells in compared(found, max(program.chunk_bytes(size_mb * MB))):
                    row(name, program.name, size_mb, len(found["grid"]), *cells)


def cases(size_bytes):
    """Networks with a program each, and the labs that carry them."""
    yield "4 hosts, 400 Mbit/s", build("broadcast", "chain", 4), lambda: Lab(4, "400mbit")
    h4 = preset("h4")
    problem = CollectiveProblem(network=network(h4), collective="all_reduce", size_bytes=size_bytes)
    yield "h4", PLANNERS["forest"](problem).program, lambda: Lab.of(h4)
    yield "8 hosts, 1 Gbit/s", build("broadcast", "chain", 8), lambda: Lab(8, "1gbit")


def compared(found, longest_bytes):
    """Cells of a row for each tuning."""
    medians = {name: float(np.median(times)) for name, times in found["grid"].items()}
    best = min(medians, key=medians.get)
    for tuning in found["tunings"]:
        reached = float(np.median(paired(found["grid"][best], tuning["seconds"])))
        yield (
            *ms(medians["1"]), kib(longest_bytes, best), *ms(medians[best]), kib(longest_bytes, tuning["segments"]),
            tuning["probes"], *ms(float(np.median(tuning["seconds"]))), f"{reached:.3f}",
            verdict(reached, least=0.95), verdict(tuning["probes"], most=12),
        )  # fmt: skip


def kib(longest_bytes, segments):
    return f"{longest_bytes / int(segments) / 1024:.0f}"
