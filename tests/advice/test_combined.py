"""Changes of several families are combined where they save more together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wirewise.advice.families.combined import combine
from wirewise.advice.records import Candidate
from wirewise.errors import InputError


def change(family: str, planner: str, **rest: Any) -> Candidate:
    rest = {"lines": (f"{family} = {planner}",), "predicted_step_s": 1.0, **rest}
    return Candidate(family=family, planner=planner, **rest)


class Job:
    """Steps of one second; what each set of changes makes of them is given, and other sets do not fit together."""

    step_s = scale = 1.0

    def __init__(self, steps: dict[str, float], *without: str) -> None:
        self.steps = {frozenset(names.split()): seconds for names, seconds in steps.items()}
        names = frozenset().union(*self.steps)
        self.changes = {tuple(name.split(":")): [name] for name in names if name not in without}

    def predict(self, changes: list[str]) -> Any:
        if frozenset(changes) not in self.steps:
            raise InputError("do not fit together")
        return SimpleNamespace(predicted_step_s=self.steps[frozenset(changes)])

    def candidate(self, family: str, planner: str, changes: list[str], **rest: Any) -> Candidate:
        return change(family, planner, **{**rest, "predicted_step_s": self.predict(changes).predicted_step_s})

    def answers(self, **rest: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"parallel": "not captured"}
        for names, seconds in self.steps.items():
            if len(names) == 1:
                family, planner = next(iter(names)).split(":")
                one = change(family, planner, predicted_step_s=seconds, **rest.get(f"{family}_{planner}", {}))
                found.setdefault(family, []).append(one)
        return found


STEPS = {
    "loader:2": 0.8, "buckets:1": 0.9, "buckets:5": 0.95, "loader:2 buckets:1": 0.75, "loader:2 buckets:5": 0.6,
}  # fmt: skip


def test_the_best_of_each_family_beside_the_others_is_taken() -> None:
    job: Any = Job(STEPS)
    arguments = {
        "loader_2": {"arguments": {"num_workers": 2}},
        "buckets_5": {"arguments": {"bucket_cap_mb": 5.0}},
    }
    (one,) = combine(job, job.answers(**arguments))
    # Alone the smaller buckets are better.
    assert one.planner == "buckets 5 and loader 2" or one.planner == "loader 2 and buckets 5"
    assert one.family == "combinations" and one.predicted_step_s == 0.6
    assert set(one.lines) == {"loader = 2", "buckets = 5"}
    assert one.arguments == {"num_workers": 2, "bucket_cap_mb": 5.0}


def test_a_combination_that_no_restart_can_try_as_a_whole_is_predicted_only() -> None:
    job: Any = Job(STEPS)
    (one,) = combine(job, job.answers(loader_2={"arguments": {"num_workers": 2}}))
    assert not one.arguments


@pytest.mark.parametrize("together_s", [0.78, 0.9, None])
def test_too_little_gain_and_changes_that_do_not_fit_are_no_combination(together_s: float | None) -> None:
    steps = {"loader:2": 0.8, "buckets:1": 0.9}
    job: Any = Job(steps if together_s is None else steps | {"loader:2 buckets:1": together_s})
    assert (
        combine(job, job.answers())
        == "no two changes together are predicted to save 3% of the step more than the best alone"
    )


def test_a_change_that_does_harm_beside_the_others_is_dropped() -> None:
    steps = {
        "a:1": 0.9,
        "b:1": 0.95,
        "c:1": 0.95,
        "a:1 b:1": 0.8,
        "a:1 c:1": 0.85,
        "b:1 c:1": 0.6,
        "a:1 b:1 c:1": 0.7,
    }
    job: Any = Job(steps)
    (one,) = combine(job, job.answers())
    assert one.planner == "b 1 and c 1" and one.predicted_step_s == 0.6


def test_little_that_is_left_of_a_step_is_no_reason_to_combine() -> None:
    # The combination saves 25 % of the remaining time, and 2 % of the step.
    job: Any = Job({"loader:2": 0.08, "buckets:1": 0.98, "loader:2 buckets:1": 0.06})
    assert str(combine(job, job.answers())).startswith("no two changes together")


def test_what_changes_the_learning_or_the_machines_or_cannot_be_replayed_is_left_out() -> None:
    steps = {
        "loader:2": 0.8,
        "codecs:topk": 0.5,
        "links:twice": 0.5,
        "accumulation:2": 0.6,
        "bucket-view:on": 1.0,
    }
    pairs = {f"loader:2 {name}": 0.3 for name in steps if name != "loader:2"}
    job: Any = Job(steps | pairs, "bucket-view:on")
    answers = job.answers(
        codecs_topk={"risk": "sends less"}, links_twice={"lines": ()}, accumulation_2={"work": 2.0}
    )
    assert str(combine(job, answers)).startswith("fewer than two families")
