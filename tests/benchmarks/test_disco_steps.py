"""The page about measured steps of DisCo's plans says what was measured, and which way the closed loop keeps."""

from __future__ import annotations

import msgspec
import pytest
from tests.benchmarks.test_benchmarks import load

from wirewise.trace import FusionGraph, Operator

MB = 1_000_000


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "disco_steps")


def seconds(run, regions, whole):
    stock = dict(zip(run.STOCK, ([1.0] * 4, [0.9] * 4, [0.8, 0.8, 0.85, 0.85]), strict=True))
    return {**stock, run.REGIONS: regions, run.WHOLE: whole}


def test_the_loop_keeps_what_was_best_and_reports_the_other_windows(run):
    name, gain = run.closed_loop(seconds(run, [0.9] * 4, [0.7, 0.7, 0.68, 0.68]))
    assert name == run.WHOLE
    assert gain == pytest.approx(1 - 0.68 / 0.85)
    name, gain = run.closed_loop(seconds(run, [0.7, 0.7, 0.95, 0.95], [0.9] * 4))
    assert name == run.REGIONS and gain < 0
    assert run.closed_loop(seconds(run, [0.81] * 4, [0.9] * 4)) == (run.STOCK[2], 0.0)
    # One percent is no reason to leave the stock way.
    assert run.closed_loop(seconds(run, [0.792] * 4, [0.9] * 4)) == (run.STOCK[2], 0.0)


def kept_profile(run):
    graph = FusionGraph(
        model="chain",
        operators=tuple(
            Operator(
                name=f"op{i}",
                kind="aten.mm.default",
                category="matmul",
                inputs=(i - 1,) if i else (),
                output_bytes=MB,
                flops=1e9,
                time_s=0.01,
                gradient=f"layer{i}.weight",
            )
            for i in range(6)
        ),
    )
    found = {
        "graph": msgspec.to_builtins(graph),
        "optimizer_s": 0.002,
        "buffers_s": 0.001,
        "overlap_rate": 0.9,
    }
    kept = run.Kept(None)
    kept.once("profile mlp", lambda: found)
    kept.once("all-reduces", lambda: {"sizes": [0, MB], "seconds": [0.001, 0.081]})
    return kept


def test_ten_plans_differ_and_are_simulated_again_as_planned(run):
    step, *others_s = run.profiled("mlp", run.PRESETS["smoke"], kept_profile(run))
    plans = run.ten_plans(step)
    assert others_s == [0.002, 0.001] and len(plans) == 10
    assert [len(plan["buckets"]) for plan in plans[:2]] == [6, 1]
    steps = [run.simulated_s(step, plan) for plan in plans]
    assert steps == pytest.approx([plan["predicted_step_s"] for plan in plans])
    assert len(set(steps)) > 5
    # Six operators of 10 ms, then 6 MB at 80 ns a byte and 1 ms.
    assert steps[1] == pytest.approx(0.06 + 0.481)
    # The first gradient is there after 10 ms and the channel is never idle again.
    assert steps[0] == pytest.approx(0.01 + 6 * 0.081)
    # Operators that took 90 ms together, and messages twice as long as before.
    slower = run.in_turn(step, 0.09, 2 * 0.481)
    assert run.simulated_s(slower, plans[1]) == pytest.approx(0.09 + 2 * 0.481)
    assert run.simulated_s(slower, plans[0]) == pytest.approx(0.015 + 6 * 2 * 0.081)
    assert slower.overlap_rate == step.overlap_rate == 0.9


def test_searched_plans_come_as_regions_and_as_one_graph(run):
    regions, whole = run.planned("mlp", run.PRESETS["smoke"], kept_profile(run))
    assert regions["plan"]["regions"] and not whole["plan"]["regions"]
    assert regions["plan"]["buckets"] == whole["plan"]["buckets"]
    assert (regions["rest"], whole["rest"]) == ("eager", "compiled")
