"""The page about steps of compressed gradients says what was measured."""

import pytest
from tests.benchmarks.test_benchmarks import load
from tests.papers.test_gradients_page import group, plan, record


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "gradient_steps")


@pytest.fixture
def page(run, capsys):
    return run.Page("t", "smoke", {})


def measured(run, names, **steps):
    """A run of all plans, 0.3 s each unless told."""
    of = {name: [group(0, "none" if name.startswith("none") else "efsign")] for name in names}
    return record(**{name: plan(steps.get(name, 0.3), of[name]) for name in names})


def test_errors_and_choice_against_thresholds(run, page, monkeypatch, capsys):
    found = measured(run, (*run.C1, *run.C2, "cupcake"), cupcake=0.36)
    monkeypatch.setattr(run.Kept, "job", lambda *_: found)
    run.cases_rows(page, ["200mbit-2"], run.Kept(None))
    said = capsys.readouterr().out
    assert "10.0 % | <= 0.1: " in said and "10.0 % | <= 0.2: holds" in said
    assert "+20.0 | <= 0.05: FAILS" in said


def test_gains_are_those_over_the_best_uncompressed_bucket(run, page, monkeypatch, capsys):
    names = (*run.PLAIN, "efsign:layer-wise", "efsign:cupcake")
    steps = {"none:even:4": 0.28, "efsign:layer-wise": 0.24, "efsign:cupcake": 0.2}
    monkeypatch.setattr(run.Kept, "job", lambda *_: measured(run, names, **steps))
    run.c3_rows(page, run.Kept(None))
    said = capsys.readouterr().out
    assert "1.40 (>= 1.5: FAILS) | 1.20 (>= 1.3: FAILS) | 1.20 |" in said
    assert "1.40 (>= 1.3: holds) | 1.20 (>= 1.2: " in said


def test_compression_at_a_fast_link_is_harm(run, page, monkeypatch, capsys):
    names = (*run.PLAIN, "efsign:layer-wise", "cupcake")
    monkeypatch.setattr(run.Kept, "job", lambda *_: measured(run, names, cupcake=0.32))
    run.c4_rows(page, run.Kept(None))
    assert "| FAILS | +6.7 %, <= 0.03: FAILS" in capsys.readouterr().out


def test_headline_gains_are_due_where_the_bound_allows_them(run):
    buckets = run.ddp_buckets(64)
    assert buckets == "none:bucket:0.390625"
    slow = {
        buckets: 0.5,
        "none:cupcake": 0.4,
        "efsign:layer-wise": 0.3,
        "topk:layer-wise": 0.34,
        "cupcake": 0.25,
    }
    cells = run.models_cells(measured(run, (*run.MODELS, buckets), **slow), buckets)
    assert cells[-5:-2] == ["2.00 (>= 2.03: FAILS)", "1.60 (bound below)", "1.20 (bound below)"]
    assert cells[-2:] == ["+0.0, <= 0.05: holds", ">= 0.97: holds"]
    # Held against the better of both without codecs.
    cells = run.models_cells(measured(run, (*run.MODELS, buckets), **slow | {"cupcake": 0.42}), buckets)
    assert cells[-1].endswith("FAILS")


def test_a_row_of_a_model_has_its_rate_and_scale(run, page, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(run, "recorded", lambda name, scale: asked.append((name, scale)) or run.uniform())
    monkeypatch.setattr(run.Kept, "job", lambda _, name, job: asked.append(job) or measured(run, job.plans))
    run.models_rows(page, ["bert-100mbit"], 4, run.Kept(None))
    assert asked[0] == ("bert", 64) and (asked[1].link, asked[1].scale, asked[1].hosts) == ("100mbit", 64, 4)
    assert asked[1].plans == (*run.MODELS, run.ddp_buckets(64))
    assert "| bert | 100mbit | 64 | 300.0 | 300.0 |" in capsys.readouterr().out


def test_counted_bytes_are_held_against_payload_and_headers(run, page, monkeypatch, capsys):
    # Four hosts: three messages of an all-gather, twelve of two all-reduces.
    gathered = plan(1.0, [group(0)], bytes_sent=404 + 3 * 770)
    reduced = plan(1.0, [group(0, "none"), group(1, "none")], bytes_sent=round(1.04 * (808 + 12 * 770)))
    monkeypatch.setattr(run.Kept, "runs", lambda _: [record(a=gathered, b=reduced)])
    run.bytes_rows(page, run.Kept(None))
    assert "4.00 % | <= 0.05: holds" in capsys.readouterr().out


def test_jobs_that_were_measured_are_not_measured_again(run, monkeypatch, tmp_path):
    asked = []
    found = measured(run, ("cupcake",))
    monkeypatch.setattr(run, "run", lambda job, *_: asked.append(job) or found)
    for _ in range(2):
        kept = run.Kept(tmp_path / "page.json")
        assert kept.job("uniform", run.small("50mbit", 2, ("cupcake",))) == found
    kept.job("uniform", run.small("50mbit", 4, ("cupcake",)))
    assert [job.hosts for job in asked] == [2, 4]
    assert kept.runs() == [found, found] and kept.seconds > 0
