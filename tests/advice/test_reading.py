"""Advice from recorded runs whose bound was planted."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.sim.test_bounds import compute_bound, copy_bound, host_bound, network_bound, started
from tests.trace.synthetic import make
from wirewise import plans
from wirewise.advice import BOUNDS, FAMILIES, advise, reading
from wirewise.advice.curves import break_even
from wirewise.cli.main import app
from wirewise.cost import Links
from wirewise.cost.gradients import V100
from wirewise.errors import TraceError
from wirewise.sim.traces import replay_trace
from wirewise.trace import align, write_trace

SMALL, HEAVY = (4_000, 40_000, 20_000), (400_000, 40_000_000, 20_000_000)
PLANTED = {
    "network": ({"sizes": HEAVY}, "links"),
    "data": ({"sizes": SMALL, "data_s": 0.08}, "loader"),
    "straggler": ({"sizes": SMALL, "slowdown": {1: 1.8}}, "stragglers"),
    "compute": ({"sizes": SMALL}, None),
}


def traced(**options):
    return align(make(ranks=4, steps=8, **options).seen)


@pytest.mark.parametrize("bound", PLANTED)
def test_a_planted_cause_is_named_and_its_removal_comes_first(bound):
    options, family = PLANTED[bound]
    found = advise(traced(**options))
    assert found.bound_by == bound and bound in BOUNDS
    free = [one for one in found.candidates if not one.risk and one.gain(found.step_s) >= 0.03]
    assert [one.family for one in free[:1]] == ([family] if family else [])
    assert found.advice.startswith(f"Do first: {family}" if family else "Leave it as it is")
    if bound == "straggler":
        assert "Rank 1" in found.bound_reason and "rank 1" in found.advice
    assert ("loading" in found.parts_s) == (bound == "data")
    if bound == "data":
        # The page draws it apart from compute.
        assert found.parts_s["loading"] == pytest.approx(0.08, rel=0.05)
        assert sum(found.parts_s.values()) == pytest.approx(found.step_s, rel=0.1)
        assert found.lines == (
            "loader = DataLoader(dataset, ..., num_workers=1, prefetch_factor=4, persistent_workers=True)",
        )
    if bound == "compute":
        assert found.lines == ()


def test_a_change_that_saves_all_alone_is_not_combined():
    found = advise(traced(sizes=SMALL, data_s=0.08))
    assert found.not_applicable["combinations"].startswith("no two changes together")
    assert advise(traced(sizes=SMALL)).not_applicable["combinations"]


def test_every_family_has_candidates_or_a_reason():
    found = advise(traced(sizes=SMALL))
    answered = {one.family for one in found.candidates}
    assert answered.isdisjoint(found.not_applicable)
    assert answered | set(found.not_applicable) == set(FAMILIES)
    assert all(found.not_applicable.values())
    gains = [one.gain(found.step_s) for one in found.candidates]
    assert gains == sorted(gains, reverse=True)


def test_predictions_are_those_of_the_replay_scaled_to_the_measured_step():
    trace = traced(sizes=HEAVY)
    found = advise(trace)
    after = replay_trace(trace, what_if="bandwidth=*:x2")
    links = next(one for one in found.candidates if one.family == "links")
    scale = after.measured_step_s / after.predicted_step_s
    assert links.predicted_step_s == pytest.approx(after.what_if.predicted_step_s * scale)
    assert found.step_s == after.measured_step_s and found.prediction_error == after.error
    assert 0 <= found.held_out_error < 0.1


def test_curves_are_replays_elsewhere_of_the_job_and_its_best_change():
    trace = traced(sizes=HEAVY)
    found = advise(trace)
    links, ranks = found.curves
    assert links.values == (0.25, 0.5, 1.0, 2.0, 4.0) and ranks.values == (1, 2, 4, 8, 16)
    now = links.values.index(1.0)
    assert links.as_it_is_s[now] == pytest.approx(found.step_s)
    twice = next(one for one in found.candidates if one.planner == "all at 2 times the rate")
    assert links.as_it_is_s[now + 1] == pytest.approx(twice.predicted_step_s)
    best = max((one for one in found.candidates if one.lines), key=lambda one: one.gain(found.step_s))
    assert links.change == ranks.change == f"{best.family}: {best.planner}"
    assert links.changed_s[now] == pytest.approx(best.predicted_step_s / best.work)
    assert list(links.as_it_is_s) == sorted(links.as_it_is_s, reverse=True)
    page = found.page()
    assert "A step over the rate of links" in page and "A step over ranks" in page


@pytest.mark.parametrize(
    ("changed", "expected"),
    [((1.0, 2.0, 5.0), 2 * 2**0.5), ((1.0, 1.0, 1.0), None), ((1.0, None, 5.0), 2.0)],
)
def test_a_change_breaks_even_between_two_values(changed, expected):
    # Saved: 1, 1, -1 over 1, 2, 4.
    found = break_even((1.0, 2.0, 4.0), (2.0, 3.0, 4.0), changed)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_a_slow_link_is_raised_to_the_rate_of_the_others(monkeypatch):
    recorded = reading.record

    def slowed(trace):
        recording = recorded(trace)
        rates = np.array([1e8, 1e8, 2.5e7, 1e8])
        links = replace(recording.links, bandwidth_out_bytes_per_s=rates, bandwidth_in_bytes_per_s=rates)
        return recording._replace(links=links)

    monkeypatch.setattr(reading, "record", slowed)
    found = advise(traced(sizes=HEAVY))
    mended, twice = (one for one in found.candidates if one.family == "links")
    assert mended.planner == "host 2 as fast as the others" and "0.25 of the rate" in mended.note
    assert twice.planner == "all at 2 times the rate"
    assert mended.gain(found.step_s) > twice.gain(found.step_s) > 0.2
    assert found.advice.startswith("Do first: links, host 2 as fast as the others")


def test_another_cluster_and_known_codecs_are_predicted_too(tmp_path):
    trace = traced(sizes=HEAVY)
    found = advise(trace, Links.uniform(4, 1e10), folder=tmp_path, costs=V100)
    other = next(one for one in found.candidates if one.family == "topology")
    assert other.predicted_step_s < 0.5 * found.step_s
    codecs = {one.planner: one for one in found.candidates if one.family == "codecs"}
    assert set(codecs) == set(V100.codecs) and all(one.risk for one in codecs.values())
    assert all(plans.load(one.plan_file).compresses for one in codecs.values())
    assert "buckets/dpro" in found.plans
    few = advise(trace, Links.uniform(2, 1e10))
    assert few.not_applicable["topology"] == "the other cluster has 2 hosts, the job 4"


DEVICES = {host_bound: "host", compute_bound: "compute", network_bound: "network", copy_bound: "data"}


@pytest.mark.parametrize("plant", DEVICES)
def test_one_file_of_a_device_is_enough(plant, tmp_path):
    made = started()
    plant(made)
    found = advise(made.write(tmp_path / "trace.json"))
    assert found.bound_by == DEVICES[plant]
    assert {one.family for one in found.candidates} | set(found.not_applicable) == set(FAMILIES)
    assert all(one.source == "accounted" for one in found.candidates)
    first = {"host": "kernels, CUDA graphs", "network": "links", "data": "loader, pinned memory"}
    assert found.advice.startswith(f"Do first: {first.get(found.bound_by, 'kernels')}")
    if plant is network_bound:
        # 800 of 1000 us are exposed; links of twice the rate save half of them.
        assert found.candidates[0].gain(found.step_s) == pytest.approx(0.4, abs=0.02)
        assert any("exposed communication of group" in note for note in found.notes)


def test_the_command_writes_what_scripts_rely_on(tmp_path):
    write_trace(make(ranks=2, steps=6, sizes=SMALL, data_s=0.05).seen, tmp_path / "run")
    words = [
        "advise",
        "--trace",
        tmp_path / "run",
        "--topology",
        "lab-2@1gbit",
        "-o",
        tmp_path / "out",
        "--json",
        "-",
    ]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = "step_s bound_by bound_reason ranks candidates not_applicable advice lines"
    assert set(names.split()) <= set(found)
    of_one = "family planner predicted_step_s measured_step_s ci95 memory_bytes risk note plan_file"
    assert all(set(of_one.split()) <= set(one) for one in found["candidates"])
    assert json.loads((tmp_path / "out" / "advice.json").read_text()) == found
    page = (tmp_path / "out" / "advice.html").read_text()
    assert "What does not apply" in page and found["advice"][:20] in page
    told = CliRunner().invoke(app, [str(word) for word in words[:-2]])
    assert "leave it as it is" in told.stdout and "in steps not seen: " in told.stdout


def test_what_cannot_be_advised_on_is_refused(tmp_path):
    with pytest.raises(TraceError, match="no trace in"):
        advise(tmp_path)
    told = CliRunner().invoke(app, ["advise", "--trace", str(tmp_path), "--", "torchrun", "train.py"])
    assert told.exit_code == 2 and "and the command 'torchrun train.py'; expected one of them" in told.output
    told = CliRunner().invoke(app, ["advise"])
    assert told.exit_code == 2 and "no command was given" in told.output
