"""Errors of a rank that its script has caught: named with the rank, the step and the place, on all ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wirewise.errors import PeerError
from wirewise.runtime.recovery import Agent, run_script
from wirewise.runtime.recovery.own_errors import describe_error, error_of_caught, error_without_gradient


def test_errors_say_rank_step_place_and_what_to_do():
    try:
        int("seven")
    except ValueError as error:
        cause = describe_error(error)
    assert re.fullmatch(r"ValueError: invalid literal .*'seven' \[.*test_own_errors\.py:\d+\]", cause)
    caught = str(error_of_caught(1, 4, cause))
    assert "rank 1" in caught and "step 4" in caught and cause in caught and "let the error rise" in caught
    for whole, got in ((True, "without a back-propagation"), (False, "did not come to its end")):
        text = str(error_without_gradient(2, 5, whole))
        assert "rank 2 ends its block of step 5" in text and got in text and "test_own_errors.py" in text


SCRIPT = """
import sys
import torch
from wirewise.runtime import recovery

torch.set_num_threads(1)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
training = recovery.protect(
    model, optimizer, lambda step, share: torch.ones(2), steps=9,
    sync={"buckets": recovery.Buckets(), "ddp": recovery.DDP()}[sys.argv[2]],
    ranks=recovery.Ranks(timeout_s=600),
)
for batch in training:
    at = (training.position, training.rank) == (3, 1)
    try:
        with training.step():
            try:
                loss = training.model(batch).sum()
                if at:
                    print("before the mistake")
                    raise KeyError("a mistake of the script")
                loss.backward()
            except KeyError:
                if sys.argv[1] != "inside":
                    raise
    except KeyError:
        if sys.argv[1] == "break":
            break
"""


def told(folder: Path, case: str, sync: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    # Nobody waits for these seconds where the error is told: without that the test meets its own limit.
    with pytest.raises(PeerError) as error:
        Agent(
            run_script, [str(folder / "train.py"), [case, sync]], ranks=2, spares=0, folder=folder / "job"
        ).run()
    # What a rank has printed is in its log, though it did not end in peace.
    assert "before the mistake" in "".join(log.read_text() for log in (folder / "job").glob("process-*.log"))
    return str(error.value)


@pytest.mark.dist
def test_an_error_that_a_script_catches_around_the_block_ends_the_job_by_name(tmp_path):
    text = told(tmp_path, "around", "buckets")
    assert re.search(
        r"rank 1 asks for another batch.* step 4: KeyError: 'a mistake of the script' \[.*train\.py", text
    )


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "sync", "named"),
    [
        ("inside", "buckets", r"rank 1 ends its block of step 4 without a back-propagation \[.*train\.py"),
        ("inside", "ddp", r"rank 1 ends its block of step 4 without a back-propagation \[.*train\.py"),
        (
            "break",
            "buckets",
            r"rank 1 left its loop after step 3 for an error, KeyError: .*, and rank 0 went on",
        ),
    ],
)
def test_an_error_that_a_script_hides_ends_the_job_by_name(tmp_path, case, sync, named):
    assert re.search(named, told(tmp_path, case, sync))
