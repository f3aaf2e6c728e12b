"""The page about fused operators compares predictions with what was measured."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import msgspec
import numpy as np
import pytest
from benchmarks.fused_operators.passes import least_of
from benchmarks.random_steps import random_graph
from tests.benchmarks.test_benchmarks import load

from wirewise.trials.operators import samples as fused_samples
from wirewise.trials.operators.samples import Sample


def samples(seed: int) -> list[Sample]:
    """One structure at three sizes; fusion saves half of the time."""
    graph = random_graph(seed, 6, 2)
    members = tuple(i for i, one in enumerate(graph.operators) if one.category != "opaque")
    found = []
    for factor in (1, 4, 16):
        own = tuple(
            msgspec.structs.replace(one, time_s=1e-5 * (i + 1) * factor)
            for i, one in enumerate(graph.operators)
        )
        taken_s = 5e-6 + 0.5 * sum(own[i].time_s for i in members)
        larger = msgspec.structs.replace(graph, operators=own, device="cpu")
        one = Sample(
            source="random",
            graph=larger,
            operators=members,
            outputs=members[-1:],
            seconds=taken_s,
            size=factor,
        )
        found.append(one)
    return found


def test_the_least_of_passes_counts():
    first = [samples(0), samples(1)]
    slow = msgspec.structs.replace(first[0][1], seconds=9.0)
    fast = msgspec.structs.replace(first[0][2], seconds=1e-9)
    found = least_of([first, [[slow, fast]]])
    assert found[1] == first[1] and found[0][:2] == first[0][:2]
    assert found[0][2].seconds == 1e-9 and found[0][2].graph == first[0][2].graph


def test_models_are_drawn_in_turn(monkeypatch, tmp_path):
    def regions(random, source, sizes, count):
        for _ in range(2):
            own = samples(int(random.random() * 100))
            yield [msgspec.structs.replace(one, source=source) for one in own[:sizes]]

    monkeypatch.setattr(fused_samples, "_regions", regions)
    file = tmp_path / "samples.jsonl"
    for many in (3, 6):  # Goes on behind the step where it was left.
        for _ in fused_samples.collect(file, structures=many, sizes=2, sources=("mlp", "gru")):
            pass
    found = fused_samples.read_samples(file)
    assert [(one[0].source, one[0].draw, len(one)) for one in found] == [
        ("mlp", 0, 2), ("mlp", 0, 2), ("gru", 1, 2), ("mlp", 2, 2), ("mlp", 2, 2), ("gru", 3, 2),
    ]  # fmt: skip


def test_time_is_weighted_by_what_operators_take(monkeypatch):
    run = load(monkeypatch, "run", "fused_operators")
    share, missed = run.of_time([1.1, 3.0, 6.0], [1.0, 4.0, 5.0])
    assert np.allclose((share, missed), (0.6, 0.21))


def test_what_is_held_out_is_not_learned(monkeypatch):
    run = load(monkeypatch, "run", "fused_operators")
    regions, learned = [samples(seed) for seed in range(6)], []

    def learn(known, **knobs):
        learned.append(known)
        return len(learned) - 1

    def estimated(turn, tried):
        assert not any(one in learned[turn] for one in tried)
        return [one.seconds for one in tried]

    monkeypatch.setattr(run, "fit_estimator", learn)
    monkeypatch.setattr(run, "estimated", estimated)
    monkeypatch.setattr(run, "ProcessPoolExecutor", lambda **knobs: ThreadPoolExecutor(1))
    found = run.held_out({"again": {"epochs": 1}, "folds": 4}, regions, [8, 4, 3, 2, 1, 0])
    assert found == [one.seconds for region in regions for one in region]
    # In four turns: the three regions of one residue class of six, or one, held out.
    assert sorted(len(known) for known in learned) == [9, 15, 15, 15]


@pytest.mark.slow
@pytest.mark.exhaustive  # it learns weights twice, for a minute and a half
def test_the_page_reports_unseen_structures(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "fused_operators")
    out = tmp_path / "page.md"
    lines = [msgspec.json.encode(samples(seed)) + b"\n" for seed in range(24)]
    out.with_suffix(".jsonl").write_bytes(b"".join(lines))
    for number, source in product((1, 2), run.SOURCES):
        out.with_name(f"page-{source}-{number}.jsonl").write_bytes(b"".join(lines[:3]))
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(out)])
    run.main()
    page = out.read_text()
    assert "| estimator |" in page and "| analytic formula |" in page and "| random |" in page
    assert "| any time | 63 | 100.0% | 0.0% | 0% | 100.0% |" in page
    assert ">= 0.95:" in page and "## Weights trained here" in page
    assert "| estimator, structures held out | 63 |" in page


def test_a_step_is_measured_whole(monkeypatch, tmp_path):
    run = load(monkeypatch, "run", "fused_operators")
    drawn = iter(range(9))

    def regions(random, source, sizes, count):
        yield [msgspec.structs.replace(one, source=source) for one in samples(next(drawn))]
        if next(drawn) == 1:
            raise KeyboardInterrupt
        yield samples(next(drawn))

    monkeypatch.setattr(fused_samples, "_regions", regions)
    own, knobs = tmp_path / "page-gru-1.jsonl", {"sizes": 3, "regions_per_step": 2}
    with pytest.raises(KeyboardInterrupt):
        run.measure_model(own, "gru", knobs)
    assert not own.exists()
    assert run.measure_model(own, "gru", knobs) == "page-gru-1: 2 regions"
    assert fused_samples.read_samples(own)[0][0].seconds == samples(2)[0].seconds
    # What is there is not measured again.
    assert run.measure_model(own, "gru", knobs) == "page-gru-1: 2 regions" and next(drawn) == 5
