"""Operations whose cost grows with a size: each is prepared, not measured, and then carried out, which is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HOSTS = 1024
"""Hosts that costs are extrapolated to, of eight accelerators each."""
NODES_A_HOST = 1_000_000
EVENTS_AN_ACCELERATOR = 31_000
JOBS_AN_ACCELERATOR = 10
FANOUTS = (10, 5)
BATCH = 32
GIGA = 1e9


@dataclass(frozen=True)
class Recorded:
    """Exponents between the two sizes at which work is counted, as they were when this was written."""

    calls: float
    """Calls of functions, from Python."""
    allocated: float
    """Peak of allocated memory."""
    seconds: float | None = None
    """Processor time; None: Python does the work, so that calls show it."""


@dataclass(frozen=True)
class Operation:
    """An operation, its sizes, and the law by which its cost should grow."""

    unit: str
    sizes: tuple[int, ...]
    """Five, over two orders of magnitude."""
    law: float
    """Exponent of the size with which the work should grow: 2 where all pairs count, or one pass is made for each."""
    prepare: Callable[[int, Path], Callable[[], object]]
    """The operation on a size, ready to be carried out; files lie in an empty folder."""
    of_hosts: int | None
    """Size of a job on 1,024 hosts of eight accelerators; None: it does not depend on hosts."""
    counted: tuple[int, int] | None = None
    """Sizes at which work is counted; None: it would take too long."""
    recorded: Recorded | None = None


def graph(size):
    from wirewise.graph import BlockModel, block_model

    return block_model(BlockModel(nodes=size, features=8))


def generate(size, folder):
    return lambda: graph(size)


def convert(size, folder):
    from wirewise.graph import convert

    data = graph(size)
    np.savez(folder / "graph.npz", edge_index=data.edge_index, x=data.x, y=data.y, split=data.split)
    return lambda: convert(folder / "graph.npz", folder / "mapped")


def partition_by(method):
    def prepare(size, folder):
        from wirewise.graph import partition

        data = graph(size)
        return lambda: partition(data, 4, method)

    return prepare


def refine(size, folder):
    from wirewise.graph.refine import lower_busiest

    data = graph(size)
    edges, owner = data.simple_in_edges, (np.arange(size) % 4).astype(np.int32)
    weight = np.ones(size, np.int64)
    return lambda: lower_busiest(edges, owner, 4, weight, seed=0, max_imbalance=0.05)


def sample(size, folder):
    from wirewise.graph.sampling import NeighborSampler

    sampler = NeighborSampler(graph(size).in_edges, FANOUTS)
    seeds = np.random.default_rng(0).permutation(size)[: size // 8]
    batches = np.array_split(seeds, -(-len(seeds) // BATCH))
    return lambda: [sampler.sample(one, batch=number).num_edges for number, one in enumerate(batches)]


def inclusion(size, folder):
    from wirewise.planners.cache import inclusion, seed_probability
    from wirewise.planners.cache.inclusion import Drawers

    edges = graph(size).in_edges
    seeds = seed_probability(size, np.arange(size), BATCH)
    return lambda: inclusion(Drawers(edges), seeds, FANOUTS)


def network_of(ranks):
    from wirewise.collective.network import network
    from wirewise.topology import preset

    return network(preset("dgx-h100" if ranks == 8 else f"dgx-h100x{ranks // 8}"))


def routes(size, folder):
    return lambda: network_of(size).table


def bound(size, folder):
    from wirewise.collective import bound

    on = network_of(size).routed_network
    return lambda: bound(on, "all_reduce", GIGA)


def plan_by(planner):
    def prepare(size, folder):
        from wirewise.planners.collective import PLANNERS, CollectiveProblem

        def run():
            problem = CollectiveProblem(network=network_of(size), collective="all_gather", size_bytes=GIGA)
            return PLANNERS[planner](problem, time_limit_s=50.0)

        return run

    return prepare


def rule(size, folder):
    from wirewise.collective.check import check_regular
    from wirewise.collective.regular import regular
    from wirewise.sim import simulate_program

    on = network_of(size)

    def run():
        made = regular("all_reduce", "ring", size, period=8)
        check_regular(made)
        return simulate_program(made, on, GIGA)

    return run


def ring(size, folder):
    from wirewise.collective import build, check
    from wirewise.sim import simulate_program

    on = network_of(size)

    def run():
        made = build("all_reduce", "ring", size)
        check(made)
        return simulate_program(made, on, GIGA)

    return run


def compress(size, folder):
    from wirewise.cost import Links
    from wirewise.cost.gradients import V100
    from wirewise.planners.fusion.cupcake import cupcake
    from wirewise.planners.fusion.cupcake.problem import compression_problem
    from wirewise.trace.gradients import GradientTensor, GradientTrace

    draw = np.random.default_rng(0)
    tensors = tuple(
        GradientTensor(
            name=f"t{n}", elements=int(2 ** draw.uniform(8, 22)), gap_us=float(draw.uniform(50, 500))
        )
        for n in range(size)
    )
    trace = GradientTrace(tensors=tensors, model="drawn")
    problem = compression_problem(trace, Links.uniform(8, 1.25e9), codec="auto", costs=V100)
    return lambda: cupcake(problem)


def shardings(size, folder):
    from torch._subclasses import FakeTensorMode

    from wirewise.cost import Links
    from wirewise.planners.parallel.rhino.explore import solve_shardings
    from wirewise.planners.parallel.rhino.shardings import ShardingProblem
    from wirewise.runtime.joint_graph import capture_step
    from wirewise.sim.mesh_costs import MeshCosts
    from wirewise.sim.operator_times import roofline_times
    from wirewise_papers.parallel_models import MODELS

    with FakeTensorMode():
        example = MODELS["gpt"](layers=size)
    captured = roofline_times(capture_step(*example).graph, "a100")
    links = Links.uniform(1, 2.5e10, 1e-5, intra_bytes_per_s=3e11, ranks_per_host=8)
    costs = MeshCosts(links, [tuple(range(8))], (8,))
    return lambda: solve_shardings(
        ShardingProblem(graph=captured, mesh=(8,), costs=costs), level="O2", time_limit_s=300.0
    )


def stages(size, folder):
    from wirewise.cost import Links
    from wirewise.planners.pipeline import PLANNERS
    from wirewise.planners.pipeline.problem import problem_of
    from wirewise.trace.stages import StageModule, StageTrace

    draw = np.random.default_rng(0)
    modules = tuple(
        StageModule(
            name=f"m{n}", forward_s=(float(draw.uniform(1e-3, 2e-3)),), backward_s=(float(draw.uniform(2e-3, 4e-3)),),
            output_bytes=1e6, saved_bytes=4e6, parameter_bytes=1e7,
        )
        for n in range(size)
    )  # fmt: skip
    links = Links.uniform(4, 1.25e9, 1e-5)
    return lambda: PLANNERS["two-bw"](problem_of(StageTrace(modules=modules), links, batch=32))


def follow_jobs(size, folder):
    from queues import write_log
    from scales import CLUSTERS, OF_EACH

    from wirewise.planners.jobs.problem import problem_of, simulate_rule
    from wirewise.planners.jobs.rules import expected_queue, knowledge
    from wirewise.trace import EdgeCluster
    from wirewise.trace.queue_logs import read_queue_log

    write_log(folder / "log.csv", size, CLUSTERS * OF_EACH)
    clusters = [EdgeCluster(name=f"c{n}", cpus=1, gpus=OF_EACH) for n in range(CLUSTERS)]

    def run():
        problem = problem_of(read_queue_log("helios", folder / "log.csv", clusters))
        return simulate_rule(problem, "sjf", knowledge(expected_queue(problem.arrays)))

    return run


def read_trace(size, folder):
    from traces import write_run

    from wirewise.trace import load

    write_run(folder / "run", size, 8)
    return lambda: load([folder / "run"])


def replay(size, folder):
    from wirewise.sim.traces import replay_trace

    trace = read_trace(size, folder)()
    return lambda: replay_trace(trace)


RANKS = (8, 32, 104, 328, 1024)
NODES = (5_000, 16_000, 50_000, 160_000, 500_000)
EVENTS = (10_000, 32_000, 100_000, 320_000, 1_000_000)
_RANKS = 8 * HOSTS
_NODES, _EVENTS = HOSTS * NODES_A_HOST, _RANKS * EVENTS_AN_ACCELERATOR
_JOBS = _RANKS * JOBS_AN_ACCELERATOR
OPERATIONS = {
    "plan all-gather, auto, more than 64 ranks": Operation(
        "ranks", (72, 144, 288, 576, 1152), 2, plan_by("auto"), _RANKS, (72, 144), Recorded(0.93, 0.2)
    ),
    "plan all-gather, forest": Operation("ranks", (8, 16, 24, 32, 64), 3, plan_by("forest"), None),
    "ring of ranks: build, check, simulate": Operation(
        "ranks", RANKS, 2, ring, _RANKS, (16, 64), Recorded(2.09, 2)
    ),
    "ring as a rule: the same": Operation(
        "ranks", (40, 128, 400, 1280, 4096), 1, rule, _RANKS, (64, 256), Recorded(1, 1.04)
    ),
    "lower bound of all-reduce": Operation("ranks", RANKS, 2, bound, _RANKS, (16, 64), Recorded(0.95, 0.68)),
    "routes between all ranks": Operation("ranks", RANKS, 2, routes, _RANKS, (16, 64), Recorded(1.71, 2.19)),
    "data generate": Operation("nodes", NODES, 1, generate, _NODES, (4_000, 16_000), Recorded(0, 1, 1.15)),
    "data convert": Operation("nodes", NODES, 1, convert, _NODES, (4_000, 16_000), Recorded(0, 0.07, 0.62)),
    "partition, stream": Operation(
        "nodes", NODES, 1, partition_by("stream"), _NODES, (4_000, 16_000), Recorded(-0.29, -0.38, -0.11)
    ),
    "partition, METIS": Operation(
        "nodes", NODES, 1, partition_by("metis"), _NODES, (4_000, 16_000), Recorded(0.58, 1, 1.25)
    ),
    "refine a partition": Operation(
        "nodes", NODES, 1, refine, _NODES, (500, 2_000), Recorded(0.2, 0.88, 1.08)
    ),
    "sample mini-batches": Operation(
        "nodes", NODES, 1, sample, _NODES, (4_000, 16_000), Recorded(0.99, 0.09, 1.08)
    ),
    "inclusion probabilities": Operation(
        "nodes", NODES, 1, inclusion, _NODES, (4_000, 16_000), Recorded(0, 1, 1.04)
    ),
    "load and align a trace": Operation(
        "events", EVENTS, 1, read_trace, _EVENTS, (2_000, 8_000), Recorded(0.75, 0.68)
    ),
    "replay a trace": Operation(
        "events",
        (1_500, 5_000, 15_000, 50_000, 150_000),
        1,
        replay,
        _EVENTS,
        (2_000, 8_000),
        Recorded(0.61, 0.35),
    ),
    "jobs: read, simulate": Operation(
        "jobs",
        (1_000, 3_000, 10_000, 30_000, 100_000),
        1,
        follow_jobs,
        _JOBS,
        (500, 2_000),
        Recorded(0.97, 0.44, 0.91),
    ),
    "plan compressed gradients": Operation(
        "tensors", (10, 32, 100, 320, 1000), 2, compress, None, (20, 80), Recorded(0.53, 0.91)
    ),
    "plan shardings, GPT": Operation("layers", (1, 2, 5, 15, 45), 1, shardings, None),
    "plan stages": Operation(
        "modules", (8, 32, 100, 320, 1000), 2, stages, None, (16, 64), Recorded(0.36, 1.25)
    ),
}
"""Operations by name; the unit is that of the sizes."""
