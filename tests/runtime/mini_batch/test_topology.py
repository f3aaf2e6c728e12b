"""Machines that hold the edges of their own nodes draw the batches of a graph that all machines hold."""

import numpy as np
import pytest
import torch

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.mini_batch.machines import FANOUTS, Job, graph_of
from wirewise.errors import InputError, PeerError
from wirewise.graph.sampling import SEMANTICS, NeighborSampler
from wirewise.runtime.mini_batch import PartitionedSampler, own_edges
from wirewise.runtime.transport import Transport


def samplers(machines, fanouts=FANOUTS, semantics="cumulative", timeout_s=30.0):
    """The graph, and a function that makes each machine's sampler."""
    graph, ranges = graph_of(machines)

    def make(rank, group, store):
        first, end = ranges.offsets[rank : rank + 2]
        transport = Transport(group, timeout_s=timeout_s, store=store)
        own = own_edges(graph.in_edges, first, end)
        return PartitionedSampler(own, ranges.offsets, transport, fanouts, semantics=semantics, seed=3)

    return graph, make


def same(one, two):
    assert np.array_equal(one.n_id, two.n_id) and one.num_seeds == two.num_seeds
    for a, b in zip(one.layers, two.layers, strict=True):
        assert np.array_equal(a.indptr, b.indptr) and np.array_equal(a.sources, b.sources)
        assert a.num_sources == b.num_sources
        assert (a.indptr.dtype, a.sources.dtype) == (b.indptr.dtype, b.sources.dtype)


@pytest.mark.sweep
@pytest.mark.parametrize("machines", [1, 2, 3])
@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("fanouts", [(6, 4), (-1, 2, 0), (3, 3, 3)])
def test_batches_are_those_of_the_whole_graph(machines, semantics, fanouts):
    graph, make = samplers(machines, fanouts, semantics)

    def machine(rank, group, store):
        sampler, random = make(rank, group, store), np.random.default_rng(rank)
        chosen = [random.choice(600, 12, replace=False) for _ in range(3)]
        return chosen, [sampler.sample(s, epoch=2, batch=3 * i + rank) for i, s in enumerate(chosen)]

    whole = NeighborSampler(graph.in_edges, fanouts, semantics=semantics, seed=3)
    for rank, (chosen, found) in enumerate(run_ranks_as_threads(machines, machine)):
        for number, (seeds, batch) in enumerate(zip(chosen, found, strict=True)):
            same(batch, whole.sample(seeds, epoch=2, batch=3 * number + rank))


def test_a_machine_without_seeds_answers_the_others():
    graph, make = samplers(3)
    seeds = np.array([3, 599, 250])

    def machine(rank, group, store):
        return make(rank, group, store).sample(seeds if rank == 2 else seeds[:0], batch=rank)

    found = run_ranks_as_threads(3, machine)
    whole = NeighborSampler(graph.in_edges, FANOUTS, seed=3)
    same(found[0], whole.empty_batch())
    same(found[2], whole.sample(seeds, batch=2))


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_sent_bytes_are_nodes_and_neighbours(semantics):
    _, make = samplers(3, semantics=semantics)

    def machine(rank, group, store):
        sampler = make(rank, group, store)
        batch = sampler.sample(np.array([10, 300, 590]) + rank, batch=rank)
        return sampler, batch

    told = 0
    found = run_ranks_as_threads(3, machine)
    for rank, (sampler, batch) in enumerate(found):
        asked = 0
        for layer in reversed(batch.layers):
            targets = batch.n_id[asked if semantics == "frontier" else 0 : layer.num_targets]
            drawn = np.diff(layer.indptr)[-len(targets) :]
            foreign = np.searchsorted(sampler.offsets, targets, side="right") - 1 != rank
            # A node and the number of its neighbours take four bytes each, and so does a neighbour.
            told += int(8 * foreign.sum() + 4 * drawn[foreign].sum())
            asked = layer.num_targets
    heads = 3 * 2 * 16 * len(FANOUTS)
    assert sum(sampler.sent_bytes for sampler, _ in found) == told + heads
    assert sum(sampler.received_bytes for sampler, _ in found) == told + heads


@pytest.mark.parametrize("depth", [0, 3])
def test_a_loader_makes_the_same_batches(depth):
    job = Job(3, depth=depth, alpha=0.1, empty=(1,))

    def batches(rank, loader):
        return [(made.n_id, made.x) for made in loader.epoch(1)]

    def partitioned(rank, group, store):
        # The sampler's messages travel in a group of their own.
        loader = job.loader(rank, group[0], store)
        first, end = job.ranges.offsets[rank : rank + 2]
        transport = Transport(group[1], timeout_s=30.0, store=store)
        own = own_edges(job.graph.in_edges, first, end)
        loader.sampler = PartitionedSampler(own, job.ranges.offsets, transport, FANOUTS, seed=3)
        return batches(rank, loader), loader.sampler.sent_bytes

    alone = job.run(batches)
    both = run_ranks_as_threads(3, two_groups(partitioned))
    for one, (two, sent_bytes) in zip(alone, both, strict=True):
        assert sent_bytes > 0
        for (ids, x), (other_ids, other_x) in zip(one, two, strict=True):
            assert np.array_equal(ids, other_ids) and torch.equal(x, other_x)


def two_groups(fn):
    """`fn(rank, (group, another group), store)`."""
    import torch.distributed as dist

    def call(rank, group, store):
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        other = dist.ProcessGroupGloo(dist.PrefixStore("another", store), rank, group.size(), options)
        return fn(rank, (group, other), store)

    return call


@pytest.mark.slow
def test_a_machine_that_is_gone_is_named_with_the_hop():
    _, make = samplers(2, timeout_s=2.0)

    def machine(rank, group, store):
        sampler = make(rank, group, store)
        sampler.sample(np.array([1, 2]))
        if rank == 1:
            return "gone"
        with pytest.raises(PeerError, match="rank 1") as told:
            sampler.sample(np.array([1, 2]))
        return str(told.value)

    assert "the exchange of neighbours in hop 0" in run_ranks_as_threads(2, machine)[0]


@pytest.mark.parametrize(
    ("seeds", "told"),
    [([600], "seed 600 is no node"), ([4, 4], "seed 4 stands twice"), ([0.5], "seeds are float64")],
)
def test_seeds_that_cannot_be_used(seeds, told):
    _, make = samplers(1)

    def machine(rank, group, store):
        with pytest.raises(InputError, match=told):
            make(rank, group, store).sample(np.array(seeds))

    run_ranks_as_threads(1, machine)


def test_edges_and_knobs_that_cannot_be_used():
    graph, _ = graph_of(2)

    def machine(rank, group, store):
        transport = Transport(group, store=store)
        with pytest.raises(
            InputError, match="machine 0 was given in-edges of 600 nodes; expected those of its 300"
        ):
            PartitionedSampler(graph.in_edges, np.array([0, 300]), transport, FANOUTS)
        with pytest.raises(InputError, match="got fanouts"):
            PartitionedSampler(own_edges(graph.in_edges, 0, 300), np.array([0, 300]), transport, ())

    run_ranks_as_threads(1, machine)
    with pytest.raises(InputError, match="2 threads cannot sample together"):
        threads = Job(1, depth=1, threads=2)

        def start(rank, group, store):
            loader = threads.loader(rank, group, store)
            own = own_edges(threads.graph.in_edges, 0, 600)
            sampler = PartitionedSampler(own, threads.ranges.offsets, loader.fetcher.transport, FANOUTS)
            type(loader)(loader.fetcher, sampler, loader.labels, threads.train, 16, threads=2)

        run_ranks_as_threads(1, start)
