"""What a plan says of itself, and the places that its check names."""

from __future__ import annotations

import msgspec
import pytest

from tests.planners.reshard.helpers import links_of, tensor
from wirewise.errors import PlanError
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import parse_sharding
from wirewise.topology import lab_hosts

set_ = msgspec.structs.replace


@pytest.fixture(scope="module")
def plan():
    one = tensor(parse_sharding("2:S0,R"), parse_sharding("2x2@2-5:R,S0"), (8, 8))
    return cross_mesh(one, links_of(6), strategy="ring")


def test_its_figures(plan):
    assert plan.rounds == 1 + max(task.round for task in plan.tasks)
    assert plan.bytes_sent == 2 * 8 * 8 * 4
    assert plan.bytes_between_hosts == 8 * 8 * 4
    assert "1 tensors in 4 messages" in plan.headline
    titles, rows = plan.table()
    assert titles == ["round", "slice", "MB", "from rank", "to ranks", "by"]
    assert rows[0] == ["0", "x[0:4,0:4]", "0.000", "0", "2 3", "ring"]


def test_it_fits_the_hosts_that_it_was_made_for(plan):
    plan.check(lab_hosts(["1gbit"] * 3, ranks_per_host=2))
    with pytest.raises(
        PlanError, match=r"at `\$\.hosts`; the topology's ranks are on hosts \[0, 1, 2, 3, 4, 5\]"
    ):
        plan.check(lab_hosts(["1gbit"] * 6))
    with pytest.raises(PlanError, match="world size 6, the topology has 4 ranks"):
        plan.check(lab_hosts(["1gbit"] * 4))


def test_rounds_of_buckets_follow_each_other():
    tensors = [
        tensor(parse_sharding("2:S0"), parse_sharding("2@2-3:S0"), (8,), bucket=bucket) for bucket in (0, 1)
    ]
    plan = cross_mesh(tensors, links_of(4))
    first = [task.round for task in plan.tasks]
    assert max(first[:2]) < min(first[2:])
    wrong = set_(plan, tasks=(*plan.tasks[:3], set_(plan.tasks[3], round=0)))
    with pytest.raises(
        PlanError, match=r"round is 0 - at `\$\.tasks\[3\]`; expected one after those of the bucket"
    ):
        wrong.check_itself()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunk_bytes": 0}, r"chunk_bytes is 0 - at `\$\.chunk_bytes`"),
        ({"predicted_s": float("nan")}, r"predicted_s is nan - at `\$\.predicted_s`"),
        ({"hosts": (0, 0)}, r"hosts are \[0, 0\] - at `\$\.hosts`; expected one for each of 6 ranks"),
        ({"world_size": 4, "hosts": (0, 0, 1, 1)}, r"tensor 'x' is on rank 4 - at `\$\.tensors\[0\]`"),
        ({"tensors": (tensor(parse_sharding("2:S0,R"), parse_sharding("2@2-3:R,R,P0"), (8, 8)),)}, r"target.partial"),
    ],
)  # fmt: skip
def test_faults_are_named(plan, change, said):
    with pytest.raises(PlanError, match=said):
        set_(plan, **change).check_itself()
