"""The script about strong and weak scaling."""

import re

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
    assert drawn.count("<circle") == 2 * 6
    tops = {float(y) for y in re.findall(r'cy="([\d.]+)"', drawn)}
    assert len(tops) == 1
