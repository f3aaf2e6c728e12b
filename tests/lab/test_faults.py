import json
from pathlib import Path

import pytest

from wirewise.errors import LabError
from wirewise.lab import HostFault, RankFault, arm_faults, parse_fault
from wirewise.lab.faults import FAULTS_VARIABLE, random_kills
from wirewise.runtime import points


class Struck:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, *arguments, *options.values()))


@pytest.mark.parametrize(
    ("text", "fault", "call"),
    [
        ("kill:2@10s", HostFault(kind="kill", host=2, at_s=10), ("kill", 2)),
        ("stop:1@2.5s", HostFault(kind="stop", host=1, at_s=2.5), ("stop", 1)),
        ("cut:1@5", HostFault(kind="cut", host=1, at_s=5), ("cut", 1)),
        (" heal:1@0.5s ", HostFault(kind="heal", host=1, at_s=0.5), ("heal", 1)),
        ("slow:3:10@4s", HostFault(kind="slow", host=3, at_s=4, factor=10), ("slow", 3, 10.0, "link")),
        (
            "slow-cpu:0:1.5@4s",
            HostFault(kind="slow-cpu", host=0, at_s=4, factor=1.5),
            ("slow", 0, 1.5, "cpu"),
        ),
        (
            "link:2:50mbit@5s",
            HostFault(kind="link", host=2, at_s=5, rate="50mbit"),
            ("set_link", 2, "50mbit"),
        ),
    ],
)
def test_faults_are_read_and_strike(text, fault, call):
    assert parse_fault(text) == fault
    lab = Struck()
    fault.inject(lab)
    assert lab.calls == [call]


@pytest.mark.parametrize(
    "text",
    ["", "kill", "kill:x@1s", "kill:1", "kill:1:2@1s", "slow:1@2s", "slow:1:0.5@1s", "slow:1:nan@1s",
     "explode:1@1s", "kill:1@", "kill:1@bucket:x", "kill:1@Bucket", "cut:1@bucket:3", "slow:1:2@bucket",
     "kill:1@bucket#", "kill:1@5..2s:7", "kill:1@1..5s", "stop:1:3@2s", "link:1@2s", "link:1:fast@2s",
     "cut:-1@2s"],
)  # fmt: skip
def test_other_texts_are_refused_with_the_forms_that_are_known(text):
    with pytest.raises(LabError, match=r"is not understood; expected kill:HOST@SECONDS"):
        parse_fault(text)


def test_a_seed_draws_instants():
    fault = parse_fault("kill:1@5..40s:7")
    assert 5 <= fault.at_s <= 40 and fault == parse_fault("kill:1@5..40s:7")
    assert fault.at_s != parse_fault("kill:1@5..40s:8").at_s
    kills = random_kills(3, 4, (1.0, 9.0), seed=3)
    assert kills == random_kills(3, 4, (1.0, 9.0), seed=3) and {rank for _, rank in kills} <= {0, 1, 2}
    assert [1 + 2 * n <= at_s <= 3 + 2 * n for n, (at_s, _) in enumerate(kills)] == [True] * 4


@pytest.mark.parametrize("text", ["kill:2@bucket:3", "stop:0@commit", "kill:1@update:7#40", "kill:1@batch#0"])
def test_points_are_read_and_written(text):
    fault = parse_fault(text)
    assert isinstance(fault, RankFault) and str(fault) == text


def test_a_rank_finds_its_faults_and_says_that_it_was_struck():
    faults = [parse_fault("kill:2@bucket:3#7"), parse_fault("stop:0@commit")]
    with arm_faults(faults) as found:
        read = json.loads(found.variables[FAULTS_VARIABLE])
        assert [one["act"] for one in read] == ["kill", "stop"] and found.missed == faults
        Path(read[0]["claim"]).write_text("")
        assert found.missed == faults[1:]
    with arm_faults([]) as found:
        assert found.variables == {} and found.missed == []
    assert FAULTS_VARIABLE == points.FAULTS
    assert all(parse_fault(f"kill:1@{name}").point == name for name in points.POINTS)
