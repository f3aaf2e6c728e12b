"""One machine of mini-batch training: `-m wirewise_papers.salientpp.worker FOLDER`.

It reads the files prepared by `experiment` and trains every mode from the same weights; rank 0 writes
FOLDER/outcome.json.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from wirewise import units
from wirewise.cost.batches import epoch_bytes, shared_link_s
from wirewise.lab import VirtualAccelerator
from wirewise.rng import stream_key
from wirewise.runtime import full_graph
from wirewise.runtime.data_parallel import HookState, hook
from wirewise.runtime.mini_batch import STAGES, BatchLoader, MiniBatch, PartitionedSampler
from wirewise.runtime.mini_batch.sage import Sage
from wirewise.trials.rank import Rank, main
from wirewise_papers.salientpp.experiment import MODES, PLANNED, MiniBatchJob, Mode
from wirewise_papers.salientpp.part import MachinePart
from wirewise_papers.salientpp.records import MiniBatchRecord, MiniBatchRun

__all__ = ["work"]

_TIMED = 5
"""Batches that are timed where computing is emulated."""
_EVALUATED = 20
"""Neighbours in each hop of evaluation."""


class _Net(NamedTuple):
    """A model with what trains it."""

    bare: nn.Module
    wrapped: DistributedDataParallel
    compressed: HookState | None
    optimizer: torch.optim.Optimizer

    def close(self) -> None:
        """End what compresses gradients."""
        if self.compressed is not None:
            self.compressed.close()

    @property
    def ring_bytes(self) -> float:
        """Gradients that a machine sends in a step without a codec."""
        machines = dist.get_world_size()
        return 8 * sum(p.numel() for p in self.bare.parameters()) * (machines - 1) / machines


class _Seen:
    """Measurements of the epochs of a mode on this machine."""

    def __init__(self) -> None:
        self.epochs_s: list[float] = []
        self.cpu_s: list[float] = []
        self.losses: list[float] = []
        self.stages: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "train")}
        self.fetched = self.foreign = 0

    def note(self, batch: MiniBatch) -> None:
        self.fetched += batch.remote_rows
        self.foreign += batch.foreign_rows
        for stage, spent in batch.stage_s.items():
            self.stages[stage].append(spent)


def work(rank: Rank[MiniBatchJob]) -> None:
    """Train every mode and write its measurements."""
    _Machine(rank).work()


class _Machine:
    """One rank of the default process group."""

    def __init__(self, rank: Rank[MiniBatchJob]) -> None:
        self.rank, self.job, self.folder = rank, rank.job, rank.folder
        self.gradients = rank.transport
        # Rows and ids travel in groups of their own, so that they never wait for gradients or each other.
        self.rows, self.evaluation, ids, sampling = (rank.group() for _ in range(4))
        self.part = MachinePart(self.job, self.folder, self.gradients.rank, ids, sampling)
        self.batches = 0
        """Batches of an epoch."""
        self.slept = self._alone_s() if self.job.processors == "own" else None
        """Forward and backward seconds of a step, where computing is emulated."""

    def work(self) -> None:
        """Train every mode, write."""
        self._warm_up()
        records = {name: self._train(name) for name in self.job.modes}
        rate = self._sampling_rate()
        if not self.rank.first:
            return
        base = next(iter(records.values()))
        records = {
            name: msgspec.structs.replace(
                record, speedup=base.epoch_s / record.epoch_s, speedup_run=base.run_s / record.run_s
            )
            for name, record in records.items()
        }
        own = ("dataset", "workers", "alpha", "codec", "topology", "device", "share", "processors")
        run = MiniBatchRun(
            **{name: getattr(self.job, name) for name in own},
            policy=self.job.policies[0],
            link=self.job.link if self.job.network == "lab" else self.job.network,
            batches=self.batches,
            predicted_remaining=self.part.plan.remote_fraction,
            sampler_edges_per_s=rate,
            modes=records,
            hosts=self.job.hosts or self.job.workers,
            policies=msgspec.json.decode((self.folder / "policies.json").read_bytes()),
        )
        self.rank.outcome(run)

    def _train(self, name: str) -> MiniBatchRecord:
        mode, net, seen = MODES[name], self._net(MODES[name]), _Seen()
        start_s = time.perf_counter()
        loader = self.part.loader(self.rows, self.job.fanouts, mode, self.part.train)
        setup_s = self._planned_s() + time.perf_counter() - start_s if mode.cached else 0.0
        self.batches = len(loader)
        for epoch, batches in loader.epochs(range(self.job.epochs)):
            self._epoch(batches, net, seen)
            self.rank.log(f"{name}, epoch {epoch + 1} of {self.job.epochs}: {seen.epochs_s[-1]:.2f} s")
        record = self._record(mode, loader, net, seen)
        net.close()
        return msgspec.structs.replace(record, setup_s=float(self.gradients.slowest(setup_s)))

    def _planned_s(self) -> float:
        return msgspec.json.decode((self.folder / PLANNED).read_bytes(), type=float)

    def _warm_up(self) -> None:
        """Load the kernels of all modes by a batch of each, so that none pays for those that come after it.

        The first mode had an epoch of several times the others': with two epochs "10.4 times as fast as base" was read
        where six gave 2.6.
        """
        for name in self.job.modes:
            mode = MODES[name]._replace(depth=0, cached=False)
            net = self._net(mode)
            loader = self.part.loader(self.rows, self.job.fanouts, mode, self.part.train)
            with closing(loader.epoch(0)) as batches:
                for batch in islice(batches, 1):
                    self._step(net.wrapped, net.optimizer, batch)
            net.close()

    def _net(self, mode: Mode) -> _Net:
        torch.manual_seed(self.job.seed)
        bare: nn.Module = self._sage()
        if self.slept is not None:
            forward_s, backward_s = self.slept
            bare = VirtualAccelerator.uniform(
                1, sum(p.numel() for p in bare.parameters()), forward_s=forward_s, backward_s=backward_s
            )
        # Machines start from the same weights and drop different values, as one would in the union of their batches.
        torch.manual_seed(stream_key(self.job.seed, self.gradients.rank))
        wrapped, compressed = DistributedDataParallel(bare), None
        if mode.compressed:
            compressed, function = hook(codec=self.job.codec, model=bare, timeout_s=self.job.timeout_s)
            wrapped.register_comm_hook(compressed, function)
        optimizer = torch.optim.Adam(bare.parameters(), lr=self.job.learning_rate)
        return _Net(bare, wrapped, compressed, optimizer)

    def _sage(self) -> Sage:
        hidden = [self.job.hidden] * (len(self.job.fanouts) - 1)
        widths = [self.part.num_features, *hidden, self.part.num_classes]
        return Sage(widths, dropout=self.job.dropout).to(self.part.device)

    def _alone_s(self) -> tuple[float, float]:
        """Seconds of a step forward and back on a processor that nothing else uses; machines measure in turn."""
        net = self._sage()
        loader = self.part.loader(self.rows, self.job.fanouts, MODES["base"], self.part.train)
        batches = list(islice(loader.epoch(0), _TIMED))
        found = (0.0, 0.0)
        for machine in range(self.job.workers):
            if machine == self.gradients.rank:
                # The first round loads kernels.
                for _ in range(2):
                    times = [_timed(net, batch) for batch in batches]
                forward_s, backward_s = np.median(times, axis=0)
                found = float(forward_s), float(backward_s)
            self.gradients.all_reduce(torch.zeros(1), "the end of a machine's turn")
        return found

    def _epoch(self, batches: Iterable[MiniBatch], net: _Net, seen: _Seen) -> None:
        self.gradients.all_reduce(torch.zeros(1), "the start of an epoch")
        start_s, cpu_s = time.perf_counter(), time.process_time()
        for batch in batches:
            begin_s = time.perf_counter()
            seen.losses.append(self._step(net.wrapped, net.optimizer, batch))
            batch.stage_s["train"] = time.perf_counter() - begin_s
            seen.note(batch)
        seen.cpu_s.append(self._total(time.process_time() - cpu_s))
        seen.epochs_s.append(float(self.gradients.slowest(time.perf_counter() - start_s)))

    def _step(self, net: nn.Module, optimizer: torch.optim.Optimizer, batch: MiniBatch) -> float:
        """Train on a batch; gradients are the mean over all seeds of all machines."""
        time.sleep(self.job.step_s)
        found: list[Tensor] = []

        def forward_and_back() -> None:
            loss = _loss(net, batch) if self.slept is None else net(batch.x[:1, :1]).sum()
            loss.backward()
            found.append(loss.detach())

        # DDP communicates in both directions: where a machine has died, gloo fails in the middle of them.
        self.gradients.guard(forward_and_back, "the sum of gradients")
        optimizer.step()
        optimizer.zero_grad()
        return float(found[0])

    def _record(self, mode: Mode, loader: BatchLoader, net: _Net, seen: _Seen) -> MiniBatchRecord:
        epochs, fetcher = self.job.epochs, loader.fetcher
        gradients = net.ring_bytes * len(loader)
        if net.compressed is not None:
            gradients = net.compressed.bytes_sent / epochs
        asked = loader.sampler if isinstance(loader.sampler, PartitionedSampler) else None
        sent, received = fetcher.sent_bytes, fetcher.received_bytes
        if asked is not None:
            sent, received = sent + asked.sent_bytes, received + asked.received_bytes
        busiest = max(sent, received) / epochs + gradients
        fetched, foreign = self.gradients.total([seen.fetched, seen.foreign]).tolist()
        return MiniBatchRecord(
            epoch_s=statistics.median(seen.epochs_s),
            epochs_s=tuple(seen.epochs_s),
            remote_rows=int(fetched / epochs),
            bytes_sent=int(self._total(fetcher.sent_bytes) / epochs),
            row_format=fetcher.wire.name,
            row_bytes=fetcher.wire.mean_bytes,
            bytes_predicted=self._predicted_bytes(mode, loader),
            sampling_bytes=int(self._total(sent - fetcher.sent_bytes) / epochs),
            gradient_bytes=int(self._total(gradients)),
            hit_rate=1 - fetched / foreign if foreign else 0.0,
            accuracy=self._accuracy(net.bare) if self.slept is None else None,
            loss=None
            if self.slept is not None
            else float(self.gradients.mean(seen.losses[-len(loader) :]).mean()),
            stage_s={stage: statistics.median(spent) for stage, spent in seen.stages.items()},
            link_s=self._link_s(float(self.gradients.slowest(busiest))),
            cpu_s=statistics.median(seen.cpu_s) / min(self.job.workers, os.cpu_count() or 1),
            slept_s=(self.job.step_s + sum(self.slept or ())) * len(loader),
            pipelined=mode.depth > 0,
        )

    def _link_s(self, sent_bytes: float) -> float:
        """Seconds of a machine's bytes on the link that it shares with others of its host; loopback is no link."""
        if self.job.network != "lab":
            return 0.0
        per_host = self.job.workers // (self.job.hosts or self.job.workers)
        return shared_link_s(sent_bytes, units.parse_rate(self.job.link), per_host)

    def _predicted_bytes(self, mode: Mode, loader: BatchLoader) -> int:
        """Predicted bytes of an epoch, from the rows that the plan expects of batches of the size it was made for."""
        owner = self.part.owner_of(self.part.train)
        machines = self.part.plan.machines
        return epoch_bytes(
            [sum(machine.fetched if mode.cached else machine.needed) for machine in machines],
            np.bincount(owner, minlength=self.job.workers) / self.job.batch_size,
            row_bytes=loader.fetcher.wire.mean_bytes,
            batches=len(loader),
        )

    @torch.no_grad()
    def _accuracy(self, net: nn.Module) -> float:
        """Fraction of the test nodes that are right, each machine looking at its own."""
        test = self.part.test
        if not len(test):
            return float("nan")
        net.eval()
        fanouts = (_EVALUATED,) * len(self.job.fanouts)
        loader = self.part.loader(self.evaluation, fanouts, MODES["base"], test)
        right = sum(
            int((net(batch.x, batch.batch.layers).argmax(dim=1) == batch.y).sum())
            for batch in loader.epoch(0)
        )
        net.train()
        return self._total(right) / len(test)

    def _sampling_rate(self) -> float:
        """Edges a second on one thread of rank 0, while the other machines wait, or answer what it asks."""
        sampler, drawn = self.part.sampler(self.job.fanouts), 0
        size = min(1024, self.part.num_nodes)
        seeds = np.random.default_rng(0).choice(self.part.num_nodes, size, replace=False)
        if self.rank.first or sampler.collective:
            mine = seeds if self.rank.first else seeds[:0]
            sampler.sample(mine)
            start_s = time.perf_counter()
            drawn = sum(sampler.sample(mine, batch=number).num_edges for number in range(10))
            drawn = int(drawn / (time.perf_counter() - start_s))
        self.gradients.all_reduce(torch.zeros(1), "the end")
        return float(drawn)

    def _total(self, value: float) -> float:
        return float(self.gradients.total(value))


def _loss(net: nn.Module, batch: MiniBatch) -> Tensor:
    return cross_entropy(net(batch.x, batch.batch.layers), batch.y, reduction="sum") * batch.scale


def _timed(net: nn.Module, batch: MiniBatch) -> tuple[float, float]:
    """Seconds forward and back."""
    start_s = time.perf_counter()
    loss = _loss(net, batch)
    forward_s = time.perf_counter()
    loss.backward()
    return forward_s - start_s, time.perf_counter() - forward_s


if __name__ == "__main__":
    memory = partial(full_graph.keep_freed_memory, full_graph.ALL_KEPT, shared=True)
    main(MiniBatchJob, work, sys.argv[1], memory=memory)
