"""Jobs of full-graph training."""

from __future__ import annotations

import pytest

from tests.papers.test_adaqp import small_job
from wirewise.errors import InputError
from wirewise.units import parse_links


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "workers is 0; expected at least 1"),
        ({"workers": 3, "hosts": 2}, "3 workers cannot be spread evenly over 2 hosts"),
        ({"modes": ()}, "expected at least one"),
        ({"modes": ("fp32", "fp32")}, "each once"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a finite number above 0"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"link": "fast"}, "rate 'fast' is not understood"),
        ({"epochs": 2**63}, "epochs is 9223372036854775808; expected a whole number of 64 bits, at least 1"),
        ({"links": {1: "0"}}, "rate '0' is not understood"),
        ({"links": {2: "1gbit"}}, "links name host 2; expected hosts 0 to 1"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"evaluate_every": -1}, "evaluate_every is -1; expected at least 0"),
        ({"replan_every": 0}, "replan_every is 0; expected at least 1"),
        ({"network": "wifi"}, "network is 'wifi'; expected one of: auto, lab, slurm, loopback"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_job(**changes)


def test_links_are_read() -> None:
    assert parse_links("2=50mbit, 3=1gbit") == {2: "50mbit", 3: "1gbit"}
    for text in ("fast", "1=1gbit,1=2gbit"):
        with pytest.raises(InputError, match="HOST=RATE"):
            parse_links(text)
    with pytest.raises(InputError, match="rate 'quick' is not understood"):
        parse_links("1=quick")
