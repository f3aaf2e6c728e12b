"""Plans of collectives: what is refused, and what is shown."""

from __future__ import annotations

import msgspec
import pytest

from wirewise import plans
from wirewise.collective import Program, Transfer
from wirewise.errors import PlanError

EXCHANGE = Program(
    name="exchange",
    collective="all_reduce",
    ranks=2,
    chunks=1,
    transfers=(Transfer(0, 0, 1, 0, True), Transfer(0, 1, 0, 0, True)),
)


def example(**changes):
    plan = plans.CollectivePlan(
        world_size=2,
        planner="example",
        program=EXCHANGE,
        size_bytes=4_000_000,
        topology="lab-2",
        bound_s=0.04,
        predicted_s=0.05,
        certificate=plans.Certificate(cut=(0,), bandwidth_bytes_per_s=1e8),
    )
    return msgspec.structs.replace(plan, **changes)


def test_a_right_plan_is_accepted_and_drawn():
    plan = example()
    plan.check_itself()
    assert plan.collective == "all_reduce"
    titles, rows = plan.table()
    assert rows == [["0", "2", "2", "8.000", "4.000"]]
    assert len(titles) == 5


def test_a_wrong_program_is_refused():
    half = msgspec.structs.replace(EXCHANGE, transfers=EXCHANGE.transfers[:1])
    with pytest.raises(PlanError, match=r"rank 0 ends without the values of ranks 1.*\$\.program"):
        example(program=half).check_itself()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world_size": 3}, r"2 ranks.*\$\.program\.ranks.*world size 3"),
        ({"size_bytes": 0}, r"size_bytes is 0"),
        ({"predicted_s": float("nan")}, r"predicted_s is nan"),
        (
            {"certificate": plans.Certificate(cut=(2,), bandwidth_bytes_per_s=1.0)},
            r"rank 2.*certificate",
        ),
    ],
)
def test_faults_are_named(changes, said):
    with pytest.raises(PlanError, match=said):
        example(**changes).check_itself()
