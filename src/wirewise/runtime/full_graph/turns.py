"""Interleaved trainers in one process group, for comparable times.

Noise of a machine comes in stretches of seconds. When modes alternate every few epochs, each stretch affects all
modes, and medians and ratios are meaningful.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from wirewise.results import EpochRecord
from wirewise.runtime.full_graph.trainer import Trainer

__all__ = ["ModeRun", "train_interleaved"]


@dataclass
class ModeRun:
    """Measurements of one mode's training."""

    records: list[EpochRecord] = field(default_factory=list)
    kernel_bytes: int | None = None
    """Bytes that the hosts' interfaces sent during the mode's turns, over all hosts."""

    @property
    def best(self) -> tuple[float, float]:
        """Best validation score and the test score at it; the last test score if there are no validation nodes."""
        best = (-1.0, 0.0)
        for scores in (record.accuracy for record in self.records if record.accuracy):
            validation = scores.get("validation")
            if validation is None or validation > best[0]:
                best = (validation or 0.0, scores.get("test", 0.0))
        return best


def train_interleaved(
    trainers: Mapping[str, Trainer],
    epochs: int,
    *,
    turn: int,
    on_epoch: Callable[[str, EpochRecord], None],
    interface_bytes: Callable[[], int | None],
    after_turn: Callable[[str, Trainer, ModeRun], None] | None = None,
    trained: Mapping[str, ModeRun] | None = None,
) -> dict[str, ModeRun]:
    """Train every mode, `turn` epochs at a time; the order of the modes flips every round.

    Trainers loaded from checkpoints may be at different epochs: those behind train first.

    Args:
        trainers: One trainer per mode, created in the same order on every rank.
        epochs: Epochs of every mode.
        turn: Number of consecutive epochs of a mode.
        on_epoch: Called on every rank with each finished epoch, after its turn.
        interface_bytes: Bytes sent by this host so far. None if they are not counted.
        after_turn: Called after each turn, for example to save a checkpoint.
        trained: Measurements by mode from before the trainers were saved. Defaults to none.

    Raises:
        PeerError: A rank is dead or hung.
    """
    measured = {name: (trained or {}).get(name) or ModeRun() for name in trainers}
    names = list(trainers)
    while (behind := min(t.epoch for t in trainers.values())) < epochs:
        for name in names:
            trainer = trainers[name]
            count = min(turn, epochs - trainer.epoch)
            if count > 0 and trainer.epoch < behind + turn:
                _take_turn(name, trainer, measured[name], count, epochs, on_epoch, interface_bytes)
                if after_turn is not None:
                    after_turn(name, trainer, measured[name])
        names.reverse()
    return measured


def _take_turn(
    name: str,
    trainer: Trainer,
    trained: ModeRun,
    count: int,
    epochs: int,
    on_epoch: Callable[[str, EpochRecord], None],
    interface_bytes: Callable[[], int | None],
) -> None:
    transport = trainer.transport
    transport.all_reduce(torch.zeros(1, device=trainer.tensors.device), "start of a turn")
    before = interface_bytes()
    sent = 0 if before is None else -before
    for _ in range(count):
        trainer.train_epoch()
        last = trainer.epoch == epochs
        if trainer.due() or last:
            pause = interface_bytes() or 0
            trainer.evaluate(bits=32 if last else None)
            sent -= (interface_bytes() or 0) - pause
    trainer.drain()
    after = interface_bytes()
    if before is not None and after is not None:
        total = int(transport.total(sent + after, "bytes of a turn"))
        trained.kernel_bytes = (trained.kernel_bytes or 0) + total
    for record in trainer.records():
        trained.records.append(record)
        on_epoch(name, record)
