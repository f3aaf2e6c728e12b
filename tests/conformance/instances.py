"""Small random problems of every kind that a planner takes, and every plan that every planner makes of them.

All is seeded, and time limits are so long that they never end a search: a plan depends on its problem alone.
`INSTANCES[grain][name]()` makes a problem with what belongs to it; `CASES` names all plans:

    for case in CASES:
        instance, plan = case.instance, case.plan()
        check(plan, instance.problem, instance.links, instance.costs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from benchmarks.random_steps import random_graph, random_step
from benchmarks.random_tasks import random_tasks
from msgspec import structs

from tests.planners.bitwidth import problems as bitwidth_problems
from tests.planners.cache.problems import block_problem
from tests.planners.collective import networks
from tests.planners.fusion.disco_states import model_of
from tests.planners.fusion.problems import random_compression, random_problem
from tests.planners.parallel import graphs
from tests.planners.pipeline.problems import random_trace
from tests.planners.recovery.problems import job as failing_job
from tests.sim.flows.helpers import links as links_of_rates
from tests.sim.flows.helpers import mixed_links
from wirewise.cost import CodecCost, Links
from wirewise.cost.gradients import V100, GradientCosts, Knots
from wirewise.planners import (
    bitwidth,
    collective,
    fusion,
    jobs,
    parallel,
    pipeline,
    placement,
    recovery,
    reshard,
)
from wirewise.planners import cache as cache_planners
from wirewise.planners.cache import CacheProblem
from wirewise.planners.collective import CollectiveProblem
from wirewise.planners.fusion.cupcake import LEAST_GAIN, RULES, compression_problem, plan_groups
from wirewise.planners.fusion.disco import METHODS, Knobs, plan_operators
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.placement import PlacementProblem, tag
from wirewise.planners.reshard import ReshardProblem
from wirewise.plans import LaidOutTensor, Plan, parse_sharding
from wirewise.plans.reshard import STRATEGIES
from wirewise.sim.jobs import draw_queue
from wirewise.trace import GradientTensor, GradientTrace
from wirewise_papers.tag.random_models import random_problem as random_deployment

__all__ = ["CASES", "GRAINS", "INSTANCES", "REFUSED", "REGISTRIES", "Case", "Instance"]

ENOUGH_S = 3600.0
"""Limit of searches that end by themselves long before."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A problem, and what it was made from where a planner or a prediction wants it by itself."""

    problem: Any
    """What planners of this grain take first."""
    links: Any = None
    """Network that the problem's ranks have."""
    costs: Any = None
    """Seconds of codecs or operators, where they are known apart from the problem."""
    job: Any = None
    """What is recorded of the job: a trace of gradients, a graph of operators, tasks."""


Make = Callable[[], Instance]


# Bits of halo messages


def _bits(problem: Any, costs: Any) -> Instance:
    return Instance(problem=problem, links=costs.links, costs=costs)


def bits_of_two() -> Instance:
    one = bitwidth_problems.exchange(2, 12, seed=1)
    return _bits(bitwidth_problems.problem(one, ranks=2), bitwidth_problems.costs(2))


def bits_of_uneven_links() -> Instance:
    """Three ranks, channels of 0 to 9 messages, each pair with a link of its own, two layers both ways."""
    names = ("forward1", "forward2", "backward2")
    found = [
        bitwidth_problems.exchange(3, (0, 10), name=name, width=width, seed=1, sigma=sigma)
        for name, width, sigma in zip(names, (24, 8, 8), (1.5, 0.5, 2.5), strict=True)
    ]
    costs = replace(bitwidth_problems.costs(3), links=bitwidth_problems.random_links(3, seed=4, ring=False))
    return _bits(bitwidth_problems.problem(*found, ranks=3), costs)


def bits_of_a_ring() -> Instance:
    """Four ranks that exchange in rounds, behind computing that hides a part."""
    found = [
        bitwidth_problems.exchange(4, 5, name=name, width=16, seed=seed, sigma=2.0)
        for seed, name in enumerate(("forward1", "backward1"))
    ]
    costs = bitwidth_problems.costs(4, hidden={"forward1": 3e-4}, ring=True)
    costs = replace(costs, links=bitwidth_problems.random_links(4, seed=7))
    return _bits(bitwidth_problems.problem(*found, ranks=4), costs)


def bits_of_a_fast_network() -> Instance:
    """Encoding costs more than what it saves, and parameters of rows take 4 bytes."""
    one = bitwidth_problems.exchange(2, (4, 15), seed=5, width=64)
    costs = bitwidth_problems.costs(2, 3e9, latency=1e-6)
    return _bits(bitwidth_problems.problem(one, ranks=2, param_bytes=4), costs)


def bits_without_codec_times() -> Instance:
    one = bitwidth_problems.exchange(3, (2, 9), seed=6, width=32)
    costs = bitwidth_problems.costs(3, 5e6, codec=CodecCost())
    return _bits(bitwidth_problems.problem(one, ranks=3), costs)


# Buckets of gradients, and what else changes a step of modules


def _modules(problem: Any) -> Instance:
    return Instance(problem=problem, links=problem.links, job=problem.modules)


def modules_of_two() -> Instance:
    return _modules(random_problem(0, gradients=6, ranks=2, optimizer_s=1e-4))


def modules_of_two_slots() -> Instance:
    """Latency is most of what buckets cost, and two travel at once."""
    return _modules(random_problem(1, gradients=7, kind="latency", slots=2))


def modules_with_stages() -> Instance:
    """Encoding and decoding beside the transfers, by trees."""
    return _modules(random_problem(2, gradients=6, ranks=3, stages=True, launch=True, slots=2))


def modules_of_uneven_ranks() -> Instance:
    """Three ranks on two hosts with unlike links, one slower, and computing that transfers slow down."""
    problem = random_problem(3, gradients=6, ranks=3, interference=1.3)
    rates = problem.links.bandwidth_out_bytes_per_s[:2] * np.array([0.5, 2.0])
    latency = np.array([[1e-6, 2e-5], [4e-5, 1e-6]])
    links = Links(rates, rates[::-1].copy(), latency, 20 * rates)
    return _modules(replace(problem, hosts=(0, 0, 1), slowdown=(1.0, 1.4, 1.1), links=links))


def modules_that_fuse() -> Instance:
    """Fused times, measured of some neighbours and guessed of the others, and a bfloat16 that was measured."""
    problem = random_problem(4, gradients=6)
    modules = [
        replace(m, bfloat16_s=(0.6 * m.forward_s, 0.7 * m.backward_s), input_bytes=0.2 * m.saved_bytes)
        for m in problem.modules
    ]
    pairs = {
        (i, i + 1): (
            0.7 * sum(m.forward_s for m in modules[i : i + 2]),
            0.9 * sum(m.backward_s for m in modules[i : i + 2]),
        )
        for i in (0, 3)
    }
    return _modules(replace(problem, modules=modules, fused_s=pairs, fused_share=0.85))


def _budget(problem: Any, share: float) -> float:
    """Memory for what always stands there, and that share of the rest."""
    always = problem.state_factor * sum(problem.sizes)
    top = fusion.peak_bytes(problem, fusion.Decision(()))
    return always + share * (top - always)


# Groups of gradients that are compressed


def _groups(problem: Any) -> Instance:
    return Instance(problem=problem)


def groups_of_a_trace(
    seed: int,
    codecs: tuple[str, ...],
    links: Links | None,
    tensors: int = 8,
    costs: GradientCosts = V100,
    **more: Any,
) -> Instance:
    """A model with a giant tensor, by the costs of Espresso."""
    random = np.random.default_rng(seed)
    sizes = np.maximum(64, 3e6 * random.random(tensors) ** 3).astype(int)
    sizes[tensors // 2] = 8_000_003
    gaps = 400 * random.random(tensors)
    trace = GradientTrace(
        tensors=tuple(
            GradientTensor(name=f"{n}.weight", elements=int(size), gap_us=float(gap))
            for n, (size, gap) in enumerate(zip(sizes, gaps, strict=True))
        )
    )
    problem = compression_problem(trace, links, codec=codecs, costs=costs, **more)
    return Instance(problem=problem, links=links, costs=costs, job=trace)


def groups_of_measured_collectives(concurrent_share: float, codecs: tuple[str, ...]) -> Instance:
    """Costs with collectives that were measured, and with all-reduces in flight at once that take a share of that."""
    sizes, seconds = np.array([4e3, 4e5, 4e7]), np.array([5e-4, 1.2e-3, 6e-2])

    def knots(share: float) -> Knots:
        return tuple(zip(sizes.tolist(), (share * seconds).tolist(), strict=True))

    costs = structs.replace(
        V100,
        ranks=4,
        schemes={"all_reduce": knots(1.0), "all_gather": knots(1.8), "divisible": knots(1.1)},
        concurrent=knots(concurrent_share),
        delays={"all_reduce": knots(0.1), "all_gather": knots(0.05), "divisible": knots(0.1)},
    )
    return groups_of_a_trace(3, codecs, None, costs=costs)


# Operators, and the buckets of their gradients


def operators(graph: Any, **more: Any) -> Instance:
    model = model_of(graph, **more)
    return Instance(problem=model, links=model.all_reduce, costs=model.costs, job=graph)


# Collectives


def collective_on(network: Any, name: Any, size_bytes: float, **more: Any) -> Instance:
    problem = CollectiveProblem(network=network, collective=name, size_bytes=size_bytes, **more)
    return Instance(problem=problem, links=network)


MB = 1e6
THREE = networks.mesh(3, {(0, 1): 300 * MB, (0, 2): 200 * MB}, 100 * MB, latency_s=2e-5)
FOUR = networks.mesh(4, {(0, 1): 400 * MB, (2, 3): 300 * MB, (0, 2): 200 * MB}, 100 * MB, latency_s=3e-5)
"""Rates are whole multiples of the slowest, which keeps exact searches short."""


# Caches


def cached(batch_size: int, **more: Any) -> Instance:
    problem = block_problem(batch_size, **more)
    return Instance(problem=problem, links=mixed_links(1, problem.machines))


def some_machines_without_training() -> Instance:
    """Frontier draws of all neighbours; one machine has no seeds."""
    problem = block_problem(5, machines=3, nodes=120, fanouts=(-1, 2), semantics="frontier")
    train = (*problem.train[:2], problem.train[2][:0])
    made = CacheProblem(
        edges=problem.edges,
        owner=problem.owner,
        train=train,
        batch_size=problem.batch_size,
        fanouts=problem.fanouts,
        semantics=problem.semantics,
    )
    return Instance(problem=made, links=mixed_links(2, 3))


# Places of tasks


def placed(tasks: Any, links: Any) -> Instance:
    hosts = tuple(f"host{host}" for host in range(links.hosts))
    return Instance(problem=PlacementProblem(tasks, hosts, links), links=links, job=tasks)


def placed_of_a_graph() -> Instance:
    sampled = block_problem(8, machines=3, nodes=240, fanouts=(4, 3))
    tasks = placement.from_graph(
        sampled,
        ("host0", "host1", "host2"),
        row_bytes=400.0,
        model_bytes=1e5,
        worker_s=0.001,
        servers=2,
        iterations=4,
    )
    return placed(tasks, links_of_rates([6e6, 5e7, 4e7]))


# Tensors that move between meshes


def resharded(links: Links, *tensors: LaidOutTensor) -> Instance:
    return Instance(problem=ReshardProblem(tensors, links), links=links, job=tensors)


def laid_out(shape: tuple[int, ...], source: str, target: str, **more: Any) -> LaidOutTensor:
    layouts = {"source": parse_sharding(source), "target": parse_sharding(target)}
    return LaidOutTensor(**({"name": "x", "shape": shape, "dtype": "float32"} | layouts | more))


def ranks_of_hosts(hosts: int, ranks_per_host: int = 2) -> Links:
    return Links.uniform(hosts, 1e6, 1e-4, ranks_per_host=ranks_per_host, intra_bytes_per_s=1e8)


def resharded_among_uneven_hosts() -> Instance:
    """Replicas on three hosts, of which one sends slowly, to three that receive at unlike rates."""
    out = np.array([1e6, 2.5e5, 1e6, 1e6, 1e6, 1e6])
    into = np.array([1e6, 1e6, 1e6, 1e6, 5e5, 1e6])
    links = Links(out, into, np.full((6, 6), 1e-4), np.full(6, np.inf))
    return resharded(links, laid_out((90, 20), "3:R,R", "3@3-5:R,R"))


# Stages of a pipeline


def piped(trace: Any, links: Links, **more: Any) -> Instance:
    problem = pipeline.problem_of(trace, links, **more)
    return Instance(problem=problem, links=links, job=trace)


# Recovery after failures


def recovered(trace: Any, links: Links, **more: Any) -> Instance:
    problem = recovery.problem_of(trace, links, **more)
    return Instance(problem=problem, links=links, job=trace)


FAILING = ([0.09, 0.05, 0.07, 0.02, 0.03], [8e6, 3e6, 5e6, 2e6])
"""Seconds of stages, and bytes over cuts."""
# Queues of jobs


def queued(*args: Any, **more: Any) -> Instance:
    queue = draw_queue(*args, **more)
    return Instance(problem=jobs.problem_of(queue), job=queue)


# Steps that are split


def split(graph: Any, links: Links) -> Instance:
    return Instance(problem=ParallelProblem(graph=graph, links=links), links=links, job=graph)


def deployed(seed: int, **drawn: Any) -> Instance:
    problem = random_deployment(seed, **drawn)
    return Instance(problem=problem, links=problem.links, job=problem.trace)


INSTANCES: Mapping[str, Mapping[str, Make]] = {
    "bitwidth": {
        "two": bits_of_two,
        "uneven-links": bits_of_uneven_links,
        "ring": bits_of_a_ring,
        "fast-network": bits_of_a_fast_network,
        "no-codec-times": bits_without_codec_times,
    },
    "modules": {
        "two": modules_of_two,
        "two-slots": modules_of_two_slots,
        "stages": modules_with_stages,
        "uneven-ranks": modules_of_uneven_ranks,
        "fusing": modules_that_fuse,
    },
    "gradients": {
        "straight-lines": lambda: _groups(random_compression(3, "linear")),
        "codecs": lambda: _groups(random_compression(0, "codecs")),
        "beside": lambda: _groups(random_compression(11, "beside")),
        "trace": lambda: groups_of_a_trace(1, ("efsign", "none"), Links.uniform(4, 1.25e9)),
        "trace-of-hosts": lambda: groups_of_a_trace(
            2,
            ("dgc", "fp16", "none"),
            Links.uniform(2, 1.25e8, ranks_per_host=2),
            tensors=4,
            decodes=("inline", "lazy"),
            encode_contention=0.4,
        ),
        "measured": lambda: groups_of_measured_collectives(0.8, ("efsign", "none")),
        "measured-fast": lambda: groups_of_measured_collectives(0.05, ("efsign", "none")),
        "measured-plain": lambda: groups_of_measured_collectives(0.8, ("none",)),
    },
    "operators": {
        "any-order": lambda: operators(random_graph(1)),
        "overlap": lambda: operators(random_graph(2, 10, 4), share=1.2, overlap_rate=0.7),
        "layers": lambda: operators(random_step(3, 2), share=0.8),
    },
    "collective": {
        "all-reduce-uneven": lambda: collective_on(THREE, "all_reduce", 6e5),
        "all-gather-uneven": lambda: collective_on(FOUR, "all_gather", 4e5),
        "broadcast-hosts": lambda: collective_on(
            networks.groups([2, 1], 1000 * MB, 70 * MB), "broadcast", 1e6, root=1
        ),
        "reduce-group": lambda: collective_on(FOUR, "reduce", 2e5, root=2, members=(0, 2, 3)),
        "all-to-all-small": lambda: collective_on(THREE, "all_to_all", 3e3),
    },
    "cache": {
        "two": lambda: cached(4, machines=2, nodes=100, fanouts=(4, 3)),
        "three": lambda: cached(3, machines=3, nodes=150, fanouts=(3, 2, 2), seed=5),
        "no-seeds": some_machines_without_training,
    },
    "placement": {
        "mixed": lambda: placed(random_tasks(seed=1, workers=3, iterations=4), mixed_links(1)),
        "crowded": lambda: placed(
            random_tasks(seed=2, hosts=3, workers=4, samplers=1, servers=2, iterations=3), mixed_links(2, 3)
        ),
        "graph": placed_of_a_graph,
    },
    "reshard": {
        "disjoint": lambda: resharded(
            ranks_of_hosts(4), laid_out((7, 30, 20), "2x2:R,S0,R", "2x2@4-7:S0,R,R")
        ),
        "replicated": lambda: resharded(ranks_of_hosts(4), laid_out((64, 50), "2x2:S1,R", "2x2@4-7:R,R")),
        "overlapping": lambda: resharded(
            ranks_of_hosts(3), laid_out((30, 40), "2x2:S01,R", "2x2@2-5:R,S10", dtype="bfloat16")
        ),
        "addends": lambda: resharded(ranks_of_hosts(3), laid_out((30, 40), "2x2:S1,R,P0", "2x1@4,5:R,S0")),
        "uneven-hosts": resharded_among_uneven_hosts,
        "buckets": lambda: resharded(
            ranks_of_hosts(2),
            *(laid_out((8, 3 + n), "4:S0,R", "2x2:R,S1", name=f"w{n}", bucket=n // 2) for n in range(5)),
        ),
    },
    "recovery": {
        "chain": lambda: recovered(
            failing_job(*FAILING, weights=[1.0, 3.0, 1.0, 1.0, 2.0]),
            Links.uniform(5, 1e9, 1e-4),
            mtbf_s=300.0,
            log_bytes=6e8,
            spare_bytes=1.2e8,
        ),
        "some-replicas": lambda: recovered(
            failing_job(*FAILING, ranks=[(0,), (1, 2), (3,), (4, 5), (6,)], skips=((0, 3),)),
            Links.uniform(7, 2e8, 1e-4),
            mtbf_s=60.0,
        ),
        "replicas": lambda: recovered(
            failing_job([0.05], [], ranks=[(0, 1, 2, 3)], state_bytes=2e7, consistency_s={"ping-pong": 2e-3}),
            Links.uniform(2, 1e8, 1e-4, ranks_per_host=2, intra_bytes_per_s=1e9),
            mtbf_s=5.0,
        ),
    },
    "stages": {
        "chain": lambda: piped(random_trace(1, 9), Links.uniform(4, 800.0, 0.02), batch=32),
        "skips": lambda: piped(
            random_trace(2, 7, skips=3),
            Links.uniform(3, 2000.0, 0.01, ranks_per_host=2, intra_bytes_per_s=1e4),
            batch=24,
        ),
        "little-memory": lambda: piped(
            random_trace(3, 8), links_of_rates([1e3, 4e2, 2e3, 1e3]), batch=16, memory_bytes=3.5e4
        ),
    },
    "jobs": {
        "even": lambda: queued(((16, 16), (16, 16)), 3.0, jobs=16, seed=1),
        "noise": lambda: queued(((4, 4), (12, 8), (8, 16)), 4.0, jobs=16, noise=0.4, swing=0.5, seed=2),
    },
    "deployment": {
        "two-hosts": lambda: deployed(1, hosts=2, groups=4),
        "branches": lambda: deployed(2, hosts=3, groups=6, kind="branches"),
        "attention": lambda: deployed(3, hosts=4, groups=5, kind="attention"),
    },
    "parallel": {
        "wide-layers": lambda: split(
            graphs.layers(rows=64, width=32, batch=8, attention=False, of_rows=False),
            Links.uniform(2, 1e9, 1e-6, intra_bytes_per_s=1e10, ranks_per_host=2),
        ),
        "experts": lambda: split(
            graphs.moe(batch=8, length=8, width=16, experts=4, capacity=4, wide=64),
            links_of_rates([1e9, 2.5e8]),
        ),
    },
}
"""Planners by what is decided on, then by name."""

GRAINS = tuple(INSTANCES)

REGISTRIES: Mapping[str, tuple[str, ...]] = {
    "bitwidth": tuple(bitwidth.PLANNERS),
    "modules": ("dpro", "mcmc", "exhaustive", "rules", "ddp"),
    "gradients": ("cupcake", *RULES),
    "operators": METHODS,
    "collective": tuple(collective.PLANNERS),
    "cache": tuple(cache_planners.POLICIES),
    "placement": placement.METHODS,
    "recovery": tuple(recovery.PLANNERS),
    "reshard": tuple(reshard.PLANNERS),
    "stages": tuple(pipeline.METHODS),
    "jobs": tuple(jobs.PLANNERS),
    "deployment": tuple(tag.PLANNERS),
    "parallel": tuple(parallel.PLANNERS),
}
"""Names of all planners."""

REFUSED: Mapping[str, frozenset[str]] = {
    # Trees do not serve what goes to everyone apart, and packed trees no part of the ranks.
    "forest": frozenset({"all-to-all-small"}),
    "blink": frozenset({"all-gather-uneven", "reduce-group", "all-to-all-small"}),
    "adapt": frozenset({"all-gather-uneven", "all-to-all-small"}),
}
"""Instances of collectives that planners have no program for, by their documentation."""

Variant = tuple[str, str, Callable[[Instance], Plan]]
"""Planner, its knobs in words, and the call."""


def _bitwidth_variants(name: str) -> Iterator[Variant]:
    def planned(planner: str, **knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: bitwidth.PLANNERS[planner](replace(one.problem, costs=one.costs), **knobs)

    for planner in bitwidth.PLANNERS:
        yield planner, "", planned(planner, **({"seed": 3} if planner == "random" else {}))
    yield "auto", "2 bits", planned("auto", accuracy_bits=2, slack=0.0)
    yield "threshold", "groups", planned("threshold", group_size=3, lam=0.3, normaliser="min")
    yield "milp", "groups", planned("milp", group_size=3, lam=0.3)
    yield "paper", "cycle 0", planned("paper", cycle=0)
    yield "uniform", "bfloat16", planned("uniform", bits=16)


def _module_variants(name: str) -> Iterator[Variant]:
    def planned(planner: str, memory: float | None = None, **knobs: Any) -> Callable[[Instance], Plan]:
        def plan(one: Instance) -> Plan:
            own = {} if memory is None else {"memory_budget_bytes": _budget(one.problem, memory)}
            return fusion.PLANNERS[planner](one.problem, **own, **knobs)

        return plan

    searching = {"time_budget_s": ENOUGH_S}
    yield "dpro", "", planned("dpro", **searching)
    yield "mcmc", "", planned("mcmc", steps=60, seed=1, **searching)
    yield "exhaustive", "", planned("exhaustive", **searching)
    yield "exhaustive", "caps", planned("exhaustive", caps=(1e6, 3e6), **searching)
    yield "rules", "", planned("rules")
    yield "ddp", "", planned("ddp")
    yield "ddp", "cap", planned("ddp", cap_bytes=2e6)
    if name in ("two", "uneven-ranks", "fusing"):
        yield "dpro", "memory", planned("dpro", memory=0.6, **searching)
        yield "mcmc", "memory", planned("mcmc", memory=0.6, steps=60, seed=1, **searching)
        yield "dpro", "accumulating", planned("dpro", memory=0.4, passes=("accumulation",), **searching)
        yield "dpro", "recomputing", planned("dpro", memory=0.6, passes=("recompute",), **searching)
        yield "dpro", "every pass", planned("dpro", passes=fusion.PASSES, **searching)


_RULES = ("even:4", "bucket:25", "bucket:1", "mergecomp")


def _gradient_variants(name: str) -> Iterator[Variant]:
    def planned(planner: str, **knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: plan_groups(one.problem, method=planner, **knobs)

    yield "cupcake", "", planned("cupcake")
    yield "cupcake", "eased", planned("cupcake", slack=0.02, least_gain=LEAST_GAIN, seed=2)
    # Bounds of problems with many options take long.
    few = name in ("beside", "trace-of-hosts")
    for rule in ("layer-wise", "mg-wfbp") if few else (*_RULES, "layer-wise", "mg-wfbp"):
        yield rule.partition(":")[0], rule.partition(":")[2], planned(rule)
    if name == "trace":
        yield "cupcake", "split 3000000", planned("cupcake", split=3_000_000)
        yield "layer-wise", "split 3000000", planned("layer-wise", split=3_000_000)
        yield "cupcake", "much to gain", planned("cupcake", slack=0.1, least_gain=0.9)
        yield "cupcake", "split auto", planned("cupcake", split="auto")


def _operator_variants(name: str) -> Iterator[Variant]:
    def planned(planner: str) -> Callable[[Instance], Plan]:
        knobs = Knobs(stop=60, evaluations=400, seed=1)
        return lambda one: plan_operators(one.problem, method=planner, other_s=1e-5, knobs=knobs).plan

    for planner in METHODS:
        yield planner, "", planned(planner)


def _collective_variants(name: str) -> Iterator[Variant]:
    for planner in REGISTRIES["collective"]:
        # "auto" asks TACCL there, which takes seconds.
        asked = planner == "taccl" and name == "all-reduce-uneven"
        if not asked and name not in REFUSED.get(planner, ()):
            yield (
                planner,
                "",
                lambda one, planner=planner: collective.PLANNERS[planner](
                    one.problem, time_budget_s=ENOUGH_S, seed=1
                ),
            )


def _cache_variants(name: str) -> Iterator[Variant]:
    def planned(policy: str, **knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: cache_planners.PLANNERS[policy](one.problem, **{"alpha": 0.3} | knobs)

    for policy in cache_planners.POLICIES:
        yield policy, "", planned(policy)
    yield "vip", "balanced", planned("vip", share="balanced")
    yield "bayesian", "balanced", planned("bayesian", share="balanced", alpha=0.5)
    yield "bayesian", "one epoch", planned("bayesian", epochs=1, weight=3.0)


def _placement_variants(name: str) -> Iterator[Variant]:
    def planned(method: str, **knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: placement.PLANNERS[method](one.problem, steps=40, **knobs)

    for method in placement.METHODS:
        yield method, "", planned(method, seed=3)
    for policy in ("oes", "maxmin", "fifo", "mrtf", "omcoflow"):
        yield "gnn-tasks", policy, planned("gnn-tasks", policy=policy)


def _reshard_variants(name: str) -> Iterator[Variant]:
    def planned(**knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: reshard.cross_mesh(one.problem, **knobs)

    yield "cross-mesh", "", planned()
    if name in ("replicated", "addends"):
        for strategy in STRATEGIES:
            yield "cross-mesh", strategy, planned(strategy=strategy, seed=2)
    if name == "disjoint":
        for order in reshard.ORDERS[1:]:
            yield "cross-mesh", f"order {order}", planned(strategy="ring", order=order, chunk_bytes=100)


def _recovery_variants(name: str) -> Iterator[Variant]:
    def planned(**knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: recovery.PLANNERS["swift"](one.problem, **knobs)

    yield "swift", "", planned()
    yield "swift", "checkpoint", planned(strategy="checkpoint", rule="daly", spares=0)
    if name == "replicas":
        yield "swift", "ping-pong", planned(consistency="ping-pong", silence_limit_s=2.0, spares=2, seed=3)
    else:
        yield "swift", "helpers", planned(helpers=2, least_interval=5)
        yield "swift", "log", planned(strategy="log", rule="young", parallel_mode="exact", helpers=3)


def _stage_variants(name: str) -> Iterator[Variant]:
    def planned(method: str, **knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: pipeline.plan(one.problem, method=method, **knobs)

    for method in pipeline.METHODS:
        yield method, "", planned(method)
    yield "two-bw", "blocking", planned("two-bw", messages="blocking", candidates=1, seed=3)
    if name == "chain":
        yield "eager", "four stages", planned("eager", stages=4, microbatch_size=2, recompute=True)


def _job_variants(name: str) -> Iterator[Variant]:
    for rule in jobs.PLANNERS:
        yield rule, "", lambda one, rule=rule: jobs.PLANNERS[rule](one.problem, seed=3)


def _deployment_variants(name: str) -> Iterator[Variant]:
    for method in tag.PLANNERS:
        few = {"simulations": 60} | ({"playouts": 20} if method == "tag" else {})
        yield method, "", lambda one, method=method, few=few: tag.PLANNERS[method](one.problem, seed=3, **few)
    yield (
        "tag",
        "unlearned",
        lambda one: tag.PLANNERS["tag"](one.problem, learned=False, playouts=30, simulations=80),
    )


def _parallel_variants(name: str) -> Iterator[Variant]:
    def planned(**knobs: Any) -> Callable[[Instance], Plan]:
        return lambda one: parallel.PLANNERS["rhino"](one.problem, time_limit_s=ENOUGH_S, **knobs)

    yield "rhino", "one stage", planned(stages=1)
    if name == "wide-layers":
        yield "rhino", "segments", planned(stages=1, mesh=(4,), level="O2", seed=3)
        yield "rhino", "two stages", planned(stages=2, mesh=(2,), microbatches=2)
        yield "rhino", "blocks again", planned(stages=1, mesh=(4,), recompute="blocks", strided=False)


VARIANTS: Mapping[str, Callable[[str], Iterator[Variant]]] = {
    "bitwidth": _bitwidth_variants,
    "modules": _module_variants,
    "gradients": _gradient_variants,
    "operators": _operator_variants,
    "collective": _collective_variants,
    "cache": _cache_variants,
    "placement": _placement_variants,
    "recovery": _recovery_variants,
    "reshard": _reshard_variants,
    "stages": _stage_variants,
    "jobs": _job_variants,
    "deployment": _deployment_variants,
    "parallel": _parallel_variants,
}


class Case(NamedTuple):
    """A planner with its knobs, on an instance."""

    grain: str
    """Key of `INSTANCES`."""
    name: str
    """Key of `INSTANCES[grain]`."""
    planner: str
    knobs: str
    """Knobs in words; nothing stands for the planner's own."""
    make: Callable[[Instance], Plan]

    @property
    def id(self) -> str:
        """Unique among the cases of the grain."""
        return "/".join(filter(None, (self.name, self.planner, self.knobs)))

    @property
    def instance(self) -> Instance:
        """Made once a process."""
        return _instance(self.grain, self.name)

    def plan(self) -> Plan:
        """Made once a process."""
        return _plan(self.grain, self.id)


CASES: tuple[Case, ...] = tuple(
    Case(grain, name, *variant)
    for grain, instances in INSTANCES.items()
    for name in instances
    for variant in VARIANTS[grain](name)
)
"""Every plan that every planner makes."""

_BY_ID = {(case.grain, case.id): case for case in CASES}


@cache
def _instance(grain: str, name: str) -> Instance:
    return INSTANCES[grain][name]()


@cache
def _plan(grain: str, number: str) -> Plan:
    case = _BY_ID[grain, number]
    return case.make(case.instance)
