"""What a message quotes of processes that failed."""

from __future__ import annotations

from pathlib import Path

from wirewise import lab
from wirewise.trials.last_words import failure_reason, last_lines


def test_the_last_lines_are_those_before_torchrun_speaks() -> None:
    lines = [
        "epoch 1",
        "ValueError: a bug",
        "E torch/distributed/elastic/multiprocessing/api.py: failed",
        "more",
    ]
    assert last_lines(lines) == "epoch 1\nValueError: a bug"
    assert last_lines(lines, 1) == "ValueError: a bug"
    assert last_lines(["a", "b", "c"], 2) == "b\nc"
    assert last_lines([]) == ""


def test_workers_that_say_the_same_are_quoted_once(tmp_path: Path) -> None:
    tails = [
        ["Traceback (most recent call last):", "[rank0]: wirewise.errors.InputError: unknown mode", "bye"],
        ["[rank1]: wirewise.errors.InputError: unknown mode"],
        ["ValueError: a bug"],
        ["it was killed"],
        ["it ended well"],
    ]
    said = failure_reason(lab.JobResult([1, 1, 1, -9, 0], tails=tails), tmp_path)
    assert said == (
        "training failed. worker 0, 1: unknown mode; worker 2: ValueError: a bug; "
        f"worker 3: killed by SIGKILL, its last words: it was killed. The full logs are in {tmp_path}"
    )


def test_the_worker_that_failed_first_is_named_first(tmp_path: Path) -> None:
    tails = [["wirewise.errors.PeerError: rank 2 is gone"], [], ["epoch 3"]]
    said = failure_reason(lab.JobResult([1, -15, -9], tails=tails, first_failed=2), tmp_path)
    assert said == (
        "training failed. worker 2: killed by SIGKILL, its last words: epoch 3; worker 0: rank 2 is gone; "
        f"worker 1: killed by SIGTERM and said nothing. The full logs are in {tmp_path}"
    )


def test_a_rank_that_waited_for_others_at_the_start_says_for_whom(tmp_path: Path) -> None:
    waited = ["wirewise.errors.PeerError: rank 0 waited 31 s for rank 1, 2 of 3, which did not start"]
    result = lab.JobResult([1, -15, -15], tails=[waited, [], []], first_failed=0)
    assert "worker 0: rank 0 waited 31 s for rank 1, 2 of 3" in failure_reason(result, tmp_path)


def test_what_a_rank_told_its_parent_is_quoted_in_words(tmp_path: Path) -> None:
    tail = ['{"wirewise":"log","text":"fp32, epoch 3"}', '{"wirewise":"record","record":{"loss":0.5}}']
    said = failure_reason(lab.JobResult([-9], tails=[tail], first_failed=0), tmp_path)
    assert "worker 0: killed by SIGKILL, its last words: fp32, epoch 3." in said
