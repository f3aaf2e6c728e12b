"""Models of random steps, and random states of them."""

from __future__ import annotations

from benchmarks.random_steps import DEVICE

from wirewise.cost.link import LinkCost
from wirewise.planners.fusion.disco import AnalyticCosts, StepModel
from wirewise.planners.fusion.disco.moves import METHODS


def model_of(graph, share=0.6, latency=0.2, overlap_rate=1.0, ranks=2):
    """All-reduces of all gradients take that share of computing without latencies; each latency is a part of it."""
    costs = AnalyticCosts(graph, DEVICE)
    compute = sum(costs((i,), (i,)) for i in range(len(graph.operators)))
    whole = sum(graph.operators[i].output_bytes for i in graph.gradients)
    line = LinkCost(
        latency_s=latency * share * compute / len(graph.gradients), s_per_byte=share * compute / whole
    )
    return StepModel(graph, costs, line, overlap_rate=overlap_rate, ranks=ranks)


def random_state(model, random):
    """After a few rounds of all methods."""
    state = model.alone()
    for _ in range(3):
        for name in ("fuse", "duplicate", "split", "all_reduce", "mixed"):
            state = METHODS[name](model, state, int(random.integers(1, 8)), random)
    return state


def as_reference(model, state):
    """Regions as (at home, copies), buckets as lists of operators."""
    regions = []
    for region in model.regions(state):
        home = frozenset(i for i in region.operators if state.fusion.home[i] == region.number)
        regions.append((home, frozenset(region.operators) - home))
    return regions, [[model.graph.gradients[g] for g in bucket] for bucket in model.buckets(state)]


def whole_s(model):
    """One all-reduce of everything."""
    return model.all_reduce.seconds(sum(model.graph.operators[i].output_bytes for i in model.graph.gradients))
