"""Planners return the plans that they returned before: all of `instances.CASES` against `golden/*.json`.

Where a difference is meant, say why in the changelog and write the files anew:

    python -m tests.conformance.test_golden_plans [GRAIN ...]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.instances import CASES, GRAINS, REFUSED, REGISTRIES, Case
from wirewise.errors import PlanError
from wirewise.planners import collective

GOLDEN = Path(__file__).parent / "golden"
RELATIVE = 1e-9
CLOCK = ("synthesis_s",)
"""Fields that a clock measured."""


LEARNED = ("tag", "tapfinger")
"""Planners that decide by sums of a network, whose last bits differ between processors."""
EXACT = [case for case in CASES if case.planner not in LEARNED]


def recorded(case: Case) -> dict[str, Any]:
    """A plan's JSON without what a clock measured."""
    found = json.loads(case.plan().to_json())
    return {name: value for name, value in found.items() if name not in CLOCK}


def differences(expected: Any, got: Any, where: str = "$") -> Iterator[str]:
    """Places that differ: floats by more than `RELATIVE`, everything else at all."""
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        for key in expected:
            yield from differences(expected[key], got[key], f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for number, pair in enumerate(zip(expected, got, strict=True)):
            yield from differences(*pair, f"{where}[{number}]")
    elif type(expected) is float and type(got) is float:
        if not math.isclose(expected, got, rel_tol=RELATIVE):
            yield f"{where}: expected {expected!r}, got {got!r}"
    elif type(expected) is not type(got) or expected != got:
        yield f"{where}: expected {str(expected)[:300]}, got {str(got)[:300]}"


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    return {grain: json.loads((GOLDEN / f"{grain}.json").read_text()) for grain in GRAINS}


@pytest.mark.sweep
@pytest.mark.parametrize("case", EXACT, ids=lambda case: f"{case.grain}/{case.id}".replace(" ", "_"))
def test_a_plan_is_what_it_was(case, golden):
    assert case.id in golden[case.grain], "not recorded; see this module's first lines"
    assert not list(differences(golden[case.grain][case.id], recorded(case)))


@pytest.mark.parametrize("grain", GRAINS)
def test_every_planner_has_a_plan(grain, golden):
    own = [case for case in CASES if case.grain == grain]
    assert {case.planner for case in own} == set(REGISTRIES[grain])
    assert [case.id for case in own if case in EXACT] == list(golden[grain]), "cases and file differ"


@pytest.mark.parametrize("planner", REFUSED)
def test_what_is_left_out_has_no_plan(planner):
    instances = {case.name: case.instance for case in CASES if case.grain == "collective"}
    for name in REFUSED[planner]:
        with pytest.raises(PlanError):
            collective.PLANNERS[planner](instances[name].problem)


def test_differences_are_told():
    one = {"a": [1.0, "x"], "b": 2}
    assert not list(differences(one, {"a": [1.0 + 1e-12, "x"], "b": 2}))
    changed = {"a": [1.0 + 1e-6, "y"], "b": 2.0}
    assert [said.partition(":")[0] for said in differences(one, changed)] == ["$.a[0]", "$.a[1]", "$.b"]


def write(grain: str) -> None:
    """A plan a line, so that a change shows which plans it changes."""
    lines = [
        f"{json.dumps(case.id)}: {json.dumps(recorded(case), separators=(',', ':'))}"
        for case in EXACT
        if case.grain == grain
    ]
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{grain}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    for grain in sys.argv[1:] or GRAINS:
        write(grain)
