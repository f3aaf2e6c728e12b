from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.planners.recovery.problems import job
from wirewise.errors import InputError
from wirewise.trace import read_job, read_recovery_trace, write_recovery_trace

TRACE = job([0.02, 0.03], [1e6], weights=[1.0, 3.0])


def test_a_file_reads_back_equal(tmp_path):
    write_recovery_trace(TRACE, tmp_path / "job.json")
    assert read_recovery_trace(tmp_path / "job.json") == TRACE == read_job([tmp_path / "job.json"])
    assert TRACE.failure_shares == (0.25, 0.75) and TRACE.world_size == 2


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": ()}, r"no stages - at `\$\.stages`"),
        ({"stages": (replace(TRACE.stages[0], ranks=(0, 0)),)}, r"ranks \[0, 0\] - at `\$\.stages`"),
        ({"stages": (replace(TRACE.stages[0], ranks=()),)}, r"has no ranks"),
        ({"stages": (replace(TRACE.stages[0], compute_s=-1.0),), "messages": ()}, "compute_s is -1.0"),
        (
            {"stages": (replace(TRACE.stages[0], failure_weight=0.0),), "messages": ()},
            "every failure_weight is 0",
        ),
        ({"messages": (replace(TRACE.messages[0], target=5),)}, r"at `\$\.messages\[0\]`: expected two of"),
        ({"messages": TRACE.messages[:1] * 2}, "stand twice"),
        ({"step_s": 0.0}, r"step_s - at `\$\.step_s` is 0.0; expected a finite figure above 0"),
        ({"silent_share": 1.5}, "at most 1"),
        ({"spawn_s": float("nan")}, r"spawn_s - at `\$\.spawn_s` is nan"),
        ({"consistency_s": {"undo": -1.0}}, "seconds of 'undo'"),
    ],
)
def test_what_cannot_be_used_is_named(change, said):
    with pytest.raises(InputError, match=said):
        replace(TRACE, **change)


def test_a_file_of_something_else_is_named(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"stages": 3}))
    with pytest.raises(InputError, match=r"cannot read figures of recovery from .*job.json: .*\$\.stages"):
        read_recovery_trace(path)
