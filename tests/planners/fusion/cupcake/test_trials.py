"""Plans between which measured steps decide."""

import pytest

from wirewise.planners.fusion.cupcake import candidates, fastest, trial_candidates
from wirewise.plans import Bucket, FusionPlan


def plan(*codecs, step_s=1.0):
    buckets = (
        Bucket(
            parameters=(str(number),),
            size_bytes=4,
            codec=codec,
            scheme="all_reduce" if codec == "none" else "all_gather",
        )
        for number, codec in enumerate(codecs)
    )
    return FusionPlan(world_size=2, planner="by hand", buckets=tuple(buckets), predicted_step_s=step_s)


def test_candidates_are_each_codec_alone_and_all_together():
    assert candidates(["efsign", "none"]) == {
        "efsign": ("efsign",),
        "none": ("none",),
        "mixed": ("efsign", "none"),
    }


def test_finalists_are_short_and_different():
    made = {
        "efsign": plan("efsign", step_s=1.25),
        "topk": plan("topk", step_s=1.26),
        "none": plan("none", step_s=1.0),
        "mixed": plan("none", step_s=1.1),
    }
    assert trial_candidates(made) == ["efsign", "none"]
    # Equal ones may be predicted differently, as groups without a codec are launched at once where no group has one.
    assert trial_candidates({"none": plan("none", step_s=2.0), "mixed": plan("none")}) == ["mixed"]


@pytest.mark.parametrize(
    ("steps_s", "least_gain", "taken"),
    [
        ((0.96, 1.0, 1.1), 0.03, "signs"),
        ((0.98, 1.0, 1.1), 0.03, "plain"),
        # The gain is that over the shortest step without codecs.
        ((0.98, 1.1, 1.0), 0.03, "whole"),
        ((0.95, 1.1, 1.0), 0.03, "signs"),
        ((1.2, 1.0, 1.1), 0.0, "plain"),
    ],
)
def test_the_fastest_is_taken_unless_it_saves_too_little(steps_s, least_gain, taken):
    plans = {"signs": plan("efsign", "none"), "plain": plan("none", "none"), "whole": plan("none")}
    assert fastest(plans, dict(zip(plans, steps_s, strict=True)), least_gain) == taken


def test_without_an_uncompressed_plan_the_fastest_is_taken():
    plans = {"signs": plan("efsign"), "values": plan("topk")}
    assert fastest(plans, {"signs": 2.0, "values": 1.0}, 0.5) == "values"
