"""Runs that were stopped go on from their checkpoints to the same result, and what cannot go on says why."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from tests.papers.test_adaqp import Silent, small_job
from wirewise.cli.main import app
from wirewise.results import EpochRecord
from wirewise.runtime.full_graph import checkpoint
from wirewise_papers.adaqp import experiment as adaqp
from wirewise_papers.adaqp import resuming
from wirewise_papers.adaqp.job import Event, FullGraphJob
from wirewise_papers.adaqp.records import RunResult


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["run", "adaqp", *map(str, words)])


def result_of(folder: Path) -> RunResult:
    return msgspec.json.decode((folder / "result.json").read_bytes(), type=RunResult)


def losses(result: RunResult, mode: str) -> list[tuple[int, float]]:
    return [(record.epoch, record.loss) for record in result.modes[mode].epochs]


def saved(folder: Path, mode: str) -> set[int]:
    return set(checkpoint.ranks_by_epoch(resuming.checkpoint_folder(folder, mode)))


@pytest.mark.slow
@pytest.mark.dist
def test_a_stopped_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    """Five of nine epochs, of which one mode lost a rank's file of the last checkpoint; then the rest."""
    modes, whole, folder = ("fp32", "uniform-4", "adaqp"), tmp_path / "whole", tmp_path / "stopped"
    job = small_job(network="loopback", modes=modes, epochs=9, turn=2)
    expected = adaqp.run(job, whole, Silent())
    adaqp.run(msgspec.structs.replace(job, epochs=5, checkpoint_every=2), folder, Silent())
    assert saved(folder, "uniform-4") == {4, 5}
    (resuming.checkpoint_folder(folder, "uniform-4") / "epoch-000005" / "rank-1.pt").unlink()
    done = call("--resume", folder, "--epochs", 9, "--json", tmp_path / "result.json")
    assert done.exit_code == 0, done.output
    resumed = result_of(folder)
    assert resumed.notes[0].startswith(
        "Resumed from checkpoints: fp32 after epoch 5, uniform-4 after epoch 4, adaqp after epoch 5"
    )
    for mode in ("fp32", "uniform-4"):
        assert losses(resumed, mode) == losses(expected, mode)
        assert resumed.modes[mode].bytes_sent == expected.modes[mode].bytes_sent
        last, wanted = resumed.modes[mode].epochs[-1], expected.modes[mode].epochs[-1]
        assert last.accuracy == wanted.accuracy
    assert [epoch for epoch, _ in losses(resumed, "adaqp")] == list(range(9))
    assert resumed.graph == expected.graph
    assert saved(folder, "fp32") == {7, 9}
    events = [
        msgspec.json.decode(line, type=Event) for line in (folder / "events.jsonl").read_bytes().splitlines()
    ]
    assert sorted((e.mode, e.record.epoch) for e in events) == sorted((m, i) for m in modes for i in range(9))


def worker_process(folder: Path, rank: int) -> int:
    """Id of the process that is the rank of a run in `folder`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in command and f"RANK={rank}".encode() in environment:
            return int(process.name)
    raise AssertionError(f"no process is rank {rank} of {folder}")


@pytest.mark.slow
@pytest.mark.dist
def test_a_run_whose_rank_was_killed_goes_on(tmp_path: Path) -> None:
    folder, killed = tmp_path / "run", threading.Event()

    def kill() -> None:
        # Of both ranks: one of them alone is no checkpoint to go on from.
        while checkpoint.latest(resuming.checkpoint_folder(folder, "fp32"), 2) is None:
            time.sleep(0.005)
        os.kill(worker_process(folder, 1), signal.SIGKILL)
        killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    settings = ["--dataset", small_job().dataset, "--workers", 2, "--hidden", 16, "--network", "loopback"]
    # So many that none is the last one, however late the kill comes.
    settings += ["--modes", "fp32", "--timeout", 20, "--epochs", 100_000, "--evaluate-every", 0]
    stopped = call(*settings, "--checkpoint-every", 5, "--out", folder)
    killer.join(timeout=5)
    assert killed.is_set()
    assert stopped.exit_code == 2
    assert "worker 1: killed by SIGKILL" in stopped.stderr
    assert f"Go on from the last checkpoint: wirewise run adaqp --resume {folder}" in stopped.stderr
    before = [(r.epoch, r.loss) for r in resuming.records(folder)["fp32"]]
    assert 5 <= len(before) < 100_000
    job, epochs = msgspec.json.decode((folder / "job.json").read_bytes(), type=FullGraphJob), len(before) + 50
    (folder / "job.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(job, epochs=epochs)))
    done = call("--resume", folder)
    assert done.exit_code == 0, done.output
    after = losses(result_of(folder), "fp32")
    assert [epoch for epoch, _ in after] == list(range(epochs))
    # Epochs after the checkpoint were trained twice.
    assert after[: len(before)] == before


def stopped_folder(folder: Path, *, events: int = 4, ranks: int = 2, **changes: object) -> FullGraphJob:
    """What a run that was stopped after four epochs leaves, its checkpoints empty files."""
    job = small_job(modes=("fp32",), epochs=8, checkpoint_every=2, network="loopback", **changes)
    adaqp.prepare_parts(job, folder, Silent())
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    lines = [Event(mode="fp32", record=EpochRecord(epoch=i, loss=1.0, train_s=1.0)) for i in range(events)]
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in lines))
    place = resuming.checkpoint_folder(folder, "fp32") / "epoch-000004"
    place.mkdir(parents=True)
    for rank in range(ranks):
        (place / f"rank-{rank}.pt").touch()
    return job


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--hidden", 32], r"hidden is 32, and \S+job.json has 16"),
        (["--epochs", 7], r"epochs is 7, and \S+job.json has 8; .* only its epochs may be raised"),
        (["--workers", 4], r"workers is 4, and \S+job.json has 2"),
        (["--timeout", 60], r"timeout_s is 60.0, and \S+job.json has 20.0"),
        (["--network", "lab"], r"network is 'lab', and \S+job.json has 'loopback'"),
        (["--modes", "fp32,adaqp"], r"modes is \('fp32', 'adaqp'\), and \S+job.json has \('fp32',\)"),
        (["--checkpoint-every", 3], r"checkpoint_every is 3, and \S+job.json has 2"),
        (["--out", "elsewhere"], r"--out is elsewhere and --resume is \S+; a run goes on in its own folder"),
    ],
)
def test_settings_that_contradict_the_run_are_refused(
    given: list[object], message: str, tmp_path: Path
) -> None:
    stopped_folder(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    refused = call("--resume", tmp_path, *given)
    assert refused.exit_code == 2
    assert_said(message, refused)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def assert_said(message: str, result: Result) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(result.stderr)


def test_settings_that_agree_and_more_epochs_are_taken(tmp_path: Path) -> None:
    job = stopped_folder(tmp_path)
    taken = resuming.read_job(tmp_path, {"epochs": 12, "hidden": 16, "network": "auto"})
    assert taken == msgspec.structs.replace(job, epochs=12)
    assert resuming.positions(taken, tmp_path) == {"fp32": 4}


@pytest.mark.slow
def test_folders_that_cannot_go_on_say_why(tmp_path: Path) -> None:
    for number, (spoil, message) in enumerate(
        [
            (lambda f: (f / "job.json").unlink(), "job.json: No such file .* expected the folder of a run"),
            (lambda f: (f / "job.json").write_text("{"), "job.json is no description of a run: "),
            (lambda f: checkpoint.discard(f / "checkpoints" / "fp32"), "no file of any mode is there"),
            (
                lambda f: (f / "checkpoints" / "fp32" / "epoch-000004" / "rank-1.pt").unlink(),
                "no complete checkpoint: fp32 has ranks 0 of epoch 4; expected the files of ranks 0 to 1",
            ),
            (
                lambda f: (f / "checkpoints" / "fp32" / "epoch-000004" / "rank-2.pt").touch(),
                "no complete checkpoint: fp32 has ranks 0, 1, 2 of epoch 4",
            ),
            (
                lambda f: adaqp.prepare_parts(small_job(workers=3, hosts=3), f, Silent()),
                "parts holds 3 parts, and job.json of that run has 2 workers",
            ),
            (lambda f: (f / "parts" / "meta.json").unlink(), "parts has no meta.json"),
            (lambda f: (f / "events.jsonl").unlink(), "cannot read .*events.jsonl: No such file"),
            (lambda f: (f / "events.jsonl").write_text("{}\n"), "events.jsonl: line 1 is no event"),
            (lambda f: (f / "events.jsonl").write_text(""), "events.jsonl lacks epoch 0 of fp32"),
        ]
    ):
        folder = tmp_path / str(number)
        stopped_folder(folder)
        spoil(folder)
        refused = call("--resume", folder)
        assert refused.exit_code == 2
        assert_said(message, refused)


def test_going_on_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    job = stopped_folder(tmp_path, events=6)
    later = resuming.checkpoint_folder(tmp_path, "fp32") / "epoch-000006"
    later.mkdir()
    (later / "rank-0.pt").touch()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"mode":"fp32","rec')
    resuming.rewind(job, tmp_path, resuming.positions(job, tmp_path))
    assert [record.epoch for record in resuming.records(tmp_path)["fp32"]] == [0, 1, 2, 3]
    assert saved(tmp_path, "fp32") == {4}
    assert not later.exists()


def test_a_new_run_in_the_folder_forgets_the_checkpoints(tmp_path: Path) -> None:
    job = stopped_folder(tmp_path)
    mine = tmp_path / "checkpoints" / "fp32" / "epoch-000004" / "notes.txt"
    mine.touch()
    adaqp._clear(job, tmp_path, None)
    assert saved(tmp_path, "fp32") == set()
    assert mine.exists()
    assert not (tmp_path / "events.jsonl").exists()
    assert not resuming.can_continue(tmp_path)


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_folder(tmp_path)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(adaqp, "run_ranks", interrupt)
    stopped = call("--resume", tmp_path)
    assert stopped.exit_code not in (0, 2)
    assert f"wirewise: stopped. Go on from the last checkpoint: wirewise run adaqp --resume {tmp_path}" in (
        stopped.stderr
    )
