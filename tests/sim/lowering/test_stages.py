from __future__ import annotations

import msgspec
import pytest

from tests.sim.pipeline_jobs import RATE, chain, links, one_each
from wirewise.cost import Links
from wirewise.errors import InputError, PlanError
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import LaidOutTensor, parse_sharding
from wirewise.sim import predict
from wirewise.sim.lowering.stages import with_predictions
from wirewise.trace import StageTrace


def test_a_whole_update():
    plan = one_each("1f1b", 4, 16)
    found = predict(plan, chain(4, 0.5), links(4), shared_nics=False)
    assert found.step_s == pytest.approx(71.0) and found.unit == "update"
    assert found.breakdown.compute_s == pytest.approx(16 * 3.0)
    # Both ends send one message a microbatch, the others two.
    assert found.phases_s["message"] == pytest.approx(0.5 * 16 * 6 / 4)
    assert found.phases_s["backward"] == pytest.approx(32.0)


def test_one_update_among_many():
    found = predict(one_each("2bw", 3, 4), chain(3), links(3))
    assert found.step_s == found.timeline.seconds == pytest.approx(12.0)
    assert found.breakdown.wait_s == pytest.approx(0.0)
    for rank in range(3):
        assert found.timeline.phase_s("forward", rank) == pytest.approx(4.0)


def test_all_ranks_of_a_stage_compute():
    job = msgspec.structs.replace(chain(2), width_speedup={2: 2.0})
    found = predict(one_each("1f1b", 2, 4, width=2), job, links(4))
    assert found.step_s == pytest.approx(7.5, rel=1e-3)
    assert [found.timeline.phase_s("forward", rank) for rank in range(4)] == pytest.approx([2.0] * 4)


def test_edges_are_those_of_the_job():
    skip = msgspec.structs.replace(chain(3, 1.0), edges=(("m0", "m1"), ("m1", "m2"), ("m0", "m2")))
    plan = one_each("1f1b", 3, 4, edges=((0, 1), (1, 2), (0, 2)))
    assert (
        predict(plan, skip, links(3)).step_s > predict(one_each("1f1b", 3, 4), chain(3, 1.0), links(3)).step_s
    )
    for wrong, job in ((one_each("1f1b", 3, 4), skip), (plan, chain(3, 1.0))):
        with pytest.raises(PlanError, match=r"differ in the edge 0 -> 2 - at `\$\.edges`"):
            predict(wrong, job, links(3))


@pytest.mark.parametrize(
    ("job", "on", "said", "kind"),
    [
        (chain(3), links(2), r"`\$\.stages` - does not fit the job: no stage has module 'm2'", PlanError),
        (chain(2), links(3), "world size 2, the links have 3 ranks", PlanError),
        (None, links(2), "got none as the job of a stages plan; expected a StageTrace", InputError),
        (chain(2), None, "got none as the links of a stages plan", InputError),
    ],
)
def test_what_does_not_fit_is_refused(job, on, said, kind):
    with pytest.raises(kind, match=said):
        predict(one_each("1f1b", 2, 4), job, on)


def test_a_width_that_nobody_measured_is_refused():
    with pytest.raises(PlanError, match=r"at `\$\.ranks`.*2 ranks a replica"):
        predict(one_each("1f1b", 2, 4, width=2), chain(2), links(4))


def test_unequal_hosts_count():
    slow = Links.uniform(4, RATE).scaled(0.25, host=2)
    plan, job = one_each("1f1b", 4, 8), chain(4, 1.0)
    assert isinstance(job, StageTrace)
    assert predict(plan, job, slow).step_s > 1.2 * predict(plan, job, links(4)).step_s


def test_stages_of_other_widths_talk_as_a_reshard_plan_says():
    """A rank hands on to two that need all of it: what is no more than a chunk goes on whole, which a plan may beat."""
    job = msgspec.structs.replace(chain(2, 1.0), width_speedup={2: 2.0})
    plan = msgspec.structs.replace(one_each("1f1b", 2, 4), world_size=3, ranks=(((0,),), ((1, 2),)))
    on = links(3)

    def edge_s(source, target, size_bytes):
        ranks = [",".join(map(str, plan.ranks[stage][0])) for stage in (source, target)]
        meshes = [
            f"{len(plan.ranks[stage][0])}@{of}:R" for stage, of in zip((source, target), ranks, strict=True)
        ]
        tensor = LaidOutTensor(
            name="activation",
            shape=(int(size_bytes) // 4,),
            dtype="float32",
            source=parse_sharding(meshes[0]),
            target=parse_sharding(meshes[1]),
        )
        return cross_mesh(tensor, on).predicted_s

    whole = edge_s(0, 1, RATE)
    assert 1.0 <= whole < 2.0
    found = predict(plan, job, on, edge_s=edge_s)
    assert found.step_s < predict(plan, job, on).step_s
    assert {round(s.seconds, 9) for s in found.timeline.spans if s.phase == "message"} <= {
        round(edge_s(*pair, RATE), 9) for pair in ((0, 1), (1, 0))
    }


def test_a_plan_made_by_hand_gets_what_is_predicted_of_it():
    plan, job = one_each("1f1b", 4, 16), chain(4, 0.5, parameter_bytes=1000.0)
    told = with_predictions(plan, job, links(4))
    assert told.predicted_s == predict(plan, job, links(4)).step_s
    assert told.message_s == (0.5,) * 3 and told.pass_s == ((1.0, 2.0, 1.0),) * 4
    assert told.predicted_bytes == (4400, 4300, 4200, 4100)
    assert told.timetable == plan.timetable and told.notes == plan.notes
