"""What k-synchronous programs cost, and what none can be below."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from wirewise.collective import Network, Program
from wirewise.collective.bounds import bound
from wirewise.planners.collective.demands import block_bytes, demands, hops, pairs
from wirewise.planners.collective.problem import CollectiveProblem

__all__ = ["Point", "fewest_steps", "least_rounds", "least_s", "point_of", "widths"]


class Point(NamedTuple):
    """What a k-synchronous program costs."""

    chunks: int
    """Chunks of a block."""
    steps: int
    rounds: int

    def predicted_s(self, network: Network, block_bytes: float) -> float:
        """Seconds of S alpha + R / C beta, with the largest latency of a route."""
        alpha = max((network.latency(s, t) for s, t in pairs(network)), default=0.0)
        narrowest = min(e.bandwidth_bytes_per_s for e in network.edges)
        return self.steps * alpha + self.rounds / self.chunks * block_bytes / narrowest


def point_of(program: Program, problem: CollectiveProblem) -> Point:
    """Any program as a k-synchronous one: each step lasts as many rounds as its busiest edge needs."""
    loads: list[Counter[int]] = [Counter() for _ in range(program.steps)]
    for transfer in program.transfers:
        loads[transfer.step].update(problem.network.route(transfer.source, transfer.target) or ())
    wide = widths(problem.network)
    rounds = sum(max(-(-load // wide[edge]) for edge, load in step.items()) for step in loads if step)
    return Point(program.chunks // len(demands(problem)), program.steps, rounds)


def fewest_steps(problem: CollectiveProblem) -> int:
    """Transfers on the way to the furthest target."""
    far = hops(problem.network)
    return max((int(far[d.source, t]) for d in demands(problem) for t in d.targets), default=0)


def least_rounds(problem: CollectiveProblem) -> float:
    """Rounds a chunk below which the tightest cut allows no program."""
    least = bound(
        problem.network, problem.collective, problem.size_bytes, root=problem.root, members=problem.members
    )
    narrowest = min(e.bandwidth_bytes_per_s for e in problem.network.edges)
    return least.seconds * narrowest / block_bytes(problem) * (1 + 1e-9)


def least_s(problem: CollectiveProblem) -> float:
    """Below it no program can be, in seconds of `Point.predicted_s`: the longest way in steps, and the tightest cut."""
    size = block_bytes(problem)
    narrowest = min(e.bandwidth_bytes_per_s for e in problem.network.edges)
    latencies_s = Point(1, fewest_steps(problem), 0).predicted_s(problem.network, size)
    return latencies_s + least_rounds(problem) * size / narrowest


def widths(network: Network) -> list[int]:
    """Chunks that each edge carries in a round."""
    narrowest = min(e.bandwidth_bytes_per_s for e in network.edges)
    return [int(e.bandwidth_bytes_per_s / narrowest * (1 + 1e-9)) for e in network.edges]
