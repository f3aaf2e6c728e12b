"""Every way to split ranks and samples, in plain loops: what the search over closed forms is compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from wirewise.planners.pipeline import PipelineProblem
from wirewise.planners.pipeline.cuts import balanced_cut


class Figures(NamedTuple):
    """A stage in plain numbers."""

    forward: float
    backward: float
    optimizer: float
    input_bytes: float
    saved: float
    parameters: float


def every_cut(modules: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in itertools.combinations(range(1, modules), stages - 1):
        yield (0, *inner, modules)


def figures(problem: PipelineProblem, cut: tuple[int, ...], b: int) -> list[Figures]:
    found = []
    for first, last in itertools.pairwise(cut):
        own = range(first, last)
        times = [problem.trace.times(number, b) for number in own]
        modules = [problem.trace.modules[number] for number in own]
        given = problem.trace.modules[first - 1].output_bytes if first else problem.trace.input_bytes
        found.append(
            Figures(
                sum(t.forward_s for t in times),
                sum(t.backward_s for t in times),
                sum(m.optimizer_s for m in modules),
                given * b,
                sum(m.saved_bytes for m in modules) * b,
                sum(m.parameter_bytes for m in modules),
            )
        )
    return found


def kept(problem, stages, m, w, recompute, stage) -> float:
    one, flight = stages[stage], min(len(stages) - stage, m)
    copies = 2 + problem.trace.state_factor + (w > 1)
    each = min(one.input_bytes, one.saved) if recompute else one.saved
    return copies * one.parameters + (flight - 1) * each + one.saved


def link_s(problem, w, stage, size) -> float:
    """Seconds from a position to the next, all replicas at once, ranks numbered by position, then replica."""
    links, host = problem.links, problem.links.host_of_rank
    out, into, slowest, latency = {}, {}, 0.0, 0.0
    for replica in range(w):
        a, b = (int(host[p * w + replica]) for p in (stage, stage + 1))
        cost = links.pair(stage * w + replica, (stage + 1) * w + replica)
        latency, slowest = max(latency, cost.latency_s), max(slowest, cost.s_per_byte)
        if a != b:
            out[a], into[b] = out.get(a, 0) + 1, into.get(b, 0) + 1
    rates = [count / links.bandwidth_out_bytes_per_s[h] for h, count in out.items()]
    rates += [count / links.bandwidth_in_bytes_per_s[h] for h, count in into.items()]
    return latency + size * max([slowest, *rates])


def busiest_host_s(problem, w, stages) -> float:
    """Seconds of the busiest interface for one microbatch of every replica, activations and gradients."""
    links, host = problem.links, problem.links.host_of_rank
    out, into = [0.0] * links.hosts, [0.0] * links.hosts
    for stage in range(len(stages) - 1):
        for replica in range(w):
            a, b = (int(host[p * w + replica]) for p in (stage, stage + 1))
            if a != b:
                size = stages[stage + 1].input_bytes
                for source, target in ((a, b), (b, a)):
                    out[source] += size
                    into[target] += size
    return max(
        max(size / links.bandwidth_out_bytes_per_s[h] for h, size in enumerate(out)),
        max(size / links.bandwidth_in_bytes_per_s[h] for h, size in enumerate(into)),
    )


def exchange_s(problem, w, stage, size) -> float:
    links, host = problem.links, problem.links.host_of_rank
    if w == 1:
        return 0.0
    out, into, slowest, latency = {}, {}, 0.0, 0.0
    for replica in range(w):
        first, second = stage * w + replica, stage * w + (replica + 1) % w
        cost = links.pair(first, second)
        latency, slowest = max(latency, cost.latency_s), max(slowest, cost.s_per_byte)
        a, b = int(host[first]), int(host[second])
        if a != b:
            out[a], into[b] = out.get(a, 0) + 1, into.get(b, 0) + 1
    rates = [count / links.bandwidth_out_bytes_per_s[h] for h, count in out.items()]
    rates += [count / links.bandwidth_in_bytes_per_s[h] for h, count in into.items()]
    rounds = 2 * (w - 1)
    return rounds * latency + rounds / w * size * max([slowest, *rates])


def update_s(problem, stages, m, w, recompute) -> float:
    d = len(stages)
    compute = [s.forward * (2 if recompute else 1) + s.backward for s in stages]
    link = [link_s(problem, w, i, stages[i + 1].input_bytes) for i in range(d - 1)]
    turn = max([*compute, *link, busiest_host_s(problem, w, stages)])
    for i in range(d):
        if d - i < m:
            turn = max(turn, (sum(compute[i:]) + 2 * sum(link[i:])) / (d - i))
    exchange = max(exchange_s(problem, w, i, stages[i].parameters) for i in range(d))
    return max(m * turn, exchange) + max(s.optimizer for s in stages)


def best_update_s(problem: PipelineProblem) -> float:
    """Seconds of the best (w, d, b, r) for two versions of the weights; infinite: none has room."""
    n, modules, best = problem.ranks, len(problem.trace.modules), math.inf
    for w, d, b, recompute in itertools.product(
        range(1, n + 1), range(1, n + 1), range(1, problem.batch + 1), (False, True)
    ):
        if w * d != n or d > modules or problem.batch % (w * b) or problem.batch // (w * b) < d:
            continue
        m = problem.batch // (w * b)

        def keeps(cut, m=m, w=w, b=b, recompute=recompute):
            stages = figures(problem, cut, b)
            return max(kept(problem, stages, m, w, recompute, i) for i in range(len(stages)))

        def slowest(cut, w=w, b=b):
            """What an exact cut makes small: computing of a stage or a message, then messages together."""
            stages = figures(problem, cut, b)
            links = [link_s(problem, w, i, stages[i + 1].input_bytes) for i in range(len(stages) - 1)]
            longest = max([*(s.forward + s.backward for s in stages), *links])
            return round(longest, 9), round(sum(links), 9)

        own = tuple(balanced_cut(problem.sums(b).compute_s(), d).tolist())
        at_least = update_s(problem, figures(problem, own, b), m, w, recompute)
        if keeps(own) <= problem.memory_bytes:
            best = min(best, at_least)
            continue
        cuts = list(every_cut(modules, d))
        least = min(map(keeps, cuts))
        for share in (1.0, 1.25, 1.6, 2.5):
            cut = min((c for c in cuts if keeps(c) <= least * share), key=slowest)
            if keeps(cut) <= problem.memory_bytes:
                best = min(best, max(at_least, update_s(problem, figures(problem, cut, b), m, w, recompute)))
    return best
