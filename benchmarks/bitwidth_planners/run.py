"""Claims about bit-width planners: exactness and speed against HiGHS, noise at equal bytes, cost of deciding.

    python benchmarks/bitwidth_planners/run.py --preset smoke|paper [--out FILE.md]

Times are medians of interleaved runs in one process on one core.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import Page, basic_parser, verdict
from wirewise.cost import CodecCost, ExchangeCosts, LinkCost, Links
from wirewise.planners.bitwidth import (
    BitWidthProblem,
    ChannelProblem,
    ExchangeProblem,
    noise_factor,
    plan_channels,
    warm,
)
from wirewise.planners.bitwidth.distributed import run_ranks
from wirewise.planners.bitwidth.frontier import frontier
from wirewise.planners.bitwidth.milp import solve as solve_by_milp
from wirewise.planners.bitwidth.problem import own_channels
from wirewise.planners.bitwidth.program import BitWidthProgram
from wirewise.planners.bitwidth.threshold import solve

PRESETS = {
    # (ranks, messages a channel, group size) of A2; HiGHS limit; repeats; messages a rank of the decision.
    "smoke": {"programs": [(4, 1000, 100)], "limit_s": 5.0, "repeats": 3, "decisions": [(4, 2_800)]},
    "paper": {
        "programs": [(4, 5_000, 100), (8, 2_500, 100), (8, 8_000, 100), (8, 16_000, 100)],
        "limit_s": 60.0,
        "repeats": 7,
        "decisions": [(4, 28_000), (8, 28_000)],
    },
}


def exchange(rng, ranks, messages, *, name="forward1", width=256, sigma=1.5):
    channels = [
        ChannelProblem(sender=s, receiver=r, weights=np.exp(sigma * rng.normal(size=messages)))
        for s in range(ranks)
        for r in range(ranks)
        if s != r
    ]
    return ExchangeProblem(name=name, width=width, channels=channels)


def random_links(rng, ranks):
    links = {
        (s, r): LinkCost(latency_s=1e-4 * rng.random(), s_per_byte=1e-8 * (1 + rng.random()))
        for s in range(ranks)
        for r in range(ranks)
        if s != r
    }
    return Links.of_pairs(links, ranks, ring=True)


def timed(action, repeats=1):
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - start)
    return result, float(np.median(seconds))


def against_highs(preset):
    rows = []
    for ranks, messages, group_size in preset["programs"]:
        rng = np.random.default_rng(ranks * messages)
        program = BitWidthProgram(
            exchange(rng, ranks, messages), random_links(rng, ranks), group_size=group_size
        )
        binaries = 3 * sum(len(g.weights) for g in program.groups)
        ours, our_s = timed(lambda p=program: solve(p), preset["repeats"])
        theirs, their_s = timed(lambda p=program: solve_by_milp(p, time_limit_s=preset["limit_s"]))
        gap = program.objective(ours) - program.objective(theirs)
        rows.append(
            [
                f"{binaries}",
                f"{our_s:.4f}",
                f"{their_s:.2f}",
                f"{their_s / our_s:.0f}x",
                f"{gap:+.1e}",
                f"difference {verdict(gap, most=1e-9)}; seconds {verdict(our_s, most=0.5)}",
            ]
        )
    titles = ["binaries", "exact solver s", "HiGHS s", "ratio", "objective difference", "A2"]
    return "Exact solver against HiGHS (A2)", titles, rows


def at_equal_bytes(_preset):
    rows, bits = [], (2, 4, 8)
    factor = np.array([noise_factor(b) for b in bits])
    size = np.array([64 + 6, 128 + 6, 256 + 6])
    for sigma in (0.5, 1.0, 1.5, 2.0, 3.0):
        rng = np.random.default_rng(0)
        weights = np.sort(np.exp(sigma * rng.normal(size=4000)))[::-1].copy()
        curve = frontier(weights, np.ones(4000, np.int64), size, factor, bits)
        at = int(np.searchsorted(curve.size_bytes, 4000 * 134, side="right")) - 1
        uniform = weights.sum() / 225
        drawn = float((rng.choice(factor, 4000) * weights).sum())
        enough = int(np.argmax(curve.noise <= uniform))
        mean = (curve.size_bytes[enough] / 4000 - 6) * 8 / 256
        rows.append(
            [f"{sigma}", f"{curve.noise[at] / uniform:.3f}", f"{curve.noise[at] / drawn:.4f}", f"{mean:.2f}"]
        )
    return (
        "Noise at the bytes of uniform 4 bits, and mean bits at its noise (A6)",
        ["sigma", "adaptive / uniform", "adaptive / random", "mean bits"],
        rows,
    )


def deciding(preset):
    rows = []
    codec = CodecCost.of_rates(
        {1: 1.5e9, 2: 1.4e9, 4: 1.2e9, 8: 1.1e9, 16: 3e9, 32: 8e9},
        dict.fromkeys((1, 2, 4, 8, 16, 32), 3000000000.0),
    )
    names = ("forward0", "forward1", "forward2", "backward2", "backward1")
    for ranks, messages in preset["decisions"]:
        rng = np.random.default_rng(ranks)
        exchanges = [exchange(rng, ranks, messages // (ranks - 1), name=n, width=64) for n in names]
        whole = BitWidthProblem(exchanges=exchanges, world_size=ranks)
        for rate in (25e6, 125e6, 1.25e9, 12.5e9):
            costs = ExchangeCosts(
                links=Links.of_pairs(LinkCost(latency_s=1e-4, s_per_byte=1 / rate), ranks), codec=codec
            )
            tables = _tables(whole, costs)
            own = own_channels(whole, 0)
            decision, seconds = timed(
                lambda o=own, c=costs, t=tables: plan_channels(o, c, rank=0, allgather=lambda _: t),
                preset["repeats"],
            )
            best = min(t for b, t in decision.static_exposed_s.items() if b >= 4)
            auto = sum(decision.exposed_s.values())
            rows.append(
                [
                    f"{ranks}",
                    f"{messages}",
                    f"{rate * 8 / 1e9:g}",
                    f"{seconds * 1e3:.1f}",
                    f"{tables[0].nbytes / 1e3:.0f}",
                    f"{auto * 1e3:.2f}",
                    f"{auto / best:.3f}",
                    f"{np.mean(list(decision.mean_bits.values())):.2f}",
                ]
            )
    titles = [
        "ranks",
        "messages a rank",
        "Gbit/s",
        "decide ms",
        "shared kB",
        "exposed ms",
        "auto / best static",
        "bits",
    ]
    return "Automatic bits, 5 exchanges, exposed times simulated", titles, rows


def _tables(whole, costs):
    """What every rank shares."""

    def own(rank, allgather):
        seen = []

        def share(table):
            seen.append(table)
            return allgather(table)

        plan_channels(own_channels(whole, rank), costs, rank=rank, allgather=share)
        return seen[0]

    return run_ranks(whole.world_size, own)


def main():
    options = basic_parser(__doc__).parse_args()
    page = Page("Bit-width planners", options.preset, {"Threads": "1", "HiGHS": "one run of each size"})
    warm()
    for part in (against_highs, at_equal_bytes, deciding):
        title, titles, rows = part(PRESETS[options.preset])
        page.add(f"## {title}")
        with page.table(*titles) as row:
            for cells in rows:
                row(*cells)
    page.finish(options)


if __name__ == "__main__":
    main()
