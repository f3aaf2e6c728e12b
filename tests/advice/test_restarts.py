"""Changes that need a restart are tried beside the command as it is, and what fails is not advised."""

import sys
import time

import msgspec
import pytest

from wirewise.advice import restarts
from wirewise.advice.options import AdviceOptions
from wirewise.advice.ranking import advice_of
from wirewise.advice.records import FAMILIES, Candidate
from wirewise.errors import PeerError
from wirewise.files import write_json
from wirewise.trials.inside.restarting import RestartResult, result_file
from wirewise.trials.inside.tasks import Task

ASKED = AdviceOptions(steps=8, warmup=1, trials=2)
LOADER = Candidate(
    family="loader",
    planner="2 workers more",
    predicted_step_s=0.4,
    arguments={"num_workers": 2},
    lines=("old",),
)
VIEW = Candidate(
    family="bucket-view",
    planner="gradient_as_bucket_view",
    predicted_step_s=1.0,
    arguments={"gradient_as_bucket_view": True},
    lines=("view",),
)
WRAPPER = {"gradient_as_bucket_view": False, "static_graph": False, "bucket_cap_mb": None}


def advice(*candidates):
    answers = {
        family: [one for one in candidates if one.family == family] or "no reason" for family in FAMILIES
    }
    return advice_of(answers, step_s=1.0, bound_by="data", bound_reason="", ranks=1)


class Script:
    """Stands for the command: a step takes 1.2 s as it is, and what `steps` says under a change."""

    def __init__(self, monkeypatch, **steps):
        self.steps, self.runs, self.names, self.now = steps, [], [], 0.0
        self.first = {"workers": 1, "wrapper": WRAPPER}
        self.refused = {}
        monkeypatch.setattr(restarts, "run_command", self.run)
        monkeypatch.setattr(restarts.time, "monotonic", lambda: self.now)

    def run(self, command, log, environment, *, result, label, limit_s):
        (task,) = msgspec.json.decode(environment["WIREWISE_INSIDE"], type=list[Task])
        self.names.append(environment["WIREWISE_TRIAL"])
        self.runs.append(task.arguments)
        self.now += 10.0
        step = self.steps.get(next(iter(task.arguments), ""), 1.2)
        if isinstance(step, str):
            raise PeerError(
                f"the command ended with exit code 1 before 6 steps; its log is log, and ends:\n\n{step}"
            )
        changed = () if self.refused else tuple(task.arguments)
        found = RestartResult(
            ranks=1, seconds=[step] * 4, changed=changed, refused=self.refused, **self.first
        )
        write_json(result_file(task.folder, 0), found)

    def tried(self, found, tmp_path, asked=ASKED, minutes=10.0):
        return restarts.try_restarts(["train"], found, tmp_path, lambda _: None, asked, 60 * minutes)


def test_changes_are_measured_between_runs_as_it_is(monkeypatch, tmp_path):
    script = Script(monkeypatch, num_workers=0.5, gradient_as_bucket_view=1.19)
    found = script.tried(advice(LOADER, VIEW), tmp_path)
    # The script has one worker, so two more are three.
    loader, view = {"num_workers": 3}, {"gradient_as_bucket_view": True}
    assert script.runs == [{}, loader, view, view, loader, {}]
    assert script.names[:2] == ["as it is", "loader: 2 workers more"]
    first = found.candidates[0]
    assert (first.measured_step_s, first.baseline_step_s, first.ci95) == (0.5, 1.2, (0.5, 0.5))
    assert "num_workers=3" in first.lines[0] and "8 steps with it and 8 as it is" in first.note
    assert found.advice.startswith("Do first: loader, 2 workers more: 0.500 s a step instead of 1.20 s")
    assert "measured" in found.advice and found.lines == first.lines
    # A hundredth less is measured, and no reason to change.
    assert next(one for one in found.candidates if one.family == "bucket-view").measured_step_s == 1.19


def test_a_change_under_which_the_script_fails_is_not_advised(monkeypatch, tmp_path):
    script = Script(monkeypatch, num_workers="RuntimeError: no picklable data")
    found = script.tried(advice(LOADER), tmp_path)
    assert script.runs == [{}, {"num_workers": 3}, {}]
    (one,) = found.candidates
    assert one.measured_step_s is None and one.failure.endswith(
        "before 6 steps: RuntimeError: no picklable data"
    )
    assert found.advice.startswith("Leave it as it is") and found.lines == ()
    assert "the script failed under it" in found.table()[1][1][-1]


@pytest.mark.parametrize(
    ("first", "refused", "reason"),
    [
        ({"workers": None}, {}, "loader: 2 workers more was not tried: the script iterates no DataLoader"),
        ({"workers": 0}, {"num_workers": "a stream"}, "loader: 2 workers more was not tried: a stream"),
    ],
)
def test_what_the_script_does_not_call_is_not_tried_and_says_so(
    monkeypatch, tmp_path, first, refused, reason
):
    script = Script(monkeypatch)
    script.first, script.refused = first, refused
    found = script.tried(advice(LOADER), tmp_path)
    assert reason in found.notes and found.candidates[0].measured_step_s is None


def test_a_flag_that_is_set_already_is_not_tried(monkeypatch, tmp_path):
    script = Script(monkeypatch)
    script.first = {"wrapper": {**WRAPPER, "gradient_as_bucket_view": True}}
    found = script.tried(advice(VIEW), tmp_path)
    assert len(script.runs) == 1 and "has gradient_as_bucket_view=True already" in found.notes[0]


def test_trials_end_with_their_minutes(monkeypatch, tmp_path):
    script = Script(monkeypatch, num_workers=0.5)
    found = script.tried(advice(LOADER, VIEW), tmp_path, minutes=0.45)
    # Ten seconds a run.
    assert len(script.runs) == 2 and found.candidates[0].measured_step_s == 0.5
    assert "trials by restarts ended after 2 runs" in found.notes[0]


def test_plans_compare_with_the_command_before_and_after_them(monkeypatch, tmp_path):
    script = Script(monkeypatch)
    plan = Candidate(family="codecs", planner="topk", predicted_step_s=0.5, measured_step_s=1.05)
    found = script.tried(advice(plan), tmp_path)
    # 1.0 s before and 1.2 s after: the machine got slower, and the plan saves a little.
    assert script.runs == [{}] and found.candidates[0].baseline_step_s == pytest.approx(1.1)
    assert found.candidates[0].gain(1.0) == pytest.approx(1 - 1.05 / 1.1)
    assert any("took 1.00 s before the trials and 1.20 s between them" in note for note in found.notes)


def test_none_are_tried_where_none_are_asked_for(monkeypatch, tmp_path):
    script, known = Script(monkeypatch), advice(LOADER, VIEW)
    for asked in (AdviceOptions(restarts=0), AdviceOptions(trials=0)):
        assert script.tried(known, tmp_path, asked) is known
    assert not script.runs


def test_a_measured_gain_comes_before_a_larger_predicted_one():
    measured = Candidate(
        family="loader", planner="x", predicted_step_s=0.5, measured_step_s=0.8, ci95=(0.7, 0.9), lines=("a",)
    )
    predicted = Candidate(family="links", planner="y", predicted_step_s=0.5)
    found = advice(measured, predicted)
    assert [one.family for one in found.candidates] == ["loader", "links"]
    assert found.advice.startswith("Do first: loader, x: 0.800 s") and found.lines == ("a",)
    assert "Larger, and only predicted: links, y: 0.500 s" in found.advice


def test_lines_that_certainly_save_more_than_what_was_tried_come_first():
    measured = Candidate(
        family="buckets",
        planner="x",
        predicted_step_s=0.9,
        measured_step_s=0.93,
        ci95=(0.9, 0.96),
        lines=("a",),
    )
    loader = Candidate(family="loader", planner="y", predicted_step_s=0.2, ci95=(0.1, 0.3), lines=("b",))
    found = advice(measured, loader)
    assert [one.family for one in found.candidates] == ["loader", "buckets"] and found.lines == ("b",)
    assert found.advice.startswith("Do first: loader, y: 0.200 s")
    # Over its interval it may save less than what was measured.
    wide = msgspec.structs.replace(loader, ci95=(0.1, 0.95))
    assert [one.family for one in advice(measured, wide).candidates] == ["buckets", "loader"]


SCRIPT = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, number):
        time.sleep(0.02)
        return torch.ones(2)

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("trial", os.environ["WIREWISE_TRIAL"])
for batch in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.dist
def test_a_script_is_restarted_with_workers_and_without(tmp_path):
    # Two starts of a script that imports torch are the least that a restart can be tested with.
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    asked = AdviceOptions(steps=6, warmup=1, trials=1)
    command, until_s = [sys.executable, str(file)], time.monotonic() + 100
    found = restarts.try_restarts(command, advice(LOADER), tmp_path, lambda _: None, asked, until_s)
    (one,) = found.candidates
    assert one.measured_step_s is not None and not one.failure, found.notes
    assert one.baseline_step_s >= 0.04 and one.arguments == {"num_workers": 2}
    logs = [(tmp_path / "restarts" / run / "log.txt").read_text() for run in ("01", "02")]
    assert logs == ["trial as it is\n", "trial loader: 2 workers more\n"]
    assert file.read_text() == SCRIPT
