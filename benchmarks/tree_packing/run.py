"""Claims about bounds, forests and packed trees; times of programs are simulated, only those of planners are measured.

    python benchmarks/tree_packing/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `bounds` (A1: published best all-gathers), `parts` (A2, B2: packed trees on all parts of a DGX-1), `forests` (B1:
spanning-tree forests at the bound), `all_reduces` (phases that share edges), `hybrid` (B3: NVLink and PCIe end
together), `chunks` (B4: chunk sizes found in few probes), `servers` (B5: bytes between servers), `uneven` (an uneven
network of four hosts against the ring).
"""

import itertools
import sys
import time
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import networkx
import numpy as np

from common import Page, arguments, verdict
from wirewise.collective import Edge, Network, check, network
from wirewise.collective.bounds import all_gather_inverse_rate, bound, busiest_edge_s, two_phase_s
from wirewise.collective.builders import build
from wirewise.planners.collective import CollectiveProblem, with_best_segments
from wirewise.planners.collective.blink import (
    Channel,
    ChunkSize,
    equal_finish,
    packed_trees,
    strength,
    tree_rate,
)
from wirewise.planners.collective.blink import links as nvlinks
from wirewise.planners.collective.blink import synthesize as blink
from wirewise.planners.collective.blink.arborescence import pack
from wirewise.planners.collective.forest import forest as packed_forest
from wirewise.planners.collective.forest import synthesize as forest
from wirewise.sim.programs import simulate
from wirewise.topology import preset

MB = 1_000_000
MACHINES = {
    "dgx-1v": Fraction(7, 150), "ndv2x2": Fraction(16, 25), "dgx-2x1": Fraction(15, 125),
    "dgx-a100x1": Fraction(7, 300), "dgx-a100x2": Fraction(15, 325), "dgx-h100x1": Fraction(7, 450),
    "dgx-h100x2": Fraction(15, 500), "mi250x1": Fraction(7, 150), "dgx-2x2": Fraction(62, 275),
    "dgx-2-relayedx2": Fraction(31, 125), "mi250x2": Fraction(15, 166),
}  # fmt: skip
"""Published best all-gathers: nanoseconds per byte of a rank's block."""
PRESETS = {
    "smoke": {
        "machines": list(MACHINES)[:4],
        "sizes": (1 << 26,),
        "probes": (14, 25),
        "hosts": (2,),
        "directed": 1,
    },
    "paper": {
        "machines": list(MACHINES),
        "sizes": (1 << 22, 1 << 26, 1 << 30),
        "probes": (14, 29),
        "hosts": (2, 3, 4),
        "directed": 6,
    },
}


def on(name):
    return network(preset(name), kinds={"nvlink"} if name.startswith("dgx-1") else None)


def timed(action):
    start = time.perf_counter()
    return action(), time.perf_counter() - start


def problem(net, collective, size=1e9):
    return CollectiveProblem(network=net, collective=collective, size_bytes=size)


def in_segments(program, net, size, segments):
    return simulate(msgspec.structs.replace(program, segments=segments), net, size).finish_s


def bounds_row(page, preset_):
    page.add("## Best all-gathers of published machines (A1)\n\nBy exact maximum flows, as a fraction.")
    all_gather_inverse_rate(on("dgx-1v"))
    with page.table("machine", "ranks", "ns a byte of a block", "published", "GB/s", "ms", "claimed") as row:
        for name, expected in MACHINES.items():
            net = on(name)
            found, seconds = timed(lambda n=net: all_gather_inverse_rate(n) * 10**9)
            error = abs(float(found / expected) - 1)
            rate = f"{net.ranks / float(found):.2f}"
            row(name, net.ranks, found, expected, rate, f"{1e3 * seconds:.1f}", verdict(error, most=1e-9))


def kinds(name):
    """Joined parts of 3 to 8 GPUs, one of each kind, in NVLinks."""
    capacity = nvlinks(on(name))
    counts = np.round(capacity / capacity[capacity > 0].min()).astype(np.int64)
    same, found = networkx.algorithms.isomorphism.numerical_edge_match("weight", 0), []
    for size in range(3, 9):
        for subset in itertools.combinations(range(8), size):
            part = counts[np.ix_(subset, subset)]
            graph = networkx.from_numpy_array(part)
            if networkx.is_connected(graph) and not any(
                len(graph) == len(other) and networkx.is_isomorphic(graph, other, edge_match=same)
                for other, _ in found
            ):
                found.append((graph, part))
    return [part.astype(float) for _, part in found]


def parts_row(page, preset_):
    page.add(
        "## Packed trees on all kinds of parts of a DGX-1 (A2, B2)\n\nBroadcast from the best root; undirected: "
        "all-reduce. Weights: multiplicative weights with epsilon 0.1; few: after the integer program. Parts of the "
        "optimum are the least over all kinds."
    )
    with page.table(
        "machine", "trees", "kinds", "expected", "weights / optimum", "few / optimum", "most trees over the optimum",
        "slowest weights s", "slowest program s", "weights, claimed", "few, claimed", "seconds, claimed",
    ) as row:  # fmt: skip
        for (name, count), both in itertools.product((("dgx-1v", 46), ("dgx-1p", 14)), (False, True)):
            parts = kinds(name)
            found = [packed(part, both) for part in parts]
            many, few, over, packing_s, program_s = (max(values) for values in zip(*found, strict=True))
            row(
                name, "undirected" if both else "directed", len(parts), count, f"{1 - many:.4f}", f"{1 - few:.4f}",
                f"{over:g}", f"{packing_s:.3f}", f"{program_s:.2f}", verdict(1 - many, least=0.95),
                verdict(1 - few, least=0.95 - 1e-6), verdict(packing_s, most=2.0),
            )  # fmt: skip


def packed(part, both):
    """Losses, trees over the optimum, and seconds."""
    unit = part[part > 0].min()
    root = 0 if both else max(range(len(part)), key=lambda r: tree_rate(part, r))
    best = float(strength(part.astype(np.int64))) if both else tree_rate(part, root)
    pack(part, root, both=both)
    (_, weights), packing_s = timed(lambda: pack(part, root, both=both))
    trees, program_s = timed(lambda: packed_trees(part, root, both=both))
    rate = float(sum(tree.weight for tree in trees)) * unit
    return 1 - weights.sum() / best, 1 - rate / best, len(trees) - best, packing_s, program_s


def forests_row(page, preset_):
    page.add(
        "## Forests at the bound (B1)\n\nAll-gather; busiest edge over the cut bound, with any paths past switches, "
        "and as a program, whose transfers take the network's routes. In simulation: of 1 GB in the best number of "
        "segments."
    )
    forest(problem(on("ndv2x2"), "all_gather"))
    with page.table(
        "machine", "ranks", "trees", "height", "any paths / bound - 1", "program / bound - 1", "simulated / bound",
        "seconds", "claimed", "seconds, claimed",
    ) as row:  # fmt: skip
        for name in preset_["machines"]:
            net = on(name)
            ranks = tuple(range(net.ranks))
            found, seconds = timed(
                lambda n=net, r=ranks: packed_forest(n, dict.fromkeys(r, 1), r, fixed_routes=False)
            )
            over = found.seconds(net) / float(MACHINES[name] / 10**9) - 1
            program = forest(problem(net, "all_gather"))
            check(program)
            least = bound(net, "all_gather", 1e9).seconds
            simulated_s = with_best_segments(program, net, 1e9)[1]
            row(
                name, net.ranks, len(found.trees), max(tree.height for tree in found.trees), f"{over:.1e}",
                f"{busiest_edge_s(program, net, 1e9) / least - 1:.1e}", f"{simulated_s / least:.4f}",
                f"{seconds:.2f}", verdict(over, most=1e-9), verdict(seconds, most=5 if net.ranks <= 16 else 60),
            )  # fmt: skip


def all_reduces_row(page, preset_):
    page.add(
        "## All-reduces at the bound\n\nBusiest edge of the program over the bound of cuts and partitions. Two phases: "
        "the least for a reduce-scatter and then an all-gather. Directed: six ranks in a ring of one-way links of "
        "rate 1, and random one-way links of up to 5."
    )
    with page.table("network", "ranks", "two phases / bound", "program / bound", "program", "seconds") as row:
        networks = {name: on(name) for name in preset_["machines"] if on(name).ranks <= 16}
        networks |= {f"directed {seed}": directed(seed, 6) for seed in range(preset_["directed"])}
        for name, net in networks.items():
            program, seconds = timed(lambda n=net: forest(problem(n, "all_reduce")))
            check(program)
            least = bound(net, "all_reduce", 1e9).seconds
            row(
                name, net.ranks, f"{two_phase_s(net, 1e9) / least:.4f}",
                f"{busiest_edge_s(program, net, 1e9) / least:.4f}", program.name, f"{seconds:.2f}",
            )  # fmt: skip


def directed(seed, ranks):
    rng = np.random.default_rng(seed)
    rates = rng.integers(0, 6, (ranks, ranks)) * (rng.random((ranks, ranks)) < 0.5)
    for v in range(ranks):
        rates[v, v], rates[v, (v + 1) % ranks] = 0, max(rates[v, (v + 1) % ranks], 1)
    edges = tuple(Edge(a, b, 1e9 * float(rates[a, b]), 1e-6) for a, b in np.argwhere(rates).tolist())
    return Network(name="directed", ranks=ranks, vertices=tuple(map(str, range(ranks))), edges=edges)


def hybrid_row(page, preset_):
    page.add(
        "## NVLink and PCIe at once (B3, simulated)\n\nBroadcast on a DGX-1V: packed trees on NVLink, a chain on PCIe "
        "that starts late, as peer access must be switched. Shares from rates at two sizes near them."
    )
    topology = preset("dgx-1v")
    ways = [network(topology, {"nvlink"}), network(topology, {"pcie", "socket"})]
    programs = [blink(problem(ways[0], "broadcast")), build("broadcast", "chain", 8)]
    with page.table(
        "GB",
        "PCIe starts ms",
        "on PCIe MB",
        "NVLink ends ms",
        "PCIe ends ms",
        "apart %",
        "NVLink alone ms",
        "claimed",
    ) as row:
        for size, start_s in itertools.product((1e9, 4e9), (1e-3, 5e-3, 1.0)):
            near = zip(programs, ways, (0.9 * size, 0.1 * size), (0.0, start_s), strict=True)
            sizes = equal_finish(size, [measured(*way) for way in near])
            alone = in_segments(programs[0], ways[0], size, 256)
            if not sizes[1]:
                row(
                    size / 1e9,
                    1e3 * start_s,
                    0,
                    f"{1e3 * alone:.2f}",
                    "not used",
                    "",
                    f"{1e3 * alone:.2f}",
                    "none",
                )
                continue
            ends = [in_segments(p, w, part, 256) for p, w, part in zip(programs, ways, sizes, strict=True)]
            ends[1] += start_s
            apart = abs(ends[0] / ends[1] - 1)
            row(
                size / 1e9, 1e3 * start_s, f"{sizes[1] / MB:.0f}", *(f"{1e3 * s:.2f}" for s in ends),
                f"{100 * apart:.2f}", f"{1e3 * alone:.2f}", verdict(apart, most=0.01),
            )  # fmt: skip


def measured(program, way, size, wait_s):
    small, large = (in_segments(program, way, part * size, 256) for part in (0.8, 1.2))
    rate = 0.4 * size / (large - small)
    return Channel(rate, wait_s + small - 0.8 * size / rate)


def chunks_row(page, preset_):
    page.add(
        "## Chunk sizes found while running (B4, simulated)\n\nPacked trees on a DGX-1V; doubled while that helps, "
        "then down in steps, against the best power of two."
    )
    net = on("dgx-1v")
    with page.table(
        "collective", "MiB", "probes", "chunk kiB", "best chunk kiB", "of the best", "claimed"
    ) as row:
        for collective, size in itertools.product(("broadcast", "all_reduce"), preset_["sizes"]):
            program = blink(problem(net, collective))

            def rate(chunk, program=program, size=size):
                segments = max(1, round(max(program.chunk_bytes(size)) / chunk))
                return size / in_segments(program, net, size, min(segments, 4096))

            grid = {1 << power: rate(1 << power) for power in range(*preset_["probes"])}
            control, probes = ChunkSize(), 0
            while not control.done and probes < 12:
                control.report(rate(control.size_bytes))
                probes += 1
            part = rate(control.size_bytes) / max(grid.values())
            best = max(grid, key=grid.get)
            row(
                collective, size >> 20, probes, control.size_bytes >> 10, best >> 10, f"{part:.3f}",
                verdict(part, least=0.95),
            )  # fmt: skip


def servers_row(page, preset_):
    page.add(
        "## All-reduce between servers in three phases (B5)\n\nBytes that a server sends to others, of 1 GB."
    )
    with page.table(
        "machines", "sent by a server GB", "2 M (n - 1) / n GB", "busiest edge / bound", "claimed"
    ) as row:
        for hosts in preset_["hosts"]:
            net = on(f"dgx-a100x{hosts}")
            servers = [range(8 * n, 8 * n + 8) for n in range(hosts)]
            program = blink(problem(net, "all_reduce"), servers=servers)
            check(program)
            each, sent = program.chunk_bytes(1e9), [0.0] * hosts
            for t in program.transfers:
                if t.source // 8 != t.target // 8:
                    sent[t.source // 8] += each[t.chunk]
            most = 2 * (hosts - 1) / hosts
            busy = busiest_edge_s(program, net, 1e9) / bound(net, "all_reduce", 1e9).seconds
            row(
                f"{hosts} of 8 A100", f"{max(sent) / 1e9:.3f}", f"{most:.3f}", f"{busy:.2f}",
                verdict(max(sent) / 1e9, most=most * (1 + 1e-9)),
            )  # fmt: skip


def uneven_row(page, preset_):
    page.add(
        "## An uneven network of four hosts (simulated)\n\nAll-reduce; links of 1600, 400 and 100 Mbit/s, or a quarter "
        "of it. Ring: in rank order."
    )
    with page.table("network", "MiB", "bound ms", "two phases ms", "forest ms", "ring ms", "faster") as row:
        for name, size in (("h4", 16 << 20), ("h4", 64 << 20), ("h4-quarter", 8 << 20)):
            net = network(preset(name))
            planned = with_best_segments(forest(problem(net, "all_reduce", size)), net, size)[1]
            ring = with_best_segments(build("all_reduce", "ring", 4), net, size)[1]
            least = bound(net, "all_reduce", size).seconds
            times = (least, two_phase_s(net, size), planned, ring)
            row(name, size >> 20, *(f"{1e3 * s:.1f}" for s in times), f"{ring / planned:.2f}x")


ROWS = {
    "bounds": bounds_row,
    "parts": parts_row,
    "forests": forests_row,
    "all_reduces": all_reduces_row,
    "hybrid": hybrid_row,
    "chunks": chunks_row,
    "servers": servers_row,
    "uneven": uneven_row,
}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page("Bounds and packed trees", options.preset, {"Threads": "1", "Programs": "simulated"})
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
