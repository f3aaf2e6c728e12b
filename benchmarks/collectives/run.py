"""Claims about collective programs carried out over the own transport, against gloo, on shaped links.

    python benchmarks/collectives/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `uneven` (F2: planned all-reduces on H4 and on a quarter of its rates), `alike` (F3, F4: one link a host, and one
a pair), `small` (F5), `training` (F7: steps of DistributedDataParallel), `rates` (F8: rates that the transport saw),
`noise` (G3: event-driven trees against trees that wait), `windows` (the same trees in other windows), `slow_leaf` (G4),
`chunk_size` (B4: sizes of chunks found by running), `servers` (B5: three phases over two servers, and the bytes between
them).

H4: hosts 0-1 and 2-3 are joined by 1600 Mbit/s, 0-2 by 400, others by 100, both ways. All hosts, and their ranks, share
this machine's processors. MB are 2^20 bytes. A time is that of the slowest rank; methods take turns; medians.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from chunk_size import chunk_size
from jobs import MB, ms, run, saved
from servers import servers
from trees import noise, slow_leaf, windows

from common import Page, arguments, paired, scratch, verdict
from wirewise.collective import network
from wirewise.collective.bounds import bound
from wirewise.lab import Lab, pairs_of, topology_of
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.runtime.collective.defaults import default
from wirewise.topology import lab_hosts, preset

PRESETS = {
    "smoke": {
        "uneven": {"h4": (1,)}, "repeats": 1, "alike_mb": 1, "small": (4096,), "times": 5, "steps": 1,
        "parameters": 300_000, "turns": 2, "calls": 1, "noise_mb": 1, "ranks": 3, "leaf_mb": 1, "rates_mb": 1,
        "chunks_mb": (1,), "tunings": 1, "servers_mb": 1, "window_turns": 1,
    },
    "paper": {
        "uneven": {"h4": (16, 64), "h4-quarter": (4, 8)}, "repeats": 5, "alike_mb": 16,
        "small": (16, 1024, 4096), "times": 100, "steps": 5, "parameters": 6_000_000, "turns": 9, "calls": 8,
        "noise_mb": 4, "ranks": 8, "leaf_mb": 8, "rates_mb": 8,
        "chunks_mb": (4,), "tunings": 3, "servers_mb": 16, "window_turns": 4,
    },
}  # fmt: skip


def compare(lab, **job):
    """What worker.py prints at rank 0."""
    return run(lab, "worker.py", job)[0]


def uneven(page, preset_):
    page.add(
        "## Planned all-reduces on uneven networks (F2)\n\nThe planner `forest` for the topology and size. Bound: "
        "no algorithm is faster. Processor time: of rank 0 in one call, user and system."
    )
    with page.table(
        "network", "MB", "program", "segments", "bound ms", "simulated ms", "gloo ms", "own ms", "over gloo",
        "of the bound", "processor ms", "over gloo, claimed", "of the bound, claimed",
    ) as row:  # fmt: skip
        for name, sizes in preset_["uneven"].items():
            least = 4.5
            for size in sizes:
                topology = preset(name)
                made = PLANNERS["forest"](
                    CollectiveProblem(
                        network=network(topology), collective="all_reduce", size_bytes=size * MB
                    )
                )
                with scratch() as folder, Lab.of(topology) as lab:
                    found, = compare(
                        lab, collective="all_reduce", sizes=[size * MB], repeats=preset_["repeats"],
                        programs={"own": saved(folder, made.program)},
                    )  # fmt: skip
                medians = found["medians"]
                over = float(np.median(paired(found["seconds"]["gloo"], found["seconds"]["own"])))
                reached = made.bound_s / medians["own"]
                row(
                    name, size, made.program.name, made.program.segments, *ms(made.bound_s, made.predicted_s),
                    *ms(medians["gloo"], medians["own"]), f"{over:.1f}", f"{reached:.2f}",
                    *ms(found["processor_s"]["own"]), verdict(over, least=least), verdict(reached, least=0.75),
                )  # fmt: skip


def alike(page, preset_):
    page.add(
        "## Networks whose hosts are alike (F3, F4)\n\nFour hosts, 400 Mbit/s. With one link a host a ring is as "
        "fast as anything can be; with one a pair it uses a third of the links. The program is the group's default."
    )
    size = preset_["alike_mb"] * MB
    with page.table(
        "links", "MB", "program", "bound ms", "gloo ms", "own ms", "over gloo", "of the bound", "claimed"
    ) as row:
        for pairs, topology, least in (
            (None, lab_hosts(["400mbit"] * 4), 0.9),
            ({}, None, 2.0),
        ):
            with Lab(4, "400mbit", pairs=pairs) as lab:
                limit = bound(network(topology or topology_of(lab.pairs)), "all_reduce", size).seconds
                found, = compare(
                    lab, collective="all_reduce", sizes=[size], repeats=preset_["repeats"], programs={}, chosen=True
                )  # fmt: skip
            over = float(np.median(paired(found["seconds"]["gloo"], found["seconds"]["chosen"])))
            own = found["medians"]["chosen"]
            row(
                "one a host" if pairs is None else "one a pair", preset_["alike_mb"],
                default("all_reduce", 4, size).name, *ms(limit, found["medians"]["gloo"], own), f"{over:.2f}",
                f"{limit / own:.2f}", verdict(over, least=least),
            )  # fmt: skip


def small(page, preset_):
    page.add(
        "## Small messages (F5)\n\nFour hosts with 1 Gbit/s each, all-reduces in a row. The program is the "
        "group's default."
    )
    with page.table("bytes", "program", "gloo us", "own us", "own over gloo", "claimed") as row:
        with Lab(4, "1gbit") as lab:
            lines = compare(
                lab, collective="all_reduce", sizes=list(preset_["small"]),
                repeats=preset_["repeats"], times=preset_["times"], programs={}, chosen=True,
            )  # fmt: skip
        for found in lines:
            times = [found["seconds"][name] for name in ("chosen", "gloo")]
            ratio = float(np.median(paired(*times)))
            size = found["size_bytes"]
            row(
                size, default("all_reduce", 4, size).name, f"{found['medians']['gloo'] * 1e6:.0f}",
                f"{found['medians']['chosen'] * 1e6:.0f}", f"{ratio:.2f}", verdict(ratio, most=1.5),
            )  # fmt: skip


def training(page, preset_):
    page.add(
        "## Training steps on H4 (F7)\n\nDistributedDataParallel, virtual layers (20 ms forward, 40 ms backward, "
        "slept), float32 gradients; buckets of DDP's own sizes. Own: `ddp_hook` with the program planned for 16 MB."
    )
    topology = preset("h4")
    made = PLANNERS["forest"](
        CollectiveProblem(network=network(topology), collective="all_reduce", size_bytes=16 * MB)
    )
    with page.table("gradients MB", "gloo step ms", "own step ms", "faster", "claimed") as row:
        with scratch() as folder, Lab.of(topology) as lab:
            (found,), *_ = run(
                lab, "ddp_worker.py",
                {
                    "layers": 12, "parameters": preset_["parameters"], "forward_s": 0.02, "backward_s": 0.04,
                    "steps": preset_["steps"], "program": saved(folder, made.program),
                },
            )  # fmt: skip
        faster = float(np.median(paired(found["gloo"], found["programs"])))
        medians = [float(np.median(found[name])) for name in ("gloo", "programs")]
        row(
            f"{4 * preset_['parameters'] / 1e6:.0f}",
            *ms(*medians),
            f"{faster:.1f}",
            verdict(faster, least=2.0),
        )


def rates(page, preset_):
    page.add(
        "## Rates that the transport saw (F8)\n\nMessages over every edge of H4, one edge after the other. Rate of an "
        "edge: payload over the time in which the sender's kernel had bytes under way; TCP's payload is 0.957 of what "
        "is shaped. Latency cannot be shaped here (no netem), so it has no truth to be held against."
    )
    topology = preset("h4")
    shaped = pairs_of(topology).rates
    with page.table(
        "pair", "shaped Mbit/s", "seen, both ways", "largest error", "round trips us", "claimed"
    ) as row:
        with Lab.of(topology) as lab:
            job = {"size_bytes": preset_["rates_mb"] * MB, "repeats": preset_["repeats"]}
            lines = run(lab, "edges_worker.py", job)
        seen = {tuple(edge["edge"]): edge for host in lines for edge in host[-1]["edges"]}
        for (a, b), rate in shaped.items():
            both, trips = (
                [seen[pair][key] for pair in ((a, b), (b, a))] for key in ("bytes_per_s", "round_trip_s")
            )
            error = max(abs(one / rate - 1) for one in both)
            row(
                f"{a}-{b}", f"{rate * 8e-6:.0f}", ", ".join(f"{one * 8e-6:.0f}" for one in both),
                f"{100 * error:.1f} %", ", ".join(f"{1e6 * trip:.0f}" for trip in trips), verdict(error, most=0.1),
            )  # fmt: skip


ROWS = {
    "uneven": uneven, "alike": alike, "small": small, "training": training, "rates": rates, "noise": noise,
    "slow_leaf": slow_leaf, "chunk_size": chunk_size, "servers": servers,
    "windows": windows,
}  # fmt: skip


def main():
    options = arguments(__doc__, list(ROWS))
    facts = {"Network": "wirewise lab: namespaces, shaped links, real TCP", "Threads": "1"}
    page = Page("Collective programs over the own transport", options.preset, facts)
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
