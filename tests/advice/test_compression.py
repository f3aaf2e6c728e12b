"""Advice on a script that knows nothing of it."""

import json
import os
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from wirewise import plans
from wirewise.advice.compression import _try_plans, advise, advise_from_measurements
from wirewise.advice.options import AdviceOptions
from wirewise.cli.main import app
from wirewise.cost.gradients import V100, GradientCosts, OtherModel, TrainingMeasurements
from wirewise.cost.links import Links
from wirewise.errors import InputError, PeerError
from wirewise.planners.fusion.cupcake import compression_problem, solve
from wirewise.planners.fusion.cupcake.trials import LEAST_GAIN, break_even, gain
from wirewise.trace.gradients import GradientTensor, GradientTrace
from wirewise.trials.inside import TryPlans
from wirewise.trials.inside.trying import TrialMeasurements

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10)))
{more}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def command(tmp_path, steps, more=""):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{steps}", str(steps)).replace("{more}", more))
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]


def trace(tensors=40, elements=400_000, gap_us=500.0):
    return GradientTrace(
        tensors=tuple(GradientTensor(name=str(i), elements=elements, gap_us=gap_us) for i in range(tensors))
    )


def measured(rate_bytes_per_s):
    """What ranks would find where all-reduces take 1 ms and their bytes."""
    both = 2 * 3 / 4 / rate_bytes_per_s
    knots = tuple((float(size), 1e-3 + both * size) for size in (1e3, 1e5, 1e7, 1e8))
    gathers = tuple((float(size), 1e-3 + 3 / rate_bytes_per_s * size) for size in (1e3, 1e5, 1e7, 1e8))
    costs: GradientCosts = msgspec.structs.replace(
        V100, ranks=4, schemes={"all_reduce": knots, "all_gather": gathers}
    )
    return TrainingMeasurements(trace=trace(), costs=costs, ranks=4, step_s=0.1, forward_s=0.01)


def as_predicted(found, folder):
    """What ranks find where the step, without a plan, takes as long as predicted."""
    return msgspec.structs.replace(
        found, step_s=advise_from_measurements(found, folder, ["efsign"]).predicted_ddp_s
    )


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(400)  # three starts of two ranks that import torch
def test_a_script_is_measured_and_advised(tmp_path):
    out = tmp_path / "advice"
    words = ["advise", "-o", out, "--steps", 6, "--warmup", 2, "--codecs", "fp16,efsign", "--restarts", 0]
    words += ["--json", "-", "--"]
    result = CliRunner().invoke(app, [str(word) for word in [*words, *command(tmp_path, 10_000)]])
    assert result.exit_code == 0, result.output
    advice = json.loads(result.stdout[result.stdout.index("{") :])
    assert json.loads((out / "advice.json").read_text()) == advice
    assert advice["ranks"] == 2 and advice["step_s"] == advice["compression"]["measured_step_s"]
    measured = {one["planner"] for one in advice["candidates"] if one["measured_step_s"]}
    found = advice["compression"]
    # Only codecs that come near the best are tried; where none is, their family says why.
    coded = measured & {"fp16", "efsign", "mixed"}
    assert "cupcake" in measured and coded == set(found["tried_step_s"]) & {"fp16", "efsign", "mixed"}
    assert coded or advice["not_applicable"]["codecs"] == found["sentence"]
    assert found["ranks"] == 2
    assert found["gradient_bytes"] == 4 * (64 * 200 + 200 + 200 * 10 + 10)
    assert found["predicted_step_s"] <= found["predicted_plain_s"] + 1e-12
    assert found["lower_bound_s"] <= found["predicted_step_s"] * (1 + 1e-9)
    assert found["latency_s"] > 0 and found["bandwidth_bytes_per_s"] > 0
    plan = plans.load(out / "plan.json")
    assert sorted(plan.parameters) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert plan.compresses == found["compress"]
    # What was measured decides.
    tried = found["tried_step_s"]
    controls = {way for way in tried if way.endswith("-uncompressed")}
    assert "none" in tried and set(tried) - controls <= {"fp16", "efsign", "none", "mixed"}
    shortest = min(found["measured_step_s"], *(tried[way] for way in {"none", *controls}))
    assert found["measured_gain"] == pytest.approx(1 - min(tried.values()) / shortest)
    assert found["measured_gain"] >= LEAST_GAIN or not found["compress"]
    assert "measured" in found["sentence"]
    assert found["lines"] or not found["compress"]


@pytest.mark.dist
@pytest.mark.slow
def test_a_script_that_cannot_train_under_plans_is_advised_as_predicted(tmp_path):
    said = []
    found = advise(
        command(tmp_path, 10_000, "model.require_forward_param_sync  # DataParallel has none"),
        tmp_path / "advice",
        said.append,
        AdviceOptions(codecs=("fp16",), steps=4, warmup=1),
    )
    assert found.tried_step_s == {} and found.measured_gain is None
    assert "predicted" in found.sentence
    assert said[-1].startswith(
        "the advice is as predicted, as plans could not be tried: the command ended with exit"
    )
    assert "require_forward_param_sync" in said[-1]


@pytest.mark.slow
@pytest.mark.dist
def test_a_script_that_ends_too_soon_is_told(tmp_path):
    # Seldom torch aborts while a script ends, and the exit code is 1 then.
    with pytest.raises(PeerError, match=r"ended with exit code \d before 26 steps of a model"):
        advise(command(tmp_path, 1), tmp_path / "advice", lambda _: None)


def test_slow_links_are_worth_compressing_for_and_fast_ones_are_not(tmp_path):
    slow = advise_from_measurements(as_predicted(measured(1e7), tmp_path), tmp_path, ["efsign", "dgc"])
    assert slow.verdict == "compress" and slow.prediction_error == 0.0
    assert slow.compress and slow.gain > 0.5
    assert slow.sentence.startswith("Compress, ")
    assert any("compare the loss of whole runs with and without it" in note for note in slow.notes)
    assert any(bucket.codec != "none" for bucket in plans.load(slow.plan).buckets)
    assert os.path.relpath(slow.plan) in slow.lines[-1]
    fast = advise_from_measurements(as_predicted(measured(1e11), tmp_path), tmp_path, ["efsign", "dgc"])
    assert not fast.compress and fast.verdict == "keep" and not fast.lines
    assert fast.sentence.startswith("Do not compress: ")
    assert all(bucket.codec == "none" for bucket in plans.load(fast.plan).buckets)
    assert slow.bandwidth_bytes_per_s == pytest.approx(1e7, rel=1e-3)
    assert slow.break_even_bytes_per_s == pytest.approx(fast.break_even_bytes_per_s, rel=0.05)
    assert 1e7 < slow.break_even_bytes_per_s < 1e11


def test_a_prediction_far_off_the_measured_step_is_no_ground_for_advice(tmp_path):
    right = as_predicted(measured(1e7), tmp_path)
    for factor, verdict in ((1.14, "compress"), (0.88, "compress"), (1.2, "unknown"), (0.85, "unknown")):
        found = msgspec.structs.replace(right, step_s=right.step_s * factor)
        advice = advise_from_measurements(found, tmp_path, ["efsign"])
        assert advice.verdict == verdict and advice.compress == (verdict == "compress") == bool(advice.lines)
        assert advice.prediction_error == pytest.approx(1 / factor - 1)
        assert advice.sentence.startswith("No advice: ") == (verdict == "unknown")
    assert plans.load(advice.plan).compresses is False
    # What was measured counts all the same.
    tried = advise_from_measurements(
        found, tmp_path, ["efsign"], lambda tried: {way: 1.5 - one.compresses for way, one in tried.items()}
    )
    assert tried.verdict == "compress" and "only what was measured counts" in tried.sentence
    slow = advise_from_measurements(msgspec.structs.replace(right, step_s=1.06), tmp_path, ["efsign"])
    assert "takes 1.06 s measured and " in slow.sentence and "e+" not in slow.sentence


def test_plans_that_were_tried_are_chosen_by_what_was_measured(tmp_path):
    asked = []

    def advised(steps_s):
        def measure(tried):
            asked.append(list(tried))
            assert all(plan.compresses == (way in steps_s and way != "none") for way, plan in tried.items())
            return {way: steps_s.get(way, steps_s["none"]) for way in tried}

        return advise_from_measurements(measured(1e7), tmp_path, ["efsign", "dgc"], measure)

    # Far slower than the others as predicted, the uncompressed plan is tried all the same, to compare with.
    found = advised({"efsign": 0.06, "dgc": 0.06, "mixed": 0.06, "none": 0.12})
    assert "none" in asked[0] and set(found.tried_step_s) == set(asked[0])
    # As it is a step takes 0.1 s.
    assert found.compress and found.measured_gain == pytest.approx(1 - 0.06 / 0.1)
    assert (
        found.sentence.startswith("Compress, ") and "the script as it is, in the run before" in found.sentence
    )
    assert "no interval as fewer than 4 steps are known. A step" in found.sentence
    # Predicted to gain more than half, measured to gain too little.
    for fast, plain, told in ((0.098, 0.12, "2.0%"), (0.088, 0.09, "2.2%"), (0.11, 0.09, "0.0%")):
        found = advised({"efsign": fast, "dgc": fast, "mixed": fast, "none": plain})
        assert not found.compress and found.gain > 0.5
        assert f"plans that do save at most {told} of a step, measured against " in found.sentence
        assert "are known, less than 3%." in found.sentence
        assert not plans.load(found.plan).compresses
        # Without codecs, DistributedDataParallel may be as good.
        assert found.verdict == ("regroup" if plain < 0.1 else "keep")
        assert bool(found.lines) == (plain < 0.1) == ("Leave the script as it is" not in found.sentence)


def test_the_lines_name_the_ratio_that_was_measured_with(tmp_path):
    found = as_predicted(measured(1e7), tmp_path)
    costs = msgspec.structs.replace(found.costs, ratio=0.05)
    *_, line = advise_from_measurements(msgspec.structs.replace(found, costs=costs), tmp_path, ["dgc"]).lines
    assert "compression=Compression(options={'dgc': {'ratio': 0.05}})" in line
    assert "Compression" not in advise_from_measurements(found, tmp_path, ["dgc"]).lines[-1]


@pytest.mark.parametrize(("factor", "noise", "verdict"), [(0.8, 0.05, "compress"), (1.0, 0.5, "keep")])
def test_a_gain_that_chance_may_have_made_is_none(tmp_path, factor, noise, verdict):
    found, seconds = as_predicted(measured(1e7), tmp_path), {}
    draw = np.random.default_rng(3)

    def measure(tried):
        for name, plan in tried.items():
            usual = found.step_s * (factor if plan.compresses else 1.0)
            seconds[name] = (usual * (1 + noise * draw.random(12))).tolist()
        # A median that came out well by chance.
        return {name: 0.99 * found.step_s * (0.8 if one.compresses else 1.0) for name, one in tried.items()}

    advice = advise_from_measurements(found, tmp_path, ["efsign"], measure, seconds)
    low, high = advice.measured_gain_interval
    assert advice.verdict == verdict and low < high and (verdict == "compress") == (low > 0)
    assert (verdict == "compress") == ("chance alone" not in advice.sentence)
    assert "95 %: " in advice.sentence and "the same runtime without codecs" in advice.sentence


def gathered(latency_s=1e-3):
    """Measurements of ranks where an all-reduce takes eight rounds of an all-gather."""
    found = measured(1e9)
    gathers = tuple((size, latency_s + 3e-9 * size) for size in (1e3, 1e5, 1e7, 1e8))
    reduces = tuple((size, 8 * latency_s + 1.5e-9 * size) for size in (1e3, 1e5, 1e7, 1e8))
    costs = msgspec.structs.replace(found.costs, schemes={"all_reduce": reduces, "all_gather": gathers})
    return msgspec.structs.replace(found, costs=costs, trace=trace(4, 600, 50.0), step_s=0.01, forward_s=1e-3)


@pytest.mark.parametrize(
    ("alone", "verdict"), [(0.002, "regroup"), (0.0015, "compress"), (0.008, "compress")]
)
def test_a_codec_has_no_credit_for_the_scheme_that_it_travels_by(tmp_path, alone, verdict):
    """Groups by one scheme take `alone` seconds compressed, 2 ms without a codec, and 10 ms by all-reduces."""
    tried, seconds = {}, {}
    plain_s = 0.002 if alone < 0.008 else 0.0095

    def measure(plans):
        tried.update(plans)
        steps = {name: alone if one.compresses else plain_s for name, one in plans.items()} | {"none": 0.0098}
        seconds.update({name: [value] * 6 for name, value in steps.items()})
        return steps

    found = msgspec.structs.replace(gathered(), seconds=(0.01,) * 6)
    advice = advise_from_measurements(found, tmp_path, ["efsign"], measure, seconds)
    assert set(tried) == {"none", "efsign", "efsign-uncompressed"}
    coded, control = tried["efsign"].buckets, tried["efsign-uncompressed"].buckets
    assert [(b.parameters, b.scheme) for b in coded] == [(b.parameters, b.scheme) for b in control]
    assert {b.scheme for b in control} == {"all_gather"} and {b.codec for b in control} == {"none"}
    assert advice.verdict == verdict
    assert advice.measured_gain == pytest.approx(1 - alone / plain_s)
    assert advice.measured_gain_interval == pytest.approx((advice.measured_gain,) * 2)
    assert "the same runtime without codecs, by all_gather (95 %: " in advice.sentence
    taken = plans.load(advice.plan)
    assert taken.compresses == (verdict == "compress") and bool(advice.lines)
    if verdict == "regroup":
        assert taken.buckets == control
        assert "uncompressed by all_gather, save 80.0% of a step as it is, measured" in advice.sentence


def test_a_gain_over_the_script_has_the_interval_of_its_steps(tmp_path):
    found = msgspec.structs.replace(measured(1e7), seconds=tuple(np.linspace(0.02, 0.18, 9)))
    steps = {}

    def measure(tried):
        steps.update({name: [0.08] * 9 if one.compresses else [0.3] * 9 for name, one in tried.items()})
        return {name: own[0] for name, own in steps.items()}

    advice = advise_from_measurements(found, tmp_path, ["efsign"], measure, steps)
    low, high = advice.measured_gain_interval
    # The script's own steps are that uneven: chance may have made 20 %.
    assert advice.measured_gain == pytest.approx(0.2) and low < 0 < high
    assert advice.verdict == "keep" and "the script as it is, in the run before (95 %: -" in advice.sentence


def test_a_script_that_ends_before_all_windows_is_advised_by_those_it_had(tmp_path, monkeypatch):
    said, seconds = [], {"none": 0.2, "efsign": 0.1}

    def run_command(command, log, environment, *, result, label):
        found = TrialMeasurements(windows=len(seconds), steps_s=seconds)
        result.write_bytes(msgspec.json.encode(found))

    monkeypatch.setattr("wirewise.advice.compression.run_command", run_command)
    files = dict.fromkeys(("none", "efsign", "dgc"), "plan.json")
    task = TryPlans(file=str(tmp_path / "tried.json"), plans=files)
    # Of 6 windows of 10 steps and the one before; 5 to warm up, 2 after each change.
    assert task.script_steps == 6 * 11 + 5 + 5 * 2
    assert _try_plans(["torchrun"], tmp_path, task, said.append).steps_s == seconds
    assert said == ["the script ended after 2 of 6 windows, as it has fewer than 81 steps; not tried: dgc"]
    del seconds["efsign"]
    with pytest.raises(PeerError, match="before a plan with and one without compression had 10 steps each"):
        _try_plans(["torchrun"], tmp_path, task, said.append)


def test_all_reduces_that_overlap_only_without_compression(tmp_path):
    found = measured(1e11)
    costs = msgspec.structs.replace(found.costs, concurrent=((1e3, 1e-4), (1e8, 1e-3)))
    advice = advise_from_measurements(msgspec.structs.replace(found, costs=costs), tmp_path, ["efsign"])
    assert advice.gain == 0.0 and not advice.compress
    assert advice.lower_bound_s <= advice.predicted_step_s == advice.predicted_plain_s
    assert plans.load(advice.plan).predicted_step_s == advice.predicted_step_s


def test_the_bandwidth_at_which_it_starts_to_pay():
    def problem_of(rate):
        return compression_problem(trace(10), Links.uniform(4, rate), codec=["efsign", "none"], costs=V100)

    def best(problem):
        return solve(problem).step_s

    even = break_even(problem_of, best)
    for rate, pays in ((0.9 * even, True), (1.1 * even, False)):
        problem = problem_of(rate)
        assert (gain(best(problem), best(problem.uncompressed())) >= LEAST_GAIN) is pays
    assert break_even(problem_of, best, within=(1e5, 1e6)) == 1e6
    assert break_even(problem_of, best, within=(1e10, 1e11)) is None
    with pytest.raises(InputError, match="expected one without a codec"):
        compression_problem(trace(2), Links.uniform(4, 1e9), codec=["efsign"], costs=V100).uncompressed()


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"codecs": ("best",)}, "unknown gradient codec 'best'"),
        ({"steps": 1}, "steps is 1; expected at least 2"),
        ({"trials": -1}, "trials is -1; expected at least 0"),
    ],
)
def test_knobs_that_cannot_be_used(tmp_path, knobs, told):
    with pytest.raises(InputError, match=told):
        advise(["torchrun", "train.py"], tmp_path, lambda _: None, AdviceOptions(**knobs))
    assert Path(tmp_path).exists()


def test_models_that_were_left_out_are_named(tmp_path):
    others = (OtherModel("Discriminator", 4_000),)
    found = advise_from_measurements(
        msgspec.structs.replace(measured(1e11), others=others), tmp_path, ["fp16"]
    )
    assert any("Discriminator (4 kB)" in note for note in found.notes)


GAN = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
G, D = DDP(nn.Sequential(nn.Linear(8, 200), nn.Linear(200, 16))), DDP(nn.Linear(16, 1))
optimizers = [torch.optim.Adam(m.parameters(), 1e-3) for m in (G, D)]
for step in range(int(sys.argv[1])):
    fake = G(torch.randn(4, 8))
    D.requires_grad_(True)
    optimizers[1].zero_grad()
    D(fake.detach()).mean().backward()
    optimizers[1].step()
    D.requires_grad_(False)
    optimizers[0].zero_grad()
    (-D(fake).mean()).backward()
    optimizers[0].step()
dist.destroy_process_group()
"""


@pytest.mark.dist
@pytest.mark.slow
def test_of_two_models_the_larger_one_is_measured_and_tried(tmp_path):
    script = tmp_path / "gan.py"
    script.write_text(GAN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    said = []
    found = advise(
        [*torchrun, str(script), "10000"],
        tmp_path / "advice",
        said.append,
        AdviceOptions(codecs=("fp16",), steps=6, warmup=2),
    )
    assert found.gradient_bytes == 4 * (8 * 200 + 200 + 200 * 16 + 16), said
    assert set(found.tried_step_s) >= {"none"}, said[-1]
    assert "Linear (68 B)" in " ".join(found.notes)
