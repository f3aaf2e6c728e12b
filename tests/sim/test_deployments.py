"""Simulated steps on unequal devices: what no simulator may get wrong, and times worked out by hand."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.sim.deployment_jobs import random_model, random_plan, unequal_links
from wirewise.cost import Links
from wirewise.errors import PlanError
from wirewise.plans import DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.sim import predict
from wirewise.sim.deployments import PHASES, DeploymentSimulator
from wirewise.sim.lowering.deployment import spread_of
from wirewise.trace import StageModule, StageTrace

SEEDS = range(40)


def drawn(seed):
    trace = random_model(seed, 4 + seed % 6, skips=seed % 3)
    links = unequal_links(seed, 2 + seed % 5)
    plan = random_plan(seed, trace, links)
    return trace, links, plan, DeploymentSimulator(trace, links, plan.devices, plan.batch)


def test_nothing_overlaps_and_nothing_comes_before_what_it_needs():
    for seed in SEEDS:
        trace, _, plan, simulator = drawn(seed)
        step = simulator.step(spread_of(plan, trace))
        start, end, ops = step.run.start, step.run.end, step.ops
        assert np.isfinite(end).all()
        on = defaultdict(list)
        for op, resource in enumerate(ops.resource):
            if resource >= 0:
                on[int(resource)].append((start[op], end[op]))
            for after in ops.successors[ops.indptr[op] : ops.indptr[op + 1]]:
                assert start[after] >= end[op] - 1e-12
        for spans in on.values():
            spans.sort()
            assert all(late[0] >= early[1] - 1e-12 for early, late in itertools.pairwise(spans))


def test_no_step_is_shorter_than_its_longest_path_or_its_busiest_device_or_interface():
    for seed in SEEDS:
        trace, _, plan, simulator = drawn(seed)
        step = simulator.step(spread_of(plan, trace))
        ops, uses = step.ops, step.uses
        alone = ops.duration.copy()
        carried = np.zeros(len(uses.capacity))
        for op in range(len(alone)):
            own = slice(uses.indptr[op], uses.indptr[op + 1])
            need = ops.work[op] * uses.weight[own]
            np.add.at(carried, uses.interface[own], need)
            alone[op] += (need / uses.capacity[uses.interface[own]]).max(initial=0.0)
        longest = alone.copy()
        for op in np.argsort(step.run.start, kind="stable"):
            for after in ops.successors[ops.indptr[op] : ops.indptr[op + 1]]:
                longest[after] = max(longest[after], longest[op] + alone[after])
        busy = np.bincount(ops.resource[ops.resource >= 0], ops.duration[ops.resource >= 0])
        bound = max(longest.max(), busy.max(), (carried / uses.capacity).max())
        assert 0 < bound <= step.step_s * (1 + 1e-9)


def test_memory_is_what_passes_take_and_give_back():
    for seed in SEEDS:
        trace, _, plan, simulator = drawn(seed)
        step = simulator.step(spread_of(plan, trace))
        for rank in range(plan.world_size):
            parameters = sum(
                (1 + trace.state_factor) * trace.modules[trace.numbers[op]].parameter_bytes
                + (
                    plan.batch * trace.modules[trace.numbers[op]].factor_bytes
                    if op in group.duplicated
                    else 0
                )
                for group in plan.groups
                for op in group.ops
                if rank in group.rows_of(op, plan.batch)
            )
            held, peak, least = parameters, parameters, parameters
            unit = spread_of(plan, trace)
            for op in np.argsort(step.run.end, kind="stable"):
                phase = PHASES[step.phase[op]]
                if step.member[op, rank] and phase in ("forward", "backward"):
                    inside = unit.unit == step.unit[op]
                    saved = sum(m.saved_bytes for m, i in zip(trace.modules, inside, strict=True) if i)
                    held += (1 if phase == "forward" else -1) * saved * unit.rows[step.unit[op], rank]
                    peak, least = max(peak, held), min(least, held)
            assert least >= parameters - 1e-3 and held == pytest.approx(parameters)
            assert step.memory[rank] == pytest.approx(peak)


def test_bandwidth_never_costs_time():
    for seed in SEEDS:
        trace, links, plan, simulator = drawn(seed)
        spread = spread_of(plan, trace)
        faster = replace(links.scaled(2.0), intra_bytes_per_s=2 * links.intra_bytes_per_s)
        quick = DeploymentSimulator(trace, faster, plan.devices, plan.batch)
        assert quick.seconds(spread) <= simulator.seconds(spread) * (1 + 1e-9)


MODEL = StageTrace(
    modules=(
        StageModule(
            name="a", forward_s=(1.0,), backward_s=(2.0,), output_bytes=100.0, parameter_bytes=3000.0
        ),
        StageModule(
            name="b",
            forward_s=(1.0,),
            backward_s=(2.0,),
            parameter_bytes=4000.0,
            factor_bytes=50.0,
            factored_bytes=4000.0,
        ),
    )
)
LINKS = Links.uniform(2, 1000.0)


def two(*groups, batch=4, **device):
    return DeploymentPlan(
        world_size=2,
        planner="by-hand",
        batch=batch,
        devices=tuple(
            DeployedDevice(name=f"d{i}", host=f"h{i}", speed=1.0 + 2 * i, **device) for i in range(2)
        ),
        groups=groups,
        predicted_step_s=0.0,
        baseline_step_s=0.0,
        predicted_bytes=(0, 0),
    )


def test_by_hand():
    both = DeployedGroup(ops=("a", "b"), devices=(0, 1), rows=(1, 3), communication="allreduce")
    # 2 rows forward and 4 backward a row on d0, three times as fast on d1 with three rows: 6 s; 7000 bytes go round.
    assert predict(two(both), MODEL, LINKS).step_s == pytest.approx(6 + 7)
    # Servers: 3000 bytes to d0, and 4000 to d1, at the same time; back likewise.
    served = msgspec.structs.replace(both, communication="ps", owners=(0, 1))
    assert predict(two(served), MODEL, LINKS).step_s == pytest.approx(6 + 4 + 4)
    # a goes round in 3 s, then factors: d1 sends those of 3 rows. d0 multiplies one row less and then all four: 4 s.
    spread = msgspec.structs.replace(both, communication="duplicate", duplicated=("b",))
    assert predict(two(spread), MODEL, LINKS).step_s == pytest.approx(5 + max(0.15 + 4, 0.15 + 3))
    # All rows of a on d0, 400 bytes of outputs and of their gradients, all of b on d1.
    split = DeployedGroup(ops=("a", "b"), devices=(0, 1), owners=(0, 1), communication="mp")
    assert predict(two(split), MODEL, LINKS).step_s == pytest.approx(4 + 0.4 + 4 / 3 + 8 / 3 + 0.4 + 8)
    # Profiles of a type take the place of the job's own times.
    slow = msgspec.structs.replace(MODEL, modules=tuple(
        msgspec.structs.replace(m, forward_s=(2.0,), backward_s=(4.0,)) for m in MODEL.modules
    ))  # fmt: skip
    typed = two(both, type="old")
    assert predict(typed, MODEL, LINKS, profiles={"old": slow}).step_s == pytest.approx(12 + 7)


def test_what_does_not_fit_is_refused():
    both = DeployedGroup(ops=("a", "b"), devices=(0, 1), rows=(1, 3), communication="allreduce")
    for plan, message in (
        (two(both, memory_bytes=1000.0), r"device 'd0' needs 28 kB and has 1 kB"),
        (two(msgspec.structs.replace(both, ops=("b", "a"))), r"op 'b' stands before 'a'"),
        (two(msgspec.structs.replace(both, ops=("a",))), r"lack \['b'\]"),
        (
            two(msgspec.structs.replace(both, communication="duplicate", duplicated=("a", "b"))),
            r"op 'a' has no sufficient factors - at `\$.groups\[0\].duplicated`",
        ),
    ):
        with pytest.raises(PlanError, match=message):
            predict(plan, MODEL, LINKS)
