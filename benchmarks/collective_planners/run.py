"""Claims about the planners of collectives; times of programs are simulated, only the seconds of searches are measured.

    python benchmarks/collective_planners/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `exact` (C1: programs of a DGX-1 that exist and that do not), `many` (C8: greedy programs for many ranks),
`orders` (G1: the rules of event-driven trees in every order of events), `noise` (G2: their slowdown under noise),
`levels` (G5: trees over two levels against rank order), `choice` (the program that is chosen, by network and size),
`drift` (12.4: planning again when a link becomes slow).
"""

import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
from benchmarks.collective_planners.adapt_rules import Broadcast, Reduce, Windows
from benchmarks.collective_planners.event_trees import Noise, Tree, binomial, chain, mean_s, rules_of
from benchmarks.collective_planners.interleavings import explore

from common import Page, arguments, verdict
from wirewise.collective import Edge, Network, check, network
from wirewise.collective.bounds import bound
from wirewise.planners.collective import SYNTHESIZERS, CollectiveProblem, with_best_segments
from wirewise.planners.collective.adapt import distances, program_of, tree
from wirewise.planners.collective.adapt import synthesize as adapt
from wirewise.planners.collective.auto import choose
from wirewise.planners.collective.greedy import synthesize as greedy
from wirewise.planners.collective.sccl import Point, solve
from wirewise.sim.programs import simulate
from wirewise.topology import preset

MB = 1_000_000
PRESETS = {
    # Tori; ranks and segments of all orders; ranks and rounds under noise; networks, sizes and seconds of choices.
    "smoke": {
        "tori": ((4, 4), (8, 8)),
        "orders": ((2, 4, True), (3, 3, True), (3, 3, False), (4, 2, True)),
        "noise": ((8, 20),),
        "networks": ("unequal",),
        "collectives": ("all_gather", "broadcast"),
        "sizes": (1_000, MB),
        "search_s": 2.0,
    },
    "paper": {
        "tori": ((4, 4), (8, 8), (8, 16), (16, 16), (16, 32)),
        "orders": (
            *itertools.product((2, 3), (4,), (True, False)),
            (4, 3, True), (4, 3, False), (4, 4, True),
        ),
        "noise": ((8, 100), (32, 40)),
        "networks": ("dgx-1v", "unequal", "two-level", "torus 4x4", "switch of 8"),
        "collectives": ("broadcast", "all_gather", "all_reduce", "all_to_all"),
        "sizes": (1_000, MB, 64 * MB),
        "search_s": 3.0,
    },
}  # fmt: skip
POINTS = {(1, 2, 2): True, (2, 2, 3): True, (6, 3, 7): True, (2, 2, 2): False, (3, 2, 4): False}


def direct(name, ranks, rates, latency_s):
    edges = tuple(Edge(s, t, rate, latency_s) for (s, t), rate in sorted(rates.items()))
    return Network(name=name, ranks=ranks, vertices=tuple(f"r{r}" for r in range(ranks)), edges=edges)


def torus(rows, columns, odd_rate=1e9):
    """Links of 1 GB/s; those along odd rows may have another rate."""
    rates = {}
    for x, y in itertools.product(range(rows), range(columns)):
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            target = (x + dx) % rows * columns + (y + dy) % columns
            rates[x * columns + y, target] = odd_rate if dy and x % 2 else 1e9
    return direct(f"torus {rows}x{columns}", rows * columns, rates, 1e-6)


def unequal():
    """Four hosts: pairs 0-1 and 2-3 at 1600 Mbit/s, 0-2 at 400, the others at 100."""
    fast = {(0, 1): 200e6, (2, 3): 200e6, (0, 2): 50e6}
    pairs = itertools.permutations(range(4), 2)
    return direct("unequal", 4, {(s, t): fast.get((min(s, t), max(s, t)), 12.5e6) for s, t in pairs}, 1e-4)


def groups(own, count, inside=1e9, between=1e8):
    """Ranks around the switch of their group, the switches around one more; `own`: group of each rank."""
    ranks, core = len(own), len(own) + count
    ends = [(rank, ranks + group, inside, 1e-6) for rank, group in enumerate(own)]
    ends += [(ranks + group, core, between, 1e-5) for group in range(count if count > 1 else 0)]
    edges = tuple(Edge(*pair, rate, wait) for s, t, rate, wait in ends for pair in ((s, t), (t, s)))
    names = [f"r{r}" for r in range(ranks)] + [f"switch{g}" for g in range(count)] + ["core"]
    return Network(name="groups", ranks=ranks, vertices=tuple(names), edges=edges)


NETWORKS = {
    "dgx-1v": lambda: network(preset("dgx-1v"), kinds={"nvlink"}),
    "unequal": unequal,
    "two-level": lambda: groups([0] * 4 + [1] * 4, 2),
    "torus 4x4": lambda: torus(4, 4),
    "switch of 8": lambda: groups([0] * 8, 1),
}


def exact_row(page, preset_):
    page.add(
        "## All-gathers of a DGX-1 over NVLink: chunks, steps, rounds (C1)\n\nFound and proved by the checker, or "
        "proved not to exist."
    )
    with page.table("chunks, steps, rounds", "exists", "expected", "seconds", "claimed") as row:
        problem = CollectiveProblem(network=NETWORKS["dgx-1v"](), collective="all_gather", size_bytes=64 * MB)
        for point, expected in POINTS.items():
            program, seconds = timed(lambda p=point: solve(problem, Point(*p)))
            if program is not None:
                check(program)
            holds = verdict(seconds, most=10.0) if (program is not None) == expected else "FAILS"
            row(point, program is not None, expected, f"{seconds:.2f}", holds)


def timed(action):
    """What it returns, and the processor's seconds: other programs share the machine."""
    start = time.process_time()
    return action(), time.process_time() - start


def many_row(page, preset_):
    page.add(
        "## Greedy all-gathers on tori (C8)\n\nBlocks of 1 MB, links of 1 GB/s; mixed: the links along every other row "
        "at 0.5 GB/s. First run: one run with blocks whole. Best: of up to 16 runs, also with smaller chunks. "
        "Simulated time over the cut bound."
    )
    with page.table(
        "ranks",
        "links",
        "first run s",
        "first run / bound",
        "best s",
        "best / bound",
        "claimed",
        "seconds claimed",
    ) as row:
        greedy(CollectiveProblem(network=torus(2, 2), collective="all_gather", size_bytes=MB), runs=1)
        for (rows, columns), odd_rate in itertools.product(preset_["tori"], (1e9, 0.5e9)):
            net = torus(rows, columns, odd_rate)
            problem = CollectiveProblem(network=net, collective="all_gather", size_bytes=net.ranks * MB)
            least = bound(net, "all_gather", problem.size_bytes).seconds
            quick, quick_s = timed(lambda p=problem: greedy(p, chunks=1, runs=1))
            best, best_s = timed(lambda p=problem: greedy(p, time_limit_s=3.0, runs=16))
            ratios = [simulate(p, net, problem.size_bytes).finish_s / least for p in (quick, best)]
            limit = {128: 5.0, 512: 120.0}.get(net.ranks)
            row(
                net.ranks, "alike" if odd_rate == 1e9 else "mixed", f"{quick_s:.2f}", f"{ratios[0]:.3f}",
                f"{best_s:.2f}", f"{ratios[1]:.3f}", verdict(ratios[0], most=1.25) if limit else "none",
                verdict(quick_s, most=limit) if limit else "none",
            )  # fmt: skip


def orders_row(page, preset_):
    page.add(
        "## Rules of event-driven trees in every order of events (G1)\n\nAll trees of so many ranks, windows of 1 "
        "and 2 sends and receives. Rendezvous: a send ends after its receive; buffered: at any time. Faults: "
        "deadlock, a segment sent or received twice, sent or added before it came. Last line: the published rule of "
        "reduce, on one tree, without the guard."
    )
    with page.table(
        "rules", "ranks", "segments", "sends end", "cases", "states", "largest", "faults", "claimed"
    ) as row:
        for (ranks, segments, rendezvous), kind in itertools.product(preset_["orders"], (Broadcast, Reduce)):
            found = list(explored(kind, ranks, segments, rendezvous))
            faults = sum(len(f.faults) for f in found)
            states = [f.states for f in found]
            row(
                kind.__name__.lower(), ranks, segments, "rendezvous" if rendezvous else "buffered", len(found),
                sum(states), max(states), faults, verdict(faults, most=0),
            )  # fmt: skip
        stuck = explore(rules(Reduce, Tree.of([None, 0, 1, 1]), 4, Windows(2, 2), guarded=False), "up", 4)
        row(
            "reduce, unguarded",
            4,
            4,
            "rendezvous",
            1,
            stuck.states,
            stuck.states,
            "; ".join(stuck.faults),
            "none",
        )


def explored(kind, ranks, segments, rendezvous):
    for parents in itertools.product(*(range(rank) for rank in range(1, ranks))):
        for windows in itertools.product((1, 2), (1, 2)):
            own = rules(kind, Tree.of([None, *parents]), segments, Windows(*windows))
            yield explore(own, "down" if kind is Broadcast else "up", segments, rendezvous=rendezvous)


def rules(kind, tree, segments, windows, **options):
    ends = zip(tree.parents, tree.children, strict=True)
    return [kind(parent, children, segments, windows, **options) for parent, children in ends]


def noise_row(page, preset_):
    page.add(
        "## Slowdown under noise (G2, simulated)\n\nBroadcasts and reduces of 64 segments of 64 KiB at 1.25 GB/s, one "
        "after the other without barriers; each rank is interrupted ten times a second for up to 10 ms (5 %) or "
        "20 ms (10 %). Synchronous: a segment goes on when all sends of the one before have ended."
    )
    with page.table(
        "ranks", "tree", "collective", "noise %", "synchronous ms", "event-driven ms", "synchronous slower %",
        "event-driven slower %", "ratio of slowdowns", "claimed",
    ) as row:  # fmt: skip
        for ranks, rounds in preset_["noise"]:
            cases = itertools.product((binomial, chain), ("broadcast", "reduce"), (0.01, 0.02))
            for shape, collective, longest_s in cases:
                quiet, slower = slowdowns(shape(ranks), collective, rounds, longest_s)
                ratio, most = slower[1] / slower[0], {8: 0.7, 32: 0.3}[ranks]
                due = shape is binomial and longest_s == 0.01
                row(
                    ranks, shape.__name__, collective, round(500 * longest_s), *(f"{1e3 * s:.2f}" for s in quiet),
                    *(f"{100 * s:.0f}" for s in slower), f"{ratio:.2f}", verdict(ratio, most=most) if due else "none",
                )  # fmt: skip


def slowdowns(tree, collective, rounds, longest_s):
    quiet, slower = [], []
    for synchronous in (True, False):
        own = rules_of(tree, collective, 64, synchronous=synchronous)
        quiet.append(mean_s(own, 5))
        slower.append(mean_s(own, rounds, noise=Noise(longest_s)) / quiet[-1] - 1)
    return quiet, slower


def levels_row(page, preset_):
    page.add(
        "## Trees over two levels against rank order (G5, simulated)\n\n4 MB; 1 GB/s to the switch of the group, "
        "100 MB/s from there. Both in their best number of segments. In order, groups of 4 and 8 "
        "fit a binomial tree. An all-reduce on a tree takes in the sums and the result, twice what its bound counts."
    )
    with page.table(
        "groups", "ranks are", "collective", "binomial in rank order ms", "adapt ms", "bound ms", "faster",
        "edges between groups", "claimed", "edges, claimed",
    ) as row:  # fmt: skip
        for (count, size), dealt, collective in itertools.product(
            ((3, 5), (4, 4), (4, 8)), (False, True), ("broadcast", "reduce", "all_reduce")
        ):
            own = [r % count if dealt else r // size for r in range(count * size)]
            net = groups(own, count)
            problem = CollectiveProblem(network=net, collective=collective, size_bytes=4 * MB)
            order = tree(distances(net), tuple(range(net.ranks)), 0, ("binomial",))
            _, plain_s = with_best_segments(program_of(problem, order), net, 4 * MB)
            program, planned_s = with_best_segments(adapt(problem), net, 4 * MB)
            least = bound(net, collective, 4 * MB).seconds
            between = sum(own[t.source] != own[t.target] for t in program.transfers)
            each_way = 2 if collective == "all_reduce" else 1
            fits = not dealt and size & (size - 1) == 0
            due = collective != "all_reduce" and not fits
            row(
                f"{count} of {size}", "dealt out" if dealt else "in order", collective,
                *(f"{1e3 * s:.1f}" for s in (plain_s, planned_s, least)), f"{plain_s / planned_s:.2f}x", between,
                verdict(plain_s / planned_s, least=1.5) if due else "none",
                verdict(between, most=each_way * (count - 1)),
            )  # fmt: skip


def choice_row(page, preset_):
    page.add(
        "## What is chosen (simulated)\n\nAll known algorithms and planners, each in its best number of segments, "
        f"searched for {preset_['search_s']:g} s on a wall clock. "
        "Builtin: what gloo does by itself, whatever the network; it is kept where the gain is below 10 %. Small "
        "messages: latencies, which the bound leaves out, are most of the time."
    )
    with page.table(
        "network", "collective", "size kB", "chosen", "segments", "ms", "builtin ms", "faster", "ms / bound",
        "candidates", "seconds",
    ) as row:  # fmt: skip
        cases = itertools.product(preset_["networks"], preset_["collectives"], preset_["sizes"])
        for name, collective, size in cases:
            net = NETWORKS[name]()
            problem = CollectiveProblem(network=net, collective=collective, size_bytes=size)
            choice, took = timed(lambda p=problem: choose(p, SYNTHESIZERS, time_limit_s=preset_["search_s"]))
            check(choice.program)
            times = {c.name: c.predicted_s for c in choice.candidates}
            seconds, builtin = times[choice.program.name], times.get("builtin")
            least = bound(net, collective, size).seconds
            row(
                name, collective, size // 1000, choice.program.name, choice.program.segments, f"{1e3 * seconds:.3f}",
                f"{1e3 * builtin:.3f}" if builtin else "no routes", f"{builtin / seconds:.2f}x" if builtin else "",
                f"{seconds / least:.3f}", len(times), f"{took:.1f}",
            )  # fmt: skip


def drift_row(page, preset_):
    page.add(
        "## Planning again when a link becomes slow (simulated)\n\nAll-gather of 16 MB among four unequal hosts; one "
        "link loses a part of its rate, both ways. Kept: the program made before."
    )
    with page.table(
        "link", "left of its rate %", "plans again", "kept ms", "new ms", "bound ms", "faster", "planner s"
    ) as row:
        net = unequal()
        old = planned(net)
        for (a, b), part in itertools.product(((0, 2), (0, 1), (1, 3)), (0.85, 0.5, 0.1)):
            # As `runtime.collective.LinkMonitor` takes it.
            if part >= 0.8:
                row(f"{a}-{b}", round(100 * part), "no", *[""] * 5)
                continue
            changed = slower(net, {a, b}, part)
            new, took = timed(lambda c=changed: planned(c))
            kept_s, new_s = (simulate(p, changed, 16 * MB).finish_s for p in (old, new))
            least = bound(changed, "all_gather", 16 * MB).seconds
            row(
                f"{a}-{b}", round(100 * part), "yes", *(f"{1e3 * s:.1f}" for s in (kept_s, new_s, least)),
                f"{kept_s / new_s:.2f}x", f"{took:.2f}",
            )  # fmt: skip


def slower(net, ends, part):
    """The network with this part of the rate between two ranks, both ways."""
    edges = tuple(
        e._replace(bandwidth_bytes_per_s=part * e.bandwidth_bytes_per_s)
        if {e.source, e.target} == ends
        else e
        for e in net.edges
    )
    return msgspec.structs.replace(net, edges=edges)


def planned(net):
    problem = CollectiveProblem(network=net, collective="all_gather", size_bytes=16 * MB)
    return greedy(problem, time_limit_s=1.0, runs=32)


ROWS = {
    "exact": exact_row,
    "many": many_row,
    "orders": orders_row,
    "noise": noise_row,
    "levels": levels_row,
    "choice": choice_row,
    "drift": drift_row,
}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page(
        "Planners of collectives",
        options.preset,
        {"Programs": "simulated", "Seconds of searches": "of the processor"},
    )
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
