"""TACCL: routings proved best, programs replayed against the cut, chunks sent together, networks without a sketch."""

import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machines import machine_network

from common import Page, arguments, verdict
from wirewise.collective import check, network
from wirewise.collective.bounds import bound
from wirewise.planners.collective import CollectiveProblem, with_best_segments
from wirewise.planners.collective.taccl import PROFILES, SKETCHES, results, synthesize
from wirewise.planners.collective.taccl.greedy import match
from wirewise.planners.collective.taccl.instance import instance
from wirewise.planners.collective.taccl.logical import logical
from wirewise.planners.collective.taccl.routing import relaxed_time, route
from wirewise.planners.collective.taccl.sketch import Hyperparameters
from wirewise.sim.programs import simulate
from wirewise.topology import preset

GIB = 1 << 30
# Sketch, collective, chunks a block, least objective in microseconds.
ROUTINGS = (
    ("ndv2-n1", "all_gather", 1, 69),
    ("ndv2-n1", "all_gather", 2, 115),
    ("ndv2-sk-1", "all_gather", 1, 856),
    ("dgx2-n1", "all_gather", 1, 120),
    ("dgx2-sk-1", "all_gather", 1, 248),
    ("dgx2-sk-1", "all_gather", 2, 496),
    ("ndv2-n1", "all_to_all", 1, 138),
    ("ndv2-sk-1", "all_to_all", 1, 6848),
    ("dgx2-n1", "all_to_all", 1, 120),
    ("dgx2-sk-1", "all_to_all", 1, None),
)
# Sketch, collective, chunks a block, most of the cut bound.
REPLAYS = (
    ("ndv2-sk-1", "all_gather", 2, 1.10),
    ("ndv2-sk-1", "all_gather", 4, 1.05),
    ("dgx2-n1", "all_gather", 1, 1.02),
    ("dgx2-sk-1", "all_gather", 2, 1.10),
    ("ndv2-sk-1", "all_to_all", 1, 1.02),
)
PRESETS = {
    "smoke": {"routings": 4, "replays": 1, "limit_s": 5.0, "nets": ("h4",), "collectives": ("all_gather",)},
    "paper": {
        "routings": len(ROUTINGS),
        "replays": len(REPLAYS),
        "limit_s": 20.0,
        "nets": ("h4", "dgx-1v", "ndv2x2"),
        "collectives": ("all_gather", "all_to_all", "all_reduce", "broadcast"),
    },
}


def measured(sketch):
    return PROFILES[f"{sketch[:4]}-1MB"]


def divided(sketch, chunkup):
    return msgspec.structs.replace(SKETCHES[sketch], hyperparameters=Hyperparameters(input_chunkup=chunkup))


def routing_row(page, preset_):
    page.add(
        "## Stage 1: routings (C2)\n\nObjective in us for chunks of 1 MiB. "
        "Alone: HiGHS with the cut bound and big constants "
        "from a matching, but not started with it. Started: from the matching, without HiGHS where the cut proves that "
        "best. Cut: whole chunks over each link of the tightest set of GPUs. In an all-to-all on one NDv2 16 chunks "
        "cross from GPUs 0 to 3 to the others over links of 23, 46, 23 and 46 us a chunk: 14 in any time below 138, so "
        "less cannot be."
    )
    with page.table(
        "sketch", "collective", "chunks a block", "columns", "rows", "matching", "objective", "proved", "alone s",
        "started s", "objective, expected", "time, claimed",
    ) as row:  # fmt: skip
        for sketch, collective, chunkup, expected in ROUTINGS[: preset_["routings"]]:
            chunks = instance(logical(measured(sketch).profile, SKETCHES[sketch]), collective, chunkup)
            matched = match(chunks)
            alone = route(chunks, matched, warm=False, time_limit_s=preset_["limit_s"])
            started = route(chunks, matched, time_limit_s=preset_["limit_s"])
            wanted = "none" if expected is None else verdict(alone.time, least=expected, most=expected)
            row(
                sketch, collective, chunkup, *alone.size, relaxed_time(chunks, matched.trees), alone.time,
                alone.bound, f"{alone.seconds:.2f}", f"{started.seconds:.2f}", wanted,
                verdict(alone.seconds, most=30.0 if collective == "all_to_all" else 60.0),
            )  # fmt: skip


def replay_row(page, preset_):
    page.add(
        "## All stages, 1 GiB, replayed on the network of the profile (C3, C4)\n\nOver the cut bound. "
        "Segments: the same "
        "program in the number of segments that is quickest. The all-reduce is held against the sum of its halves."
    )
    with page.table(
        "sketch", "collective", "chunks a block", "chosen", "steps", "schedule gap %", "over the cut", "with segments",
        "segments", "seconds", "claimed",
    ) as row:  # fmt: skip
        for sketch, collective, chunkup, most in REPLAYS[: preset_["replays"]]:
            problem, (found,), seconds = planned(sketch, collective, GIB, chunkup, preset_["limit_s"])
            least = bound(problem.network, collective, GIB).seconds
            cut, quick = with_best_segments(found.program, problem.network, GIB)
            ratio = found.predicted_s / least
            row(
                sketch, collective, chunkup, found.name, found.program.steps, f"{100 * found.gap:.1f}",
                f"{ratio:.4f}", f"{quick / least:.4f}", cut.segments, f"{seconds:.1f}", verdict(ratio, most=most),
            )  # fmt: skip
        problem, halves, seconds = planned("ndv2-sk-1", "all_reduce", GIB, 2, preset_["limit_s"])
        made = synthesize(
            problem,
            sketch=divided("ndv2-sk-1", 2),
            profile=measured("ndv2"),
            time_limit_s=preset_["limit_s"],
        )
        check(made)
        ratio = simulate(made, problem.network, GIB).finish_s / sum(half.predicted_s for half in halves)
        row(
            "ndv2-sk-1", "all_reduce", 2, "both halves", made.steps, "", f"{ratio:.4f} of the sum", "", 1,
            f"{seconds:.1f}", verdict(ratio, most=1.05),
        )  # fmt: skip


def planned(sketch, collective, size_bytes, chunkup, limit_s, profile=None):
    profile = profile or measured(sketch)
    problem = CollectiveProblem(
        network=machine_network(profile, SKETCHES[sketch].nnodes),
        collective=collective,
        size_bytes=size_bytes,
    )
    started = time.perf_counter()
    found = results(problem, sketch=divided(sketch, chunkup), profile=profile, time_limit_s=limit_s)
    seconds = time.perf_counter() - started
    for result in found:
        check(result.program)
    return problem, found, seconds


def together_row(page, preset_):
    page.add(
        "## Stage 3: chunks together on links between hosts (C5)\n\nAll-gather of chunks of 1 KiB. "
        "Times of schedules in "
        "which latencies take the link, as in the publication."
    )
    with page.table(
        "sketch", "most together", "apart us", "together us", "gap %", "together / apart", "claimed"
    ) as row:
        for sketch in ("ndv2-sk-1", "ndv2-sk-3"):
            profile = PROFILES["ndv2-1KB"]
            _, (found,), _ = planned(sketch, "all_gather", 16 * 1024, 1, preset_["limit_s"], profile)
            ratio = found.finish / found.apart
            unit_us = 1e6 * profile.at(1024).unit_s
            holds = f"{verdict(found.together, least=2)}; {verdict(ratio, most=0.999)}"
            row(
                sketch, found.together, f"{found.apart * unit_us:.2f}", f"{found.finish * unit_us:.2f}",
                f"{100 * found.gap:.1f}", f"{ratio:.3f}", holds if sketch == "ndv2-sk-1" else "none",
            )  # fmt: skip


def networks_row(page, preset_):
    page.add(
        "## Networks without a sketch\n\n64 MB; hosts, relays and rotations found from the network. "
        "Over the cut bound, "
        "then in the number of segments that is quickest."
    )
    with page.table(
        "network", "collective", "chunks", "over the cut", "with segments", "segments", "seconds"
    ) as row:
        for name in preset_["nets"]:
            net = network(preset(name))
            for collective in preset_["collectives"]:
                problem = CollectiveProblem(network=net, collective=collective, size_bytes=64e6)
                started = time.perf_counter()
                made = synthesize(problem, time_limit_s=min(preset_["limit_s"], 4.0))
                seconds = time.perf_counter() - started
                check(made)
                least = bound(net, collective, 64e6).seconds
                cut, quick = with_best_segments(made, net, 64e6)
                plain = simulate(made, net, 64e6).finish_s
                row(
                    name, collective, made.chunks, f"{plain / least:.3f}", f"{quick / least:.3f}", cut.segments,
                    f"{seconds:.1f}",
                )  # fmt: skip


ROWS = {
    "routing": routing_row,
    "replay": replay_row,
    "together": together_row,
    "networks": networks_row,
}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page("TACCL's stages", options.preset, {"Threads": "1", "Times of programs": "simulated"})
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
