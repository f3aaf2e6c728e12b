"""Machines as threads that train on parts of a small graph."""

import numpy as np
import torch

from tests.harness.threads import run_ranks_as_threads
from wirewise.graph import BlockModel, block_model
from wirewise.graph.ranges import ranges_of
from wirewise.graph.sampling import NeighborSampler
from wirewise.planners.cache import PLANNERS, CacheProblem
from wirewise.runtime.mini_batch import BatchLoader, Fetcher, RowStore
from wirewise.runtime.transport import Transport

FANOUTS = (6, 4)


def graph_of(machines, nodes=600, skew=0):
    """A graph whose nodes are ranges of machines, and the ranges."""
    graph = block_model(BlockModel(nodes=nodes, classes=4, features=12, mean_degree=6.0, train=0.3))
    owner = np.arange(nodes) * machines // nodes
    if skew:
        owner = np.minimum(np.arange(nodes) // skew, machines - 1)
    ranges = ranges_of(owner.astype(np.int64))
    return ranges.renumber(graph), ranges


def train_of(graph, ranges, empty=()):
    nodes = np.flatnonzero(graph.split == 0)
    owner = ranges.owner_of(nodes)
    return [nodes[owner == k] if k not in empty else nodes[:0] for k in range(ranges.machines)]


def problem_of(graph, ranges, train, batch_size):
    return CacheProblem(
        edges=graph.in_edges,
        owner=ranges.owner,
        train=tuple(train),
        batch_size=batch_size,
        fanouts=FANOUTS,
    )


class Job:
    """What every machine does alike."""

    def __init__(self, machines, *, alpha=0.0, batch_size=16, empty=(), skew=0, nodes=600, **knobs):
        self.graph, self.ranges = graph_of(machines, nodes, skew)
        self.train = train_of(self.graph, self.ranges, empty)
        self.bits, self.timeout_s = knobs.pop("bits", None), knobs.pop("timeout_s", 30.0)
        self.dtype = knobs.pop("dtype", torch.float32)
        self.store = knobs.pop("store", RowStore)
        self.batch_size, self.knobs = batch_size, knobs
        self.plan = None
        if alpha:
            self.plan = PLANNERS["vip"](
                problem_of(self.graph, self.ranges, self.train, batch_size), alpha=alpha
            )

    def loader(self, rank, group, store):
        offsets = self.ranges.offsets
        own = torch.from_numpy(self.graph.x[offsets[rank] : offsets[rank + 1]]).to(self.dtype)
        cached = None if self.plan is None else self.plan.machines[rank].ids
        transport = Transport(group, timeout_s=self.timeout_s, store=store)
        rows = self.store(own, offsets, rank, cached)
        fetcher = Fetcher(rows, transport, bits=self.bits)
        if cached is not None:
            fetcher.fill_cache()
        fetcher.sent_bytes = 0
        sampler = NeighborSampler(self.graph.in_edges, FANOUTS, seed=3)
        labels = torch.from_numpy(self.graph.y)
        return BatchLoader(fetcher, sampler, labels, self.train, self.batch_size, **self.knobs)

    def run(self, fn, *args):
        """`fn(rank, loader, *args)` on every machine."""

        def machine(rank, group, store):
            return fn(rank, self.loader(rank, group, store), *args)

        return run_ranks_as_threads(self.ranges.machines, machine)


def batches(rank, loader, epoch=0, start=0):
    return [(b.number, b.n_id, b.x, b.y, b.scale) for b in loader.epoch(epoch, start=start)]
