"""Devices and backends: what fits, and a training over a backend that aborts instead of raising."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.recovery import aborting
from tests.runtime.recovery.trained import alone, outcomes, run
from wirewise.errors import InputError
from wirewise.runtime.recovery.placement import Placement


def placed(
    model: nn.Module, device: str | None = None, backend: str | None = None, **more: bool
) -> Placement:
    options: dict[str, Any] = {"remembers": False, "sharded": False, **more}
    return Placement.of(model, device, backend, SimpleNamespace(), **options)  # type: ignore[arg-type]


def test_the_backend_is_that_of_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = nn.Linear(2, 2)
    assert placed(model)[1:] == ("cpu", "gloo")
    assert placed(model, "cuda")[1:] == ("cuda", "nccl")
    assert placed(model, "cuda", "gloo").backend == "gloo"
    assert placed(nn.Identity())[1:] == ("cpu", "gloo")


def test_devices_that_do_not_fit_are_refused(monkeypatch):
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match='got device="cuda", and torch sees no GPU'):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        placed(model, "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(
        InputError, match=re.escape("got parameters on cpu and device='cuda:1'; expected one type")
    ):
        placed(model, "cuda:1")
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(InputError, match="got parameters on cpu, meta"):
        placed(mixed)
    for more, told in (({"remembers": True}, "a plan with codecs"), ({"sharded": True}, "shard")):
        with pytest.raises(InputError, match=f'got {told} on "cuda"'):
            placed(model, "cuda", **more)


def test_a_rank_without_a_device_of_its_own_is_refused(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    model = SimpleNamespace(parameters=list, to=chosen.append)
    placement = placed(model, "cuda")  # type: ignore[arg-type]
    placement.occupy(1)
    assert chosen == [1, torch.device("cuda", 1)]
    with pytest.raises(InputError, match=r"rank 2 of this host has no GPU of its own, torch sees 2"):
        placement.occupy(2)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("sync", ["buckets", "backward", "ddp"])
def test_a_backend_that_aborts_with_garbage_gives_the_same_bits(tmp_path, sync):
    settings = {"steps": 20, "sync": sync, "backend": aborting.NAME}
    faults = [
        {"act": "kill", "rank": 1, "point": "bucket" if sync != "ddp" else "forward", "step": 6},
        {"act": "kill", "rank": 0, "point": "update", "step": 12},
    ]
    recoveries, digests = run(tmp_path, settings, faults, spares=2)
    assert digests == [alone({"steps": 20}, 2)] * 2
    assert [one.ranks for one in recoveries.recoveries] == [(1,), (0,)]
    found = outcomes(tmp_path, 2)
    # Gradients went over it, and each rank has a device of its own, whoever took its place.
    assert all(one["calls"] > 8 for one in found) and {one["local_rank"] for one in found} == {"0", "1"}
