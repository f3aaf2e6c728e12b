"""Rivals of the search do what their papers say, so that none is crippled unseen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from wirewise.planners.placement.tag import StrategyTimes, baselines
from wirewise.planners.placement.tag.baselines import deploy
from wirewise.planners.placement.tag.problem import problem_of
from wirewise.topology.unequal import random_unequal
from wirewise.trace.stages import StageModule, StageTrace
from wirewise_papers.tag.random_models import random_problem


def test_a_step_of_the_chain_that_is_much_worse_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each strategy that is tried is one op group away from the last that was accepted."""
    asked: list[tuple[tuple[int, ...], float]] = []

    class Noted(StrategyTimes):
        def of(self, strategy: tuple[int, ...]) -> float:
            found = super().of(strategy)
            asked.append((strategy, found))
            return found

    monkeypatch.setattr(baselines, "StrategyTimes", Noted)
    problem = random_problem(5, hosts=4, groups=8)
    deploy(problem, method="flexflow", simulations=150, seed=1)
    times = dict(asked)
    (first, scale), *tried = asked
    # Where a step is left to chance both it and the one before may be what comes next starts from.
    possible, refused = {first}, 0
    for strategy, seconds in tried:
        near = {one for one in possible if sum(a != b for a, b in zip(one, strategy, strict=True)) <= 1}
        assert near
        possible = set()
        for one in near:
            worse = (seconds - times[one]) / scale
            possible |= {strategy} if worse <= 1e-6 else {one} if worse > 0.3 else {one, strategy}
            refused += worse > 0.3
    assert refused > 10


@pytest.mark.parametrize(("travel_s", "devices"), [(0.5, 3), (1.5, 2), (2.5, 1)])
def test_branches_lie_apart_where_that_ends_earlier(travel_s: float, devices: int) -> None:
    """A root and three branches of 1 s each: apart they end after what the root's output takes there and back."""
    batch, root_bytes = 8, 1000.0
    # The way between two devices is as fast as its slowest link.
    rate = 2 * batch * root_bytes / travel_s
    found = random_unequal(3, hosts=3, most_devices=1)
    topology = replace(
        found,
        devices=tuple(replace(one, speed=1.0, type="v100") for one in found.devices),
        links=tuple(replace(one, bandwidth_bytes_per_s=rate, latency_s=0.0) for one in found.links),
    )

    def module(name: str, seconds: float, size: float) -> StageModule:
        times = {"forward_s": (seconds / 3,), "backward_s": (seconds * 2 / 3,)}
        return StageModule(name=name, output_bytes=size, parameter_bytes=4.0, **times)

    names = ("root", "a", "b", "c")
    modules = [module(name, 1.0 if name != "root" else 0.1, root_bytes) for name in names]
    edges = (("root", "a"), ("root", "b"), ("root", "c"))
    trace = StageTrace(modules=tuple(modules), sizes=(batch,), edges=edges)
    problem = problem_of(trace, topology, batch=batch, groups=4)
    strategy = baselines._first_done(problem)
    used = {problem.actions[group][action].groups for group, action in enumerate(strategy)}
    assert len(problem.op_groups) == 4 and len(used) == devices
