"""Several trainers in one process group that take turns, so that their times can be compared.

Noise of a machine comes in stretches of seconds. When every mode trains a few epochs and hands over, each
stretch hits all modes, and medians and ratios mean something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from wirewise.results import EpochRecord
from wirewise.runtime.full_graph.trainer import Trainer

__all__ = ["Trained", "train_in_turns"]


@dataclass
class Trained:
    """What one mode's training measured."""

    records: list[EpochRecord] = field(default_factory=list)
    kernel_bytes: int | None = None
    """Bytes that the hosts' interfaces sent during the mode's turns, over all hosts."""

    @property
    def best(self) -> tuple[float, float]:
        """Best validation score and the test score at it; the last test score where no node is for validation."""
        best = (-1.0, 0.0)
        for scores in (record.accuracy for record in self.records if record.accuracy):
            validation = scores.get("validation")
            if validation is None or validation > best[0]:
                best = (validation or 0.0, scores.get("test", 0.0))
        return best


def train_in_turns(
    trainers: Mapping[str, Trainer],
    epochs: int,
    *,
    turn: int,
    heard: Callable[[str, EpochRecord], None],
    interface_bytes: Callable[[], int | None],
    after_turn: Callable[[str, Trainer, Trained], None] | None = None,
    trained: Mapping[str, Trained] | None = None,
) -> dict[str, Trained]:
    """Train every mode, `turn` epochs at a time; the order of the modes flips every round.

    Trainers that were loaded from checkpoints may stand at different epochs: those behind train first.

    Args:
        trainers: One trainer a mode, built in the same order on every rank.
        epochs: Epochs of every mode.
        turn: Epochs of one turn.
        heard: Called on every rank with each finished epoch, after the turn that it belongs to.
        interface_bytes: Bytes that this host has sent so far, None where nothing counts them.
        after_turn: Called after each turn, to save a checkpoint for example.
        trained: What was measured before the trainers were saved; by default nothing.

    Raises:
        PeerError: A rank died or fell silent.
    """
    measured = {name: (trained or {}).get(name) or Trained() for name in trainers}
    names = list(trainers)
    while (behind := min(t.epoch for t in trainers.values())) < epochs:
        for name in names:
            trainer = trainers[name]
            count = min(turn, epochs - trainer.epoch)
            if count > 0 and trainer.epoch < behind + turn:
                _take_turn(name, trainer, measured[name], count, epochs, heard, interface_bytes)
                if after_turn is not None:
                    after_turn(name, trainer, measured[name])
        names.reverse()
    return measured


def _take_turn(
    name: str,
    trainer: Trainer,
    trained: Trained,
    count: int,
    epochs: int,
    heard: Callable[[str, EpochRecord], None],
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
        heard(name, record)
