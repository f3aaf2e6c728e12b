"""One machine of mini-batch training: `-m wirewise.recipes.salientpp_worker FOLDER`.

It reads what `recipes.salientpp` prepared, trains every mode from the same weights, and rank 0 writes
FOLDER/outcome.json.
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from wirewise import plans
from wirewise.files import atomic_file
from wirewise.graph import SparseRows, read_graph
from wirewise.graph.sampling import NeighborSampler
from wirewise.plans import CachePlan
from wirewise.recipes.launch import SAYS
from wirewise.recipes.salientpp import MODES, Job
from wirewise.results import MiniBatchRecord, MiniBatchRun
from wirewise.runtime import full_graph
from wirewise.runtime.mini_batch import STAGES, BatchLoader, Fetcher, MiniBatch, RowStore
from wirewise.runtime.mini_batch.sage import Sage
from wirewise.runtime.transport import Transport

__all__ = ["main"]

_EVALUATED = 20
"""Neighbours in each hop of evaluation."""
_TESTED = 2000
"""Test nodes that are evaluated at most: their rows travel over the same links."""


def main(path: str) -> None:
    """Be the machine that the environment names."""
    torch.set_num_threads(1)
    full_graph.keep_freed_memory(full_graph.ALL_KEPT)
    folder = Path(path)
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=job.timeout_s))
    try:
        _Machine(job, folder).work()
    finally:
        dist.destroy_process_group()


class _Machine:
    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.graph = read_graph(folder / "graph.npz")
        with np.load(folder / "nodes.npz") as nodes:
            self.offsets, self.train = nodes["offsets"], nodes["train"]
        plan = plans.load(folder / "plan.json")
        assert isinstance(plan, CachePlan)
        self.plan = plan
        store = dist.distributed_c10d._get_default_store()
        # Rows travel in groups of their own, so that they never wait for gradients.
        groups = [dist.group.WORLD, dist.new_group(), dist.new_group()]
        self.gradients, self.rows, self.evaluation = (
            Transport(group, timeout_s=job.timeout_s, store=store)  # type: ignore[arg-type]
            for group in groups
        )
        self.rank = self.gradients.rank
        self.labels = torch.from_numpy(self.graph.y).long()
        first, end = self.offsets[self.rank : self.rank + 2]
        x = self.graph.x
        own = x.rows(np.arange(first, end)).to_dense() if isinstance(x, SparseRows) else x[first:end]
        self.own = torch.from_numpy(np.ascontiguousarray(own))

    def work(self) -> None:
        """Train every mode, write."""
        records = {name: self._train(name) for name in self.job.modes}
        rate = self._sampling_rate()
        if self.rank:
            return
        base = next(iter(records.values())).epoch_s
        records = {
            name: msgspec.structs.replace(record, speedup=base / record.epoch_s)
            for name, record in records.items()
        }
        run = MiniBatchRun(
            dataset=self.graph.name,
            workers=self.job.workers,
            link=self.job.link,
            alpha=self.job.alpha,
            policy=self.job.policy,
            batches=self.plan.batches,
            predicted_remaining=self.plan.remaining,
            sampler_edges_per_s=rate,
            modes=records,
        )
        with atomic_file(self.folder / "outcome.json") as file:
            file.write(msgspec.json.encode(run))

    def _train(self, name: str) -> MiniBatchRecord:
        mode = MODES[name]
        torch.manual_seed(self.job.seed)
        hidden = [self.job.hidden] * (len(self.job.fanouts) - 1)
        net = Sage([self.graph.num_features, *hidden, self.graph.num_classes])
        wrapped = DistributedDataParallel(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=self.job.learning_rate)
        cached = self.plan.machines[self.rank].ids if mode.cached else None
        loader = self._loader(self.rows, self.job.fanouts, mode.bits, cached, self.train, mode.depth)
        seconds, remote, losses = [], [], []
        stages: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "train")}
        loader.fetcher.sent_bytes = 0
        for epoch in range(self.job.epochs):
            self.gradients.all_reduce(torch.zeros(1), "the start of an epoch")
            start_s, rows = time.perf_counter(), 0
            for batch in loader.epoch(epoch):
                rows += batch.remote_rows
                begin_s = time.perf_counter()
                losses.append(self._step(wrapped, optimizer, batch))
                batch.stage_s["train"] = time.perf_counter() - begin_s
                for stage, spent in batch.stage_s.items():
                    stages[stage].append(spent)
            seconds.append(self._reduced(time.perf_counter() - start_s, dist.ReduceOp.MAX))
            remote.append(self._reduced(float(rows)))
            self._say(f"{name}, epoch {epoch + 1} of {self.job.epochs}: {seconds[-1]:.2f} s")
        sent = self._reduced(float(loader.fetcher.sent_bytes)) / self.job.epochs
        return MiniBatchRecord(
            epoch_s=statistics.median(seconds),
            epochs_s=tuple(seconds),
            remote_rows=int(statistics.mean(remote)),
            bytes_sent=int(sent),
            accuracy=self._accuracy(net),
            loss=self._reduced(statistics.mean(losses[-len(loader) :])) / self.job.workers,
            stage_s={stage: statistics.median(spent) for stage, spent in stages.items()},
        )

    def _loader(
        self,
        transport: Transport,
        fanouts: tuple[int, ...],
        bits: int,
        cached: np.ndarray | None,
        seeds: np.ndarray,
        depth: int,
    ) -> BatchLoader:
        store = RowStore(self.own, self.offsets, self.rank, cached)
        fetcher = Fetcher(store, transport, bits=bits, seed=self.job.seed)
        if cached is not None:
            fetcher.fill_cache()
        owner = np.searchsorted(self.offsets, seeds, side="right") - 1
        by_machine = [seeds[owner == machine] for machine in range(self.job.workers)]
        sampler = NeighborSampler(self.graph.in_edges, fanouts, seed=self.job.seed)
        size = self.job.batch_size
        return BatchLoader(
            fetcher, sampler, self.labels, by_machine, size, depth=depth, threads=self.job.threads
        )

    def _step(self, net: nn.Module, optimizer: torch.optim.Optimizer, batch: MiniBatch) -> float:
        """Train on a batch; gradients are the mean over all seeds of all machines."""
        loss = cross_entropy(net(batch.x, batch.batch.layers), batch.y, reduction="sum") * batch.scale
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    @torch.no_grad()
    def _accuracy(self, net: Sage) -> float:
        """Share of the test nodes that are right, each machine looking at its own."""
        test = np.flatnonzero(self.graph.split == 2)
        if not len(test):
            return float("nan")
        few = min(len(test), _TESTED)
        test = np.sort(np.random.default_rng(self.job.seed).choice(test, few, replace=False))
        net.eval()
        fanouts = (_EVALUATED,) * len(self.job.fanouts)
        loader = self._loader(self.evaluation, fanouts, 32, None, test, 0)
        right = sum(
            int((net(batch.x, batch.batch.layers).argmax(dim=1) == batch.y).sum())
            for batch in loader.epoch(0)
        )
        net.train()
        return self._reduced(float(right)) / len(test)

    def _sampling_rate(self) -> float:
        """Edges a second on one thread of rank 0, while the other machines wait."""
        sampler, drawn = NeighborSampler(self.graph.in_edges, self.job.fanouts, seed=self.job.seed), 0
        size = min(1024, self.graph.num_nodes)
        seeds = np.random.default_rng(0).choice(self.graph.num_nodes, size, replace=False)
        if self.rank == 0:
            sampler.sample(seeds)
            start_s = time.perf_counter()
            drawn = sum(sampler.sample(seeds, batch=number).num_edges for number in range(10))
            drawn = int(drawn / (time.perf_counter() - start_s))
        self.gradients.all_reduce(torch.zeros(1), "the end")
        return float(drawn)

    def _reduced(self, value: float, op: object = dist.ReduceOp.SUM) -> float:
        both = torch.tensor([value], dtype=torch.float64)
        self.gradients.all_reduce(both, "the exchange of measured values", op)
        return float(both)

    def _say(self, text: str) -> None:
        if self.rank == 0:
            sys.stdout.write(f"{SAYS}{text}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
