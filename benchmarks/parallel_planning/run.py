"""Claims about planning shardings of a training step: seconds, segments against the whole, two dimensions at once.

    python benchmarks/parallel_planning/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `time` (P4: seconds to plan GPT, the whole graph at once and segment by segment, on a mesh of 8 ranks; the capture
is said apart), `segments` (P3: what plans segment by segment cost over the whole programme's, models captured),
`dimensions` (P6: a mesh of two dimensions at once against one dimension after the other), `large` (P4: the shape of
GPT-3, 175 billion parameters, captured and planned without its weights; seconds, and memory of the process).

Planned for ranks of 10 TFLOP/s and 500 GB/s, four a host, hosts joined by 3 GB/s; `large` for A100, eight a host, hosts
joined by 25 GB/s. One process, one thread.
"""

import resource
import sys
import time
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch._subclasses import FakeTensorMode

from common import Page, arguments, verdict
from wirewise.cost import Links
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.planners.parallel.rhino.explore import sequential, solve_shardings
from wirewise.planners.parallel.rhino.shardings import ShardingProblem
from wirewise.runtime.joint_graph import capture_step
from wirewise.sim.mesh_costs import MeshCosts
from wirewise.sim.operator_times import DeviceFigures, roofline_times
from wirewise_papers.parallel_models import MODELS

DEVICE = DeviceFigures(1e13, 2e13, 5e11, 5e-6)
LIMITS_S = {"O3": 60.0, "O2": 10.0}
MOST_GB = 16.0
"""Memory of the process that plans a model of 700 GB of parameters."""
_GPT3 = {"batch": 256, "length": 2048, "width": 12288, "heads": 96, "layers": 96, "vocabulary": 50304}
PRESETS = {
    "smoke": {
        "layers": 2,
        "zoo": ("mlp",),
        "mesh": (2, 2),
        "model": "mlp",
        "large": _GPT3 | {"layers": 2},
        "ranks": 8,
    },
    "paper": {
        "large": _GPT3,
        "ranks": 256,
        "layers": 24,
        "zoo": ("mlp", "gpt", "moe", "unet", "cnn", "gcn"),
        "mesh": (2, 4),
        "model": "gpt",
    },
}


def captured(name, **sizes):
    begin = time.perf_counter()
    step = capture_step(*MODELS[name](**sizes))
    return roofline_times(step.graph, DEVICE), time.perf_counter() - begin


def problem(graph, mesh):
    ranks = prod(mesh)
    links = Links.uniform(max(ranks // 4, 1), 3e9, 1e-5, intra_bytes_per_s=5e10, ranks_per_host=min(ranks, 4))
    return ShardingProblem(graph=graph, mesh=mesh, costs=MeshCosts(links, [tuple(range(ranks))], mesh))


def timed(graph, mesh, level):
    begin = time.perf_counter()
    one = problem(graph, mesh)
    found = solve_shardings(one, level=level, time_limit_s=300.0)
    return found, time.perf_counter() - begin


def time_row(page, preset):
    graph, capture_s = captured("gpt", layers=preset["layers"])
    page.add(
        f"GPT of {preset['layers']} layers: {len(graph.nodes)} operators forward and backward, "
        f"captured in {capture_s:.0f} s."
    )
    with page.table("P4: level", "ranks", "planned in s", "gap %", "reached") as row:
        for level, most in LIMITS_S.items():
            found, seconds = timed(graph, (8,), level)
            gap = 100 * (found.cost / found.bound - 1)
            row(level, 8, f"{seconds:.1f}", f"{gap:.2f}", verdict(seconds, most=most))


def segments_row(page, preset):
    with page.table("P3: model", "operators", "O2 over O3", "gap of O3 %", "reached") as row:
        for name in preset["zoo"]:
            graph, _ = captured(name)
            (whole, _), (parts, _) = timed(graph, (4,), "O3"), timed(graph, (4,), "O2")
            ratio = parts.cost / whole.cost
            gap = 100 * (whole.cost / whole.bound - 1)
            row(name, len(graph.nodes), f"{ratio:.3f}", f"{gap:.2f}", verdict(ratio, most=1.10))


def dimensions_row(page, preset):
    graph, _ = captured(preset["model"])
    one = problem(graph, preset["mesh"])
    joint = one.problem.solve(time_limit_s=300.0)
    apart = min(found.cost for found in (sequential(one, 0), sequential(one, 1)) if found is not None)
    mesh = " x ".join(map(str, preset["mesh"]))
    with page.table("P6: mesh", "model", "at once over one after the other", "reached") as row:
        ratio = joint.cost / apart
        row(mesh, preset["model"], f"{ratio:.3f}", verdict(ratio, most=1.0 + 1e-9))


def large_row(page, preset):
    begin = time.perf_counter()
    with FakeTensorMode():
        example = MODELS["gpt"](**preset["large"])
    graph = roofline_times(capture_step(*example).graph, "a100")
    capture_s = time.perf_counter() - begin
    hosts = preset["ranks"] // 8
    links = Links.uniform(hosts, 2.5e10, 1e-5, intra_bytes_per_s=3e11, ranks_per_host=8)
    begin = time.perf_counter()
    plan = make_plan(ParallelProblem(graph=graph, links=links, memory_bytes=80e9), time_limit_s=90.0)
    planning_s = time.perf_counter() - begin
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    with page.table(
        "P4: parameters",
        "operators",
        "captured in s",
        "ranks",
        "planned in s",
        "plan",
        "memory of the process in GB",
    ) as row:
        parameters = sum(node.elements for node in graph.nodes if node.op == "parameter")
        row(f"{parameters / 1e9:.0f} billion, {graph.parameter_bytes / 1e9:.0f} GB", len(graph.nodes),
            f"{capture_s:.0f}", preset["ranks"], f"{planning_s:.0f}",
            f"{plan.headline.split(': ')[1]}, at most {max(plan.memory_bytes) / 1e9:.1f} of 80 GB a rank",
            f"{peak_gb:.1f}; {verdict(peak_gb, most=MOST_GB)}")  # fmt: skip


ROWS = {"time": time_row, "segments": segments_row, "dimensions": dimensions_row, "large": large_row}


def main():
    options = arguments(__doc__, tuple(ROWS))
    page = Page("Planning of shardings", options.preset, {"Measured": "seconds; simulated: costs of plans"})
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
