"""The script about strong and weak scaling."""

import re
import sys

import pytest
from tests.benchmarks.test_benchmarks import ROOT, load


@pytest.fixture
def families(monkeypatch):
    for name in ("collectives", "prediction"):
        monkeypatch.syspath_prepend(str(ROOT / name))
    return load(monkeypatch, "families", "scaling")


def test_work_by_scaling(families):
    work = {
        scaling: [ranks * families.share(scaling, ranks) for ranks in (2, 8, 32)]
        for scaling in ("strong", "weak")
    }
    assert work == {"strong": [32, 32, 32], "weak": [2, 8, 32]}
    assert [families.scalings(ranks) for ranks in (2, 32)] == [("strong", "weak"), ("strong",)]


def test_the_picture_has_a_dot_for_each_measured_point(families, monkeypatch):
    points = [
        families.Point(
            what=what, scaling=scaling, ranks=ranks, predicted_s=2.0, quartiles_s=(3.9, 4.0, 4.1), ideal_s=1.0
        )
        for what in ("all_reduce", "reducer")
        for ranks in (2, 8, 32)
        for scaling in families.scalings(ranks)
    ]  # fmt: skip
    assert points[0].error == pytest.approx(-0.5)
    drawn = load(monkeypatch, "plot", "scaling").picture(points)
    # The point of 32 ranks belongs to both scalings.
    tops = re.findall(r'cy="([\d.]+)" r="[\d.]+" class="[a-z]+ c\d" data-tip="\d+ ranks, (\w+): 0.25"', drawn)
    assert sorted(scaling for _, scaling in tops) == ["strong"] * 6 + ["weak"] * 6
    assert len({height for height, _ in tops}) == 1


def test_gradients_of_equal_layers(families):
    trace = families.even_gradients(4, 1 << 20, 0.2)
    assert sum(4 * tensor.elements for tensor in trace.tensors) == 1 << 20
    assert sum(tensor.gap_us for tensor in trace.tensors) == pytest.approx(0.2e6)
    assert len({tensor.name for tensor in trace.tensors}) == 4


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.dist
def test_families_with_workers_of_their_own_are_carried_out(families, monkeypatch, tmp_path):
    out = tmp_path / "page.md"
    script = load(monkeypatch, "run", "scaling")
    rows = "gradients,exchanges,batches"
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", rows, "--ranks", "2", "--out", str(out)])
    script.main()
    page = out.read_text()
    for what in ("reducer", "full-graph", "mini-batch"):
        for scaling in ("strong", "weak"):
            assert f"| {what} | {scaling} | 2 |" in page
    assert "<circle" in out.with_suffix(".svg").read_text()
