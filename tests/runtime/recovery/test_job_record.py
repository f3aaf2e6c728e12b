"""A folder of checkpoints is resumed by its own job alone, or by one whose changes are accepted by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from wirewise.errors import InputError
from wirewise.runtime.recovery import Checkpoints, Fold, State, protect
from wirewise.runtime.recovery.job_record import check_folder
from wirewise.runtime.recovery.resume_options import ACCEPTED, ResumeOptions


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(
    folder: Path,
    *,
    lr: float = 0.1,
    width: int = 2,
    batch: int = 4,
    momentum: float = 0.9,
    count: int = 40,
    **options: Any,
) -> tuple[int, torch.optim.Optimizer]:
    """Train to the end; position at the start, and the optimizer."""
    torch.manual_seed(1)
    model = nn.Linear(3, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    if options.pop("decay", False):
        options["state"] = State(schedulers=[StepLR(optimizer, 1, 0.5)])
    loader = DataLoader(TensorDataset(torch.randn(count, 3)), batch, shuffle=True)
    options = {"steps": 6, **options}
    saved = Checkpoints(folder, every=2, accept_changes=options.pop("accept_changes", ()))
    training = protect(model, optimizer, loader, checkpoints=saved, **options)
    start = training.position
    for (x,) in training:
        with training.step():
            training.model(x).square().mean().backward()
    return start, optimizer


def test_the_same_job_resumes_and_another_one_is_refused_by_name(alone, tmp_path: Path) -> None:
    assert train(tmp_path)[0] == 0
    states = sorted(path.name for path in tmp_path.iterdir())
    assert train(tmp_path)[0] == 6
    for changed, told in (
        ({"lr": 0.9}, r"lr is 0\.1 there and 0\.9 here"),
        ({"momentum": 0.5}, r"momentum is 0\.9 there and 0\.5 here"),
        ({"seed": 3}, "seed is 0 there and 3 here"),
        ({"steps": 9}, "steps is 6 there and 9 here"),
        ({"batch": 5}, "batch is 4 there and 5 here"),
        ({"count": 44}, "dataset is 40 there and 44 here"),
        ({"state": State(clip=1.0)}, r"clip is None there and 1\.0 here"),
        ({"sync": Fold()}, "sync is buckets there and fold here"),
        ({"width": 5}, r"model has 'weight' as float32 \[2, 3\] there and float32 \[5, 3\] here"),
        ({"decay": True}, "scheduler is"),
        ({"lr": 0.9, "seed": 3}, r"lr is .*; seed is .*--accept-changes lr,seed"),
    ):
        with pytest.raises(InputError, match=told):
            train(tmp_path, **changed)
    assert sorted(path.name for path in tmp_path.iterdir()) == states


@pytest.mark.parametrize(("replicas", "sync"), [(0, "buckets"), (2, "shards")])
def test_a_record_of_before_strategy_objects_is_read(tmp_path: Path, replicas: int, sync: str) -> None:
    old = {"world_size": 2, "through": "buckets", "replicas": replicas}
    (tmp_path / "job.json").write_text(json.dumps(old))
    job = {"world_size": 2, "sync": sync, "replicas": replicas}
    assert check_folder(tmp_path, job, 0) == {}
    with pytest.raises(InputError, match=f"sync is {sync} there and fold here"):
        check_folder(tmp_path, {**job, "sync": "fold"}, 0)


def test_changes_that_are_accepted_are_carried_out_and_noted(alone, tmp_path: Path, monkeypatch) -> None:
    train(tmp_path)
    start, optimizer = train(tmp_path, lr=0.9, steps=8, accept_changes=["lr", "steps"])
    assert start == 6 and optimizer.param_groups[0]["lr"] == 0.9
    assert train(tmp_path, lr=0.9, steps=8)[0] == 8
    monkeypatch.setenv(ACCEPTED, ResumeOptions(accept_changes="steps, lr").environment()[ACCEPTED])
    start, optimizer = train(tmp_path, lr=0.2, steps=10)
    assert start == 8 and optimizer.param_groups[0]["lr"] == 0.2
    with pytest.raises(InputError, match="a change of world_size cannot be accepted"):
        train(tmp_path, accept_changes=["world_size"])


def test_a_rate_that_schedules_have_moved_keeps_its_ratio(alone, tmp_path: Path) -> None:
    train(tmp_path, decay=True)
    start, optimizer = train(tmp_path, decay=True, lr=0.2, steps=7, accept_changes=["lr", "steps"])
    assert start == 6 and optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * 0.5**7)


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_is_refused_and_no_state_removed(tmp_path: Path, world: int) -> None:
    check_folder(tmp_path, {"world_size": 2}, 0)
    with pytest.raises(
        InputError, match=f"world_size is 2 there and {world} here. Expected the same; start this job in"
    ):
        check_folder(tmp_path, {"world_size": world}, 0)
    assert json.loads((tmp_path / "job.json").read_text()) == {"world_size": 2}


def test_a_folder_without_a_record_is_taken_with_a_warning_where_its_ranks_fit(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"step-5.rank-{rank}.state").touch()
    with pytest.raises(InputError, match="world_size is 2 there and 3 here"):
        check_folder(tmp_path, {"world_size": 3}, 0)
    with pytest.warns(RuntimeWarning, match="has checkpoints and no record of their job"):
        assert check_folder(tmp_path, {"world_size": 2, "seed": 1}, 0) == {}
    assert json.loads((tmp_path / "job.json").read_text())["seed"] == 1


def test_ranks_besides_the_first_write_nothing(tmp_path: Path) -> None:
    check_folder(tmp_path, {"world_size": 2}, 1)
    assert list(tmp_path.iterdir()) == []
