"""R8, the part of updates: what ways back from an update cost steps that nothing disturbs."""

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from wirewise.errors import InputError
from wirewise.runtime.recovery import CheckpointFolder, TrainingState, Updates
from wirewise.runtime.trees import copy_into

WAYS = ("roll-forward", "undo", "ping-pong", "checkpoint", "journal", "snapshot")
_WIDTH, _LENGTH, _BATCH, _LAYERS = 96, 64, 16, 4
"""A transformer of half a million parameters and 1,024 tokens a step: a small share of what users give a rank."""
_TURN = 5
"""Steps of one way in a row."""


class _Training:
    """One model under one way.

    "plain" is the optimizer alone. "checkpoint" loses as little as ways back do: after each step all state is copied,
    and written to disk beside the next one, as CheckFreq does every so many. "snapshot" is that copy alone, which a
    process that is killed loses.
    """

    def __init__(self, way: str, folder: Path) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, 0.1, batch_first=True)
        self.model = nn.TransformerEncoder(layer, _LAYERS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        state = TrainingState(self.model, self.optimizer)
        self.state, self.number = state, 0
        self.kept = state.state_dict() if way == "snapshot" else None
        self.checkpoints = CheckpointFolder(folder, rank=0) if way == "checkpoint" else None
        self.updates = None if way in ("plain", "snapshot", "checkpoint") else Updates(state, consistency=way)
        self.x = torch.randn(_BATCH, _LENGTH, _WIDTH)

    @property
    def kept_bytes(self) -> int:
        """Memory of what is kept for a way back."""
        if self.updates is not None:
            return self.updates.journal_bytes
        kept = self.state.state_dict() if self.checkpoints is not None else self.kept
        return sum(leaf.nbytes for leaf in tree_leaves(kept) if isinstance(leaf, torch.Tensor))

    def step(self) -> tuple[float, float]:
        """Seconds of a step, and of its update within it."""
        start_s = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        update_s = time.perf_counter()
        if self.updates is None:
            self.optimizer.step()
            if self.kept is not None:
                self.kept = copy_into(self.state.state_dict(), self.kept)
            if self.checkpoints is not None:
                self.checkpoints.save(self.number, self.state.state_dict())
                self.checkpoints.discard(self.number - 1)
                self.number += 1
        else:
            self.updates.step()
        end_s = time.perf_counter()
        return end_s - start_s, end_s - update_s


def overheads(
    steps: int = 200, repeats: int = 5, ways: tuple[str, ...] = WAYS
) -> dict[str, dict[str, float]]:
    """Figures of each way: `overhead`, its median step over that of the plain optimizer less 1, median over repeats.

    Ways take turns of a few steps; the first 20 steps of each are dropped. `lowest` and `highest` are those of the
    repeats, `update_overhead_s` is what its updates take more, `journal_bytes` what it keeps, `step_s` its step.

    Args:
        steps: Steps of each way in a repeat.
        repeats: Number of repeats.
        ways: Ways of `Updates` to measure.
    """
    if steps < _TURN or repeats < 1:
        raise InputError(f"got {steps} steps and {repeats} repeats; expected at least {_TURN} and 1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ExitStack() as ending:
        ending.callback(torch.set_num_threads, threads)
        folder = Path(ending.enter_context(TemporaryDirectory(prefix="wirewise-bench-")))
        trainings = {way: _Training(way, folder) for way in ("plain", *ways)}
        for training in trainings.values():
            if training.checkpoints is not None:
                ending.callback(training.checkpoints.close)
            for _ in range(20):
                training.step()
        seen = [_repeat(trainings, steps) for _ in range(repeats)]
    found = {}
    for way in ways:
        shares = [one[way][0] / one["plain"][0] - 1 for one in seen]
        found[way] = {
            "overhead": statistics.median(shares),
            "lowest": min(shares),
            "highest": max(shares),
            "update_overhead_s": statistics.median(one[way][1] - one["plain"][1] for one in seen),
            "journal_bytes": trainings[way].kept_bytes,
            "step_s": statistics.median(one[way][0] for one in seen),
        }
    return found


def _repeat(trainings: dict[str, _Training], steps: int) -> dict[str, tuple[float, float]]:
    """Median seconds of a step and of an update of each way."""
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in trainings}
    for turn in range(steps // _TURN):
        order = list(trainings)
        for way in order[turn % len(order) :] + order[: turn % len(order)]:
            times[way] += [trainings[way].step() for _ in range(_TURN)]
    return {way: tuple(map(statistics.median, zip(*of, strict=True))) for way, of in times.items()}
