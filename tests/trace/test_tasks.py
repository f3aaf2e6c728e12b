"""Files of tasks."""

import json

import pytest

from tests.sim.flows.helpers import links
from wirewise.errors import InputError
from wirewise.sim.flows import FlowSimulator
from wirewise.trace import read_tasks


def change(**changed):
    plain = {
        "iterations": 2,
        "tasks": [
            {"name": "g", "kind": "store"},
            {"name": "s", "kind": "sampler", "worker": "w"},
            {"name": "w", "kind": "worker", "execution_s": [1, 2]},
        ],
        "flows": [{"source": "g", "target": "s", "size_bytes": 10}],
    }
    return {**plain, **changed}


def test_a_file_reads_back(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(change()))
    tasks = read_tasks(tmp_path / "job.json")
    assert tasks.tasks[2].execution_s == (1.0, 2.0)
    assert FlowSimulator(tasks, links([5.0, 5.0])).seconds([0, 1, 1]) == pytest.approx(2.0 + 2.0 + 2.0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"iterations": 0}, "got 0 iterations"),
        ({"tasks": [{"name": "g", "kind": "store"}], "flows": []}, "there is no worker"),
        (
            {"tasks": [{"name": "w", "kind": "worker"}] * 2, "flows": []},
            r"tasks\[1\] \('w'\): the name is empty or",
        ),
        ({"tasks": [{"name": "w", "kind": "gpu"}]}, r"Invalid enum value 'gpu' - at `\$.tasks\[0\].kind`"),
        (
            {"flows": [{"source": "g", "target": "w", "size_bytes": 1}]},
            "of kind store to one of kind worker",
        ),
        ({"flows": [{"source": "x", "target": "w", "size_bytes": 1}]}, "kind unknown"),
        ({"flows": [{"source": "g", "target": "s", "size_bytes": -1}]}, r"flows\[0\].*got -1.0"),
        ({"flows": [{"source": "g", "target": "s", "size_bytes": [1]}]}, "got 1 figures"),
        ({"flows": [{"source": "g", "target": "s", "size_bytes": 1}] * 2}, "is given twice"),
        ({"pace": 1}, "unknown field `pace`"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, changed, told):
    (tmp_path / "job.json").write_text(json.dumps(change(**changed)))
    with pytest.raises(InputError, match=told):
        read_tasks(tmp_path / "job.json")
