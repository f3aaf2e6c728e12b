"""Shards of FSDP2 that are lost and come back from their replicas, bit for bit."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup, ShardedState
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from wirewise.errors import InputError
from wirewise.runtime import recovery
from wirewise.runtime.data_parallel.fsdp import compress_fsdp
from wirewise.runtime.points import FAULTS, notify_point
from wirewise.runtime.recovery.agent import Agent, Recoveries
from wirewise.runtime.recovery.batches import seed_all
from wirewise.runtime.recovery.sharding import ShardGroups
from wirewise.runtime.recovery.state import TrainingState
from wirewise.runtime.trees import digest_of

STEPS = 11
needs_reset = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="torch before 2.13 is refused"
)


class Block(nn.Module):
    """A layer that tells where its passes are; its width is no multiple of the number of shards."""

    def __init__(self, number: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.number = number
        self.layer, self.norm = nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        notify_point("forward", self.number + 1)
        y: Tensor = self.dropout(self.norm(self.layer(x))).relu()
        if y.requires_grad:
            y.register_hook(lambda gradient: notify_point("backward", self.number))
        return y


def shard(model: nn.Module, mesh: Any) -> None:
    for block in model.children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def drawn(step: int, share: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + share)
    return torch.randn(6, 9, generator=generator), torch.randint(4, (6,), generator=generator)


def telling(call: Callable[..., Any], point: str) -> Callable[..., Any]:
    """A collective that tells of its calls."""

    def told(*arguments: Any, **more: Any) -> Any:
        notify_point(point)
        return call(*arguments, **more)

    return told


def made() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(Block(0, 9, 15), Block(1, 15, 7), nn.Linear(7, 4))
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def train(folder: str, checkpoints: bool) -> None:
    """Train as a rank of two replicas, and write down what it came to."""
    torch.set_num_threads(1)
    model, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    dist.reduce_scatter_single = telling(dist.reduce_scatter_single, "scatter")
    dist.all_reduce = telling(dist.all_reduce, "replicas")
    training = recovery.protect(
        model, optimizer, drawn, steps=STEPS, sync=recovery.Shards(shard, replicas=2),
        state=recovery.State(schedulers=[schedule], clip=0.5),
        checkpoints=recovery.Checkpoints(Path(folder) / "saved", every=4) if checkpoints else None,
    )  # fmt: skip
    losses = []
    for x, y in training:
        with training.step():
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            losses.append(float(loss.detach()))
    outcome = {"digest": digest_of(training._state.shared()), "loss": losses[-1]}
    (Path(folder) / f"rank-{training.rank}.json").write_text(json.dumps(outcome))


def run(folder: Path, faults: list[dict[str, Any]], **more: Any) -> tuple[Recoveries, list[dict[str, Any]]]:
    folder.mkdir()
    told = [
        {"act": "kill", "index": None, **fault, "claim": str(folder / f"claim-{number}")}
        for number, fault in enumerate(faults)
    ]
    agent = Agent(
        train, (str(folder), bool(faults)), ranks=4, folder=folder,
        environment={FAULTS: json.dumps(told)} if told else {}, **more,
    )  # fmt: skip
    recoveries = agent.run()
    assert len(list(folder.glob("claim-*"))) == len(faults), "a fault was not carried out"
    return recoveries, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(4)]


KILLS = [
    {"rank": 0, "point": "decide", "step": 0},
    {"rank": 1, "point": "forward", "step": 1, "index": 2},
    {"rank": 2, "point": "backward", "step": 2, "index": 0},
    {"rank": 3, "point": "scatter", "step": 3},
    {"rank": 0, "point": "replicas", "step": 5},
    {"rank": 1, "point": "reduced", "step": 6},
    {"rank": 2, "point": "update", "step": 7},
]
BOTH = [{"rank": 3, "point": "forward", "step": 9, "index": 1}, {"rank": 1, "point": "fault", "step": 9}]
"""Both replicas of the second shard."""


def alone() -> float:
    """Last loss of the first share, computed in one process by hand."""
    model, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    for step in range(STEPS):
        losses, start = [], [buffer.clone() for buffer in model.buffers()]
        for share in reversed(range(4)):
            for buffer, value in zip(model.buffers(), start, strict=True):
                buffer.copy_(value)
            x, y = drawn(step, share)
            seed_all(0, step, share)
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / 4).backward()
            losses.append(float(loss.detach()))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return losses[-1]


@needs_reset
@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
def test_lost_shards_come_back_from_replicas_bit_by_bit(tmp_path: Path) -> None:
    _, expected = run(tmp_path / "calm", [], spares=0)
    assert expected[0]["loss"] == pytest.approx(alone(), rel=1e-4)
    recoveries, found = run(tmp_path / "killed", KILLS + BOTH, spares=2)
    assert found == expected
    assert expected[0]["digest"] == expected[2]["digest"] != expected[1]["digest"]
    told = [(one.strategy, one.lost_iterations) for one in recoveries.recoveries]
    # Both at once, or the second while the first recovers.
    assert told[: len(KILLS)] == [("replica", 0)] * len(KILLS)
    assert told[-1][0] == "checkpoint"


@needs_reset
def test_torch_keeps_groups_and_gradients_where_a_recovery_sets_them() -> None:
    info = object.__new__(HSDPMeshInfo)
    info.shard_process_group, info.replicate_process_group, info.reduce_scatter_process_group = (
        "row",
        "column",
        None,
    )
    group = object.__new__(FSDPParamGroup)
    group.mesh_info, group._sharded_state = info, ShardedState.SHARDED
    assert group._all_gather_process_group == group._reduce_scatter_process_group == "row"
    assert group._all_reduce_process_group == "column"
    for owner, names in (
        (FSDPState, ("_fsdp_param_groups", "_is_root")),
        (
            FSDPParamGroup,
            ("fsdp_params", "_all_gather_result", "_reduce_scatter_comm", "post_forward_mesh_info"),
        ),
        (FSDPParam, ("_unsharded_param", "unsharded_accumulated_grad")),
        (DeviceMesh.from_group, ("_dim_group_names", "_pg_registry")),
    ):
        missing = [name for name in names if name not in inspect.getsource(owner)]
        assert not missing, (
            f"torch has changed {owner.__name__}: see how runtime/recovery/sharding.py uses {missing}"
        )


@needs_reset
def test_what_cannot_be_sharded_is_refused_by_name() -> None:
    model, optimizer = made()
    begun = torch.optim.Adam(model.parameters())
    begun.state[next(model.parameters())] = {"step": 1}
    for given, told in (
        ({"state": recovery.State(scaler=torch.amp.GradScaler("cpu"))}, "got shard and a scaler"),
        ({"optimizer": recovery.Lamb(model.parameters())}, "got shard and Lamb"),
        ({"optimizer": begun}, "Adam after an update"),
        ({}, "no agent has started this process"),
    ):
        arguments = {"optimizer": optimizer, "sync": recovery.Shards(shard, 2), **given}
        with pytest.raises(InputError, match=told):
            recovery.protect(model, arguments.pop("optimizer"), drawn, steps=2, **arguments)
    meta = TrainingState(nn.Linear(2, 2, device="meta"), [])
    with pytest.raises(InputError, match=r"parameters on \['meta'\]"):
        ShardGroups(recovery.Shards(shard, 2)).check(meta)
    for ranks in (2, 3):
        with pytest.raises(InputError, match=f"replicas=2 and {ranks} ranks"):
            ShardGroups(recovery.Shards(shard, 2)).connect(meta, SimpleNamespace(world_size=ranks), list)


@needs_reset
@pytest.mark.parametrize(
    ("sharding", "told"),
    [
        (lambda model, mesh: fully_shard(model[0], mesh=mesh), "on the model itself"),
        (
            lambda model, mesh: fully_shard(model, mesh=mesh, ignored_params={model[2].bias}),
            "'2.bias' without",
        ),
        (lambda model, mesh: compress_fsdp(fully_shard(model, mesh=mesh), "int8"), "another reduce-scatter"),
    ],
)
def test_what_would_not_come_back_after_sharding_is_refused(sharding: Any, told: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        groups = [dist.new_group([0]), dist.new_group([0])]
        shards, (model, _) = ShardGroups(recovery.Shards(sharding, 2)), made()
        mesh = DeviceMesh.from_group(groups, "cpu", mesh=[[0]], mesh_dim_names=("replicate", "shard"))
        sharding(model, mesh)
        shards._model, shards._mesh = model, mesh
        with pytest.raises(InputError, match=told):
            shards._check_sharded()
    finally:
        dist.destroy_process_group()
