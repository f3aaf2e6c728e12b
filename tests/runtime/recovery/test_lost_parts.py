"""A kill amid compressed training and amid a full-graph epoch: what only the dead rank had is there, bit by bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.runtime.data_parallel.examples import batch, made, plan_of
from tests.runtime.full_graph.training import build_trainer, on_slow_links, small_graph, split
from tests.runtime.recovery.killed import Place, run_with_kill
from wirewise.errors import PeerError
from wirewise.runtime.data_parallel import Compression, DataParallel, parallel
from wirewise.runtime.full_graph import checkpoint
from wirewise.runtime.recovery import Snapshots, TrainingState, Updates, copy_state
from wirewise.runtime.recovery.snapshots import keep
from wirewise.runtime.transport import Transport
from wirewise.runtime.trees import copied, digest_of

STEPS, WORLD = 6, 3
WAYS = {
    "topk": ("topk", "all_gather"),
    "owners": ("topk", "divisible"),
    "dgc": ("dgc", "all_gather"),
    "powersgd": ("powersgd", "all_gather"),
}


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Dropout(0.3), nn.Linear(20, 12), nn.Linear(12, 4)
    )


class Compressed:
    """Compressed training on a rank, in one generation."""

    def __init__(self, way: str, place: Place, group: Any) -> None:
        self.place = place
        self.transport = Transport(group, timeout_s=15)
        torch.manual_seed(place.rank)
        model = made(network)
        names = [name for name, _ in model.named_parameters()][::-1]
        codec, scheme = WAYS[way]
        plan = plan_of(model, [names[:2], names[2:4], names[4:]], place.world)
        buckets = tuple(msgspec.structs.replace(b, codec=codec, scheme=scheme) for b in plan.buckets)
        plan = msgspec.structs.replace(plan, buckets=buckets)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.model: DataParallel = parallel(
            model, plan, optimizer, self.transport, compression=Compression(seed=3), broadcast_buffers=False
        )
        self.state = TrainingState(model, optimizer, own={"pools": self.model.pools})
        self.snapshots = Snapshots(place.folder / "own", place.rank)
        self.updates = Updates(self.state, prepare=self._prepare)
        model[4].weight.register_hook(lambda _: place.reach("backward", self.updates.committed_step))

    def _prepare(self, step: int) -> None:
        self.snapshots.write(step, self.state.own())
        self.place.reach("written", step - 1)
        self.transport.barrier("snapshots")
        self.place.reach("prepared", step - 1)

    @property
    def committed_step(self) -> int:
        return self.updates.committed_step

    def begin(self) -> None:
        keep(self.snapshots, 0, self.state.own(), self.transport)

    def step(self) -> None:
        step = self.updates.committed_step
        x, y = batch(self.place.rank, step)
        self.model.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.updates.step()
        self.place.reach("committed", step)

    def come_to(self, old: Compressed | None) -> None:
        """Go on where the generation before was, with its state or as a replacement."""
        there = -1 if old is None else old.updates.committed_step
        known = [int(t) for t in self.transport.all_gather(torch.tensor([there]), "steps")]
        step = max(known)
        sources = [rank for rank, one in enumerate(known) if one == step]
        targets = [rank for rank, one in enumerate(known) if one < step]
        if old is not None and there == step:
            old.updates.bring_to(step)
            self.state.load_state_dict(copied(old.state.state_dict()))
        copy_state(self.state, self.transport, sources, targets, 15)
        # All ranks have written this step, or none has committed it.
        self.state.load_own(self.snapshots.read(step))
        self.updates.adopt(step)

    def digest(self) -> str:
        return digest_of({"shared": self.state.shared(), "own": self.state.own()})


def through_a_kill(make: Any, place: Place) -> tuple[str, str]:
    """Digests of everything at the end of an undisturbed training and of one with a kill."""
    whole = place.folder / f"whole-{place.rank}"
    if not place.generation:
        calm = Place(place.rank, place.world, place.folder / "calm", 0, None)
        calm.folder.mkdir(exist_ok=True)
        whole.write_text(trained(make, calm))
    return whole.read_text(), trained(make, place)


def trained(make: Any, place: Place) -> str:
    training = make(place, place.group())
    if place.generation:
        training.come_to(None)
    else:
        training.begin()
    while training.committed_step < STEPS:
        try:
            training.step()
        except PeerError:
            place.leave()
            old, training = training, make(place, place.group())
            training.come_to(old)
    return training.digest()


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "point"),
    [("topk", "backward"), ("owners", "written"), ("dgc", "prepared"), ("powersgd", "committed")],
)
def test_compressed_training_outlives_a_kill(way: str, point: str, tmp_path: Path) -> None:
    make = partial(Compressed, way)
    found = run_with_kill(partial(through_a_kill, make), WORLD, 1, (point, 3), tmp_path)
    assert all(whole == hit for whole, hit in found)
    # Residuals differ from rank to rank.
    assert len({hit for _, hit in found}) == WORLD


class FullGraph:
    """Full-graph training on a rank, in one generation; an epoch counts when all ranks have written what they have."""

    def __init__(self, mode: str, place: Place, group: Any) -> None:
        self.place, self.committed_step = place, 0
        transport = Transport(group, timeout_s=15)
        part = split(small_graph(), place.world)[place.rank]
        self.trainer = build_trainer(part, transport, mode, replan_every=2)
        # Measured times would give each run a plan of its own.
        on_slow_links(self.trainer)
        self.snapshots = Snapshots(place.folder / "own", place.rank)
        weight = next(iter(self.trainer.model.parameters()))
        weight.register_hook(lambda _: place.reach("backward", self.committed_step))

    def begin(self) -> None:
        self._commit(0)

    def step(self) -> None:
        epoch = self.committed_step
        self.trainer.train_epoch()
        self._commit(epoch + 1)

    def _commit(self, epoch: int) -> None:
        self.snapshots.write(epoch, checkpoint.state_of(self.trainer))
        self.place.reach("written", epoch - 1)
        self.trainer.transport.barrier("snapshots")
        self.committed_step = epoch

    def come_to(self, old: FullGraph | None) -> None:
        there = -1 if old is None else old.committed_step
        known = self.trainer.transport.all_gather(torch.tensor([there]), "epochs")
        self.committed_step = max(int(one) for one in known)
        checkpoint.restore(self.trainer, self.snapshots.read(self.committed_step))

    def digest(self) -> str:
        state = checkpoint.state_of(self.trainer)
        for lane in state["lanes"].values():
            del lane["state"]["arrivals"]  # seconds
        return digest_of(state)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "point"),
    [("adaqp", "backward"), ("adaqp-paper", "written"), ("pipegcn", "backward"), ("sancus", "backward")],
)
def test_an_epoch_of_a_full_graph_outlives_a_kill(mode: str, point: str, tmp_path: Path) -> None:
    make = partial(FullGraph, mode)
    found = run_with_kill(partial(through_a_kill, make), WORLD, 1, (point, 3), tmp_path)
    assert all(whole == hit for whole, hit in found)
