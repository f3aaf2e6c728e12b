"""Ranks that compute equally fast, simulated once and each by itself."""

import random

import msgspec
import pytest

from wirewise.cost import Links
from wirewise.cost.gradients import V100
from wirewise.plans import Bucket, FusionPlan
from wirewise.sim import predict
from wirewise.topology import preset
from wirewise.trace import Module, ModuleTrace
from wirewise.trace.modules import Overhead

HOSTS = {
    "dgx-h100x8": 8,
    "dgx-a100x8@rails/2": 8,
    "dgx-h100x8@fat-tree/4": 8,
    "dgx-a100x8@dragonfly": 8,
}


def job_of(draw, ranks_per_host, ranks):
    modules = [
        Module(
            name=f"m{number}",
            forward_s=draw.uniform(1e-4, 1e-2),
            backward_s=draw.uniform(1e-4, 1e-2),
            gradient_bytes=4.0 * int(10 ** draw.uniform(3, 8)),
        )
        for number in range(draw.randint(1, 4))
    ]
    speeds = [draw.choice((1.0, 1.25, 2.0)) for _ in range(ranks)]
    return ModuleTrace(
        modules=modules,
        hosts=[rank // ranks_per_host for rank in range(ranks)],
        slowdown=draw.choice(((), speeds)),
        optimizer_s=draw.uniform(0.0, 1e-2),
        comm_slots=draw.randint(1, 2),
        algorithm=draw.choice(("ring", "tree", "ps", "hierarchical")),
        overhead=draw.choice((Overhead(), Overhead(1e-4, 2e-4, 1e-10, 1e-4, 2e-10))),
        interference=draw.choice((1.0, 1.3)),
    )


def plan_of(draw, job):
    buckets = []
    for module in reversed(job.modules):
        more = {
            "codec": "randomk",
            "scheme": "all_gather",
            "decode": draw.choice(("inline", "lazy", "queue")),
        }
        bucket = Bucket(
            parameters=(module.name,), size_bytes=int(module.gradient_bytes), chunks=draw.randint(1, 2)
        )
        buckets.append(msgspec.structs.replace(bucket, **draw.choice(({}, more))))
    return FusionPlan(world_size=len(job.hosts), planner="drawn", buckets=tuple(buckets))


def compare(draw, links, ranks_per_host):
    job = job_of(draw, ranks_per_host, links.world_size)
    plan = plan_of(draw, job)
    folded, whole = (predict(plan, job, links, costs=V100, fold=fold) for fold in (True, False))
    assert folded.classes == len(set(job.slowdown or [1.0])) and whole.classes == links.world_size
    assert_equal(folded, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_p4_64_ranks_folded_are_64_ranks_one_by_one(name):
    draw, links = random.Random(name), Links.of(preset(name))
    assert links.world_size == 64
    for _ in range(3):
        compare(draw, links, HOSTS[name])


def test_folded_ranks_are_ranks_one_by_one():
    draw, links = random.Random(0), Links.of(preset("lab-4x2@1gbit"))
    for _ in range(12):
        compare(draw, links, 2)


def assert_equal(folded, whole):
    """Seconds, where they go, and what every rank does."""
    assert folded.step_s == pytest.approx(whole.step_s, rel=1e-9)
    for name in folded.breakdown.__struct_fields__:
        near = pytest.approx(getattr(whole.breakdown, name), rel=1e-9, abs=1e-9 * whole.step_s)
        assert getattr(folded.breakdown, name) == near
    assert folded.phases_s.keys() == whole.phases_s.keys()
    for phase, seconds in whole.phases_s.items():
        assert folded.phases_s[phase] == pytest.approx(seconds, rel=1e-9)
    for rank in range(0, whole.timeline.world_size, 7):
        ends = [sorted((s.phase, s.end_s) for s in one.timeline.of(rank)) for one in (folded, whole)]
        assert [phase for phase, _ in ends[0]] == [phase for phase, _ in ends[1]]
        assert [s for _, s in ends[0]] == pytest.approx([s for _, s in ends[1]], rel=1e-9)


def test_a_slow_rank_unfolds_itself_alone():
    job = ModuleTrace(
        modules=[Module(name="m", forward_s=1.0, backward_s=2.0, gradient_bytes=400.0)],
        hosts=[0, 0, 1, 1],
        slowdown=[1.0, 1.0, 3.0, 1.0],
    )
    plan = FusionPlan(world_size=4, planner="x", buckets=(Bucket(parameters=("m",), size_bytes=400),))
    found = predict(plan, job, Links.uniform(2, 1e9, ranks_per_host=2))
    assert found.timeline.classes == ((0, 1, 3), (2,)) and found.classes == 2
    assert found.timeline.phase_s("forward") == pytest.approx((3 * 1.0 + 3.0) / 4)
    assert "of 4 ranks (classes of ranks that do the same: 2)" in found.summary()
