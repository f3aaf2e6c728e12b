import pytest

from wirewise.errors import LabError
from wirewise.lab import HostFault, parse_fault


class Struck:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, *arguments, *options.values()))


@pytest.mark.parametrize(
    ("text", "fault", "call"),
    [
        ("kill:2@10s", HostFault(kind="kill", host=2, at_s=10), ("kill", 2)),
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
    fault.strike(lab)
    assert lab.calls == [call]


@pytest.mark.parametrize(
    "text",
    ["", "kill", "kill:x@1s", "kill:1", "kill:1:2@1s", "slow:1@2s", "slow:1:0.5@1s", "slow:1:nan@1s",
     "explode:1@1s", "link:1@2s", "link:1:fast@2s", "cut:-1@2s"],
)  # fmt: skip
def test_other_texts_are_refused_with_the_forms_that_are_known(text):
    with pytest.raises(LabError, match=r"is not understood; expected kill:HOST@SECONDS"):
        parse_fault(text)
