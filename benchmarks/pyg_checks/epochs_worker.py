"""One rank that trains a PyG model in alternating epochs, with checks and without: `epochs_worker.py JOB.json`.

Rank 0 writes `epochs.json` beside the job: seconds, and processor seconds of rank 0, of each epoch.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
from torch.nn import functional as F

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.nn import GraphSAGE

    from wirewise.integrations import pyg
from wirewise import graph
from wirewise.integrations.pyg import (
    budget,
    examination,
    gradients,
    losses,
    model,
    outputs,
    parameters,
    replicas,
)


class Setting(msgspec.Struct):
    """A graph, a model and a number of epochs."""

    nodes: int
    features: int
    width: int
    layers: int
    pairs: int


class Figures(msgspec.Struct):
    """Seconds of each epoch with checks and without, in pairs."""

    wall_s: list[tuple[float, float]] = []
    processor_s: list[tuple[float, float]] = []
    full_s: list[float] = []
    """Processor seconds inside the checks of an epoch in which everything is checked, without a proof."""
    brief_s: list[float] = []
    """Processor seconds inside the checks of an epoch with a brief look."""
    rest_s: list[float] = []
    """Processor seconds inside the checks of an epoch without a look."""
    proof_s: list[float] = []
    """Processor seconds of an epoch's proofs that rows do not mix, in the model and in the loss."""
    parameters: int = 0


def _plain_agreement(self: Any, output: Any, fault: int) -> None:
    """Exchange of one fault a rank, as it was before."""
    found = torch.zeros(self.transport.world_size, dtype=torch.int64)
    found[self.transport.rank] = fault
    self.transport.all_reduce(found, "whether the losses fit")


def _skipped(self: Any, spacing: int) -> None:
    """Leave an epoch without checks out of the seconds between checks."""
    self._last_s = time.process_time()


@contextmanager
def without_checks() -> Iterator[None]:
    """Training as it is without any look at losses, replicas and attributes after the first proof."""
    with ExitStack() as stack:
        for owner, name, new in (
            (gradients.GradientSum, "_agree", _plain_agreement),
            (outputs, "examine", lambda loss, **kwargs: examination.Examination()),
            (model, "track_outputs", lambda out: out),
            (model._Member, "_is_proof_due", lambda self, args, kwargs, training: False),
            (model._Member, "_settle", lambda self, training: None),
            (parameters.ParameterGuard, "check", lambda self: None),
            (losses.Output, "fault", lambda self, grad: (0, False)),
            (budget.CheckBudget, "advance", _skipped),
        ):
            stack.enter_context(mock.patch.object(owner, name, new))
        yield


@contextmanager
def timed(places: Sequence[tuple[Any, str]], taken: list[float]) -> Iterator[None]:
    """Add up the processor seconds that this thread spends inside some functions."""
    total = [0.0]

    def wrapped(call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                total[0] += time.thread_time() - start

        return run

    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(mock.patch.object(owner, name, wrapped(getattr(owner, name))))
        yield
    taken.append(total[0])


EACH = (
    (parameters.ParameterGuard, "check"),
    (model._Member, "_is_proof_due"),
    (model._Member, "_settle"),
    (losses.Output, "fault"),
    (outputs, "examine"),
    (replicas.Replicas, "checksum"),
    (gradients.GradientSum, "_refuse_faults"),
    (gradients.GradientSum, "_refuse_differences"),
)
"""Checks of every epoch; none runs inside another."""
PROOFS = ((model._Member, "_prove"), (examination, "_mixing"))


def settings_data(setting: Setting) -> Data:
    made = graph.block_model(
        graph.BlockModel(nodes=setting.nodes, features=setting.features, classes=16, mean_degree=12.0)
    )
    split = torch.from_numpy(made.split)
    return Data(
        x=torch.from_numpy(made.dense_x()),
        edge_index=torch.from_numpy(made.edge_index).long(),
        y=torch.from_numpy(made.y).long(),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
    )


def epoch(net: Any, data: Data, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    out = net(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
    return time.perf_counter() - wall, time.process_time() - processor


def train(setting: Setting) -> Figures:
    rank = dist.get_rank()
    job = pyg.Job(settings_data(setting) if rank == 0 else None, mode="fp32")
    torch.manual_seed(1)
    net = GraphSAGE(setting.features, setting.width, setting.layers, 16)
    figures = Figures(parameters=sum(p.numel() for p in net.parameters()))
    net = job.distribute(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(budget.FIRST + 8):
        epoch(net, job.data, optimizer)
    for number in range(setting.pairs):
        taken = {}
        # The order alternates, so that neither is always after the other.
        for checked in (True, False) if number % 2 else (False, True):
            with ExitStack() as stack:
                if not checked:
                    stack.enter_context(without_checks())
                taken[checked] = epoch(net, job.data, optimizer)
        figures.wall_s.append((taken[True][0], taken[False][0]))
        figures.processor_s.append((taken[True][1], taken[False][1]))
    step = net._wirewise_step
    sums = step.bundle.gradients
    for number in range(2 * setting.pairs):
        proves = number % 10 == 0
        if proves:
            step.intervals[True] = budget.Interval(0)
            sums.loss_recheck.suspicious = True
        if proves:
            seconds = figures.proof_s
        elif sums.budget.due:
            seconds = figures.full_s
        else:
            seconds = figures.brief_s if sums.budget.looks else figures.rest_s
        with timed(PROOFS if proves else EACH, seconds):
            epoch(net, job.data, optimizer)
    return figures


def main() -> None:
    torch.set_num_threads(1)
    path = Path(sys.argv[1])
    setting = msgspec.json.decode(path.read_bytes(), type=Setting)
    dist.init_process_group("gloo")
    figures = train(setting)
    if dist.get_rank() == 0:
        path.with_name("epochs.json").write_bytes(msgspec.json.encode(figures))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
