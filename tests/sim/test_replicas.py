"""Replicas that do the same, simulated once and each by itself."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.sim.lowering.test_modules import HOSTS, assert_equal
from tests.sim.pipeline_jobs import chain, links, one_each
from wirewise.cost import Links
from wirewise.errors import InputError
from wirewise.sim import predict
from wirewise.sim.replicas import MessageLoad, fold_replicas
from wirewise.topology import preset
from wirewise.trace import StageModule, StageTrace


def job_of(draw, stages):
    modules = tuple(
        StageModule(
            name=f"m{number}",
            forward_s=(draw.uniform(1e-4, 1e-2),),
            backward_s=(draw.uniform(1e-4, 1e-2),),
            output_bytes=10 ** draw.uniform(3, 8),
            saved_bytes=1.0,
            parameter_bytes=10 ** draw.uniform(3, 8),
            optimizer_s=draw.uniform(0.0, 1e-2),
        )
        for number in range(stages)
    )
    return StageTrace(modules=modules, input_bytes=1e3, width_speedup={2: 1.7})


def plan_of(draw, stages, replicas, width):
    """Positions one after the other, or replicas, or ranks dealt as they come."""
    style = draw.choice(("1f1b", "gpipe", "2bw", "zero-bubble", "eager"))
    plan = one_each(style, stages, stages + draw.randrange(3), replicas=replicas, width=width)
    world = np.arange(plan.world_size)
    dealt = world.tolist()
    draw.shuffle(dealt)
    shape = (stages, replicas, width)
    laid = draw.choice(
        (
            world.reshape(shape),
            world.reshape(replicas, stages, width).transpose(1, 0, 2),
            np.array(dealt).reshape(shape),
        )
    )
    ranks = tuple(tuple(tuple(own) for own in position) for position in laid.tolist())
    return msgspec.structs.replace(plan, ranks=ranks)


def compare(draw, on, stages, width):
    plan = plan_of(draw, stages, on.world_size // stages // width, width)
    job, slow = job_of(draw, stages), draw.choice((None, 0, on.world_size - 1))
    by = None if slow is None else [1.5 if rank == slow else 1.0 for rank in range(on.world_size)]
    folded, whole = (predict(plan, job, on, slowdown=by, fold=fold) for fold in (True, False))
    assert_equal(folded, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_p4_64_ranks_folded_are_64_ranks_one_by_one(name):
    draw, on = random.Random(name), Links.of(preset(name))
    assert on.world_size == 64
    for _ in range(4):
        compare(draw, on, draw.choice((2, 4)), draw.choice((1, 2)))


def test_folded_replicas_are_replicas_one_by_one():
    draw, on = random.Random(0), Links.of(preset("lab-4x2@1gbit"))
    for _ in range(12):
        compare(draw, on, 2, 1)


def test_replicas_on_a_slower_host_are_a_class():
    """Four pipelines of two ranks, two to a host."""
    plan, job = one_each("1f1b", 2, 4, replicas=4), chain(2, 0.5, parameter_bytes=100.0)
    ranks = tuple(tuple((2 * replica + position,) for replica in range(4)) for position in range(2))
    plan = msgspec.structs.replace(plan, ranks=ranks)
    on = Links.uniform(2, 1e3, intra_bytes_per_s=1e3, ranks_per_host=4)
    assert predict(plan, job, on).timeline.classes == ((0, 2, 4, 6), (1, 3, 5, 7))
    on = replace(on, intra_bytes_per_s=np.array([1e3, 500.0]))
    assert predict(plan, job, on).timeline.classes == ((0, 2), (4, 6), (1, 3), (5, 7))


def test_a_slow_rank_unfolds_its_replica_alone():
    plan, job = one_each("1f1b", 2, 4, replicas=8), chain(2, 0.5, parameter_bytes=100.0)
    found = predict(plan, job, links(16), slowdown=[2.0] + [1.0] * 15)
    assert found.timeline.classes == ((0,), tuple(range(1, 8)), (8,), tuple(range(9, 16)))
    assert found.step_s > predict(plan, job, links(16)).step_s


def test_loads_of_a_class_are_kept():
    """Two replicas use an interface each, and both a third."""
    own = {(0, 1): [MessageLoad(0.0, 5.0, (0, 2), (1.0, 1.0)), MessageLoad(0.0, 5.0, (1, 2), (1.0, 1.0))]}
    joint = {0: MessageLoad(0.0, 5.0, (0, 1, 2), (1.0, 1.0, 0.5))}
    folded = fold_replicas(own, joint, np.array([1.0, 1.0, 3.0]), ["", ""])
    assert folded.classes == ((0, 1),)
    assert folded.own == {(0, 1): {0: MessageLoad(0.0, 5.0, (0, 2), (1.0, 2.0))}}
    assert folded.joint == {0: MessageLoad(0.0, 5.0, (0, 2), (1.0, 0.5))}
    assert fold_replicas(own, joint, np.array([1.0, 2.0, 3.0]), ["", ""]).classes == ((0,), (1,))
    assert fold_replicas(own, joint, np.array([1.0, 1.0, 3.0]), ["", "slow"]).classes == ((0,), (1,))


def test_slowdowns_that_cannot_be_used_are_refused():
    plan, job = one_each("1f1b", 2, 4), chain(2)
    for by in ([1.0], [1.0, 0.0], [1.0, float("inf")]):
        with pytest.raises(InputError, match=r"slowdown has shape .* for each of 2 ranks"):
            predict(plan, job, links(2), slowdown=by)
