"""Batches over machines hold the rows of the whole graph, and training on them is training on one machine."""

import os
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import SAGEConv

from tests.runtime.mini_batch.machines import FANOUTS, Job, batches
from wirewise.errors import GraphError, InputError
from wirewise.graph import read_mapped, write_mapped
from wirewise.graph.mapped import watch
from wirewise.graph.sampling import NeighborSampler, seed_batches


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("machines", "alpha", "depth"),
    [*product([1, 2, 3, 4], [0.0, 0.1, 1.0], [0, 1, 4]), (8, 0.0, 4), (8, 0.1, 0), (8, 1.0, 4)],
)
def test_d1_rows_are_those_of_the_whole_graph(machines, alpha, depth):
    job = Job(machines, alpha=alpha, depth=depth, threads=2)
    for found in job.run(batches):
        assert [number for number, *_ in found] == list(range(len(found)))
        for _, n_id, x, y, _ in found:
            assert np.array_equal(x.numpy(), job.graph.x[n_id])
            assert np.array_equal(y.numpy(), job.graph.y[n_id[: len(y)]])


def test_every_training_node_is_a_seed_once_and_all_machines_make_equally_many():
    job = Job(3, depth=2, skew=220)
    found = job.run(batches)
    assert len({len(made) for made in found}) == 1
    for rank, made in enumerate(found):
        seeds = np.concatenate([n_id[: len(y)] for _, n_id, _, y, _ in made])
        assert sorted(seeds) == job.train[rank].tolist()
    for one in zip(*found, strict=True):
        assert sum(len(y) for *_, y, _ in one) * one[0][-1] == pytest.approx(3)


@pytest.mark.parametrize("depth", [0, 3])
def test_rows_of_a_mapped_graph_and_its_change_in_mid_run(tmp_path, depth):
    job = Job(1, depth=depth)
    job.graph = write_mapped(job.graph, tmp_path / "graph")
    job.graph = read_mapped(tmp_path / "graph", writeable=True)
    job.knobs["check"] = watch(tmp_path / "graph")

    def changing(rank, loader):
        assert loader.fetcher.store.own.data_ptr() == job.graph.x.ctypes.data, "rows are not copied"
        for batch in loader.epoch(0):
            assert np.array_equal(batch.x.numpy(), job.graph.x[batch.n_id])
        made = iter(loader.epoch(1))
        next(made)
        os.utime(tmp_path / "graph" / "y.npy")
        with pytest.raises(GraphError, match=r"y.npy changed while it was in use: it was written to"):
            list(made)
        return True

    assert job.run(changing) == [True]


@pytest.mark.parametrize("depth", [0, 3])
def test_d4_machines_without_training_nodes_and_batches_without_requests(depth):
    for job in (
        Job(3, depth=depth, empty=(1,)),
        Job(4, depth=depth, batch_size=200, empty=(0, 2)),
        Job(1, depth=depth),
    ):
        for rank, found in enumerate(job.run(batches)):
            for _, n_id, x, y, _ in found:
                assert np.array_equal(x.numpy(), job.graph.x[n_id])
                assert len(y) == 0 or len(job.train[rank])


def test_more_machines_than_batches_have_seeds():
    job = Job(4, nodes=24, batch_size=1, depth=2)
    found = job.run(batches)
    assert sum(len(y) for made in found for *_, y, _ in made) == sum(map(len, job.train))


def test_an_epoch_goes_on_where_it_stopped():
    job = Job(2, depth=3)
    whole, rest = job.run(batches, 5), job.run(batches, 5, 2)
    for one, two in zip(whole, rest, strict=True):
        assert [made[0] for made in two] == [made[0] for made in one[2:]]
        assert all(torch.equal(a[2], b[2]) for a, b in zip(one[2:], two, strict=True))

    def at_the_end(rank, loader):
        # Nothing is sent otherwise, and a machine would leave while others connect.
        loader.fetcher.transport.all_reduce(torch.zeros(1), "the test")
        return batches(rank, loader, 5, len(loader))

    assert all(made == [] for made in job.run(at_the_end))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = torch.nn.ModuleList([SAGEConv(12, 16), SAGEConv(16, 4)])

    def forward(self, batch):
        x = batch.x
        for place, (convolution, (edges, size)) in enumerate(
            zip(self.convolutions, batch.layers, strict=True)
        ):
            x = convolution((x, x[: size[1]]), edges)
            x = x.relu() if place == 0 else x
        return x


def trained(rank, loader, epochs):
    """Losses of all machines together, and the parameters; gradients are the mean over machines."""
    # Threads share torch's generator, so that parameters are drawn by a generator of their own.
    net, random = Net(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=random))
    optimizer, transport = torch.optim.SGD(net.parameters(), lr=0.1), loader.fetcher.transport
    losses = []
    for epoch in range(epochs):
        for batch in loader.epoch(epoch):
            optimizer.zero_grad()
            loss = cross_entropy(net(batch), batch.y, reduction="sum") * batch.scale
            loss.backward()
            both = torch.cat([loss.detach().view(1), *(p.grad.view(-1) for p in net.parameters())])
            both /= transport.world_size
            transport.all_reduce(both, "gradients")
            losses.append(float(both[0]))
            start = 1
            for p in net.parameters():
                p.grad.copy_(both[start : start + p.numel()].view(p.shape))
                start += p.numel()
            optimizer.step()
    return losses, torch.cat([p.detach().view(-1) for p in net.parameters()])


class Union:
    """One machine whose batches are the unions of several machines' batches."""

    def __init__(self, job, loader):
        self.job, self.loader = job, loader

    def epoch(self, number):
        from wirewise.runtime.mini_batch import MiniBatch

        graph, sampler = self.job.graph, NeighborSampler(self.job.graph.in_edges, FANOUTS, seed=3)
        cuts = [seed_batches(t, 1, epoch=number, seed=3, batches=len(self.loader)) for t in self.job.train]
        for place in range(len(self.loader)):
            seeds = np.concatenate([cut[place] for cut in cuts])
            batch = sampler.sample(seeds, epoch=number, batch=place)
            x, y = torch.from_numpy(graph.x[batch.n_id]), torch.from_numpy(graph.y[seeds])
            yield MiniBatch(place, batch, x, y, 1 / len(seeds))

    @property
    def fetcher(self):
        return self.loader.fetcher


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(("machines", "skew"), [(2, 0), (3, 220)])
def test_d2_many_machines_train_as_one_does(machines, skew):
    # Gradients travel in the group of the rows, so that nothing may be made ahead.
    job = Job(machines, depth=0, skew=skew, alpha=0.2, shared_draws=True)
    epochs = 13
    many = job.run(trained, epochs)
    alone = Job(1, depth=0)
    union = alone.run(
        lambda rank, loader: trained(rank, Union(job, _Length(loader, len(many[0][0]) // epochs)), epochs)
    )[0]
    assert len(many[0][0]) >= 50
    assert many[0][0] == pytest.approx(union[0], rel=1e-4)
    assert many[0][0][0] == pytest.approx(union[0][0], rel=1e-6)
    for losses, parameters in many:
        assert losses == many[0][0]
        assert torch.allclose(parameters, union[1], atol=1e-4)


class _Length:
    """A loader that makes a certain number of batches."""

    def __init__(self, loader, length):
        self.fetcher, self._length = loader.fetcher, length

    def __len__(self):
        return self._length


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"empty": (0, 1)}, "0 in all; expected those of 2"),
        ({"batch_size": 0}, "batches of 0 seeds"),
        ({"depth": -1}, "depth -1"),
        ({"bits": 4}, "4 bits a value; expected one of"),
        ({"bits": 32, "dtype": torch.float16}, r"32 bits a value; expected one of \[8, 16\]"),
    ],
)
def test_knobs_that_cannot_be_used(knobs, told):
    with pytest.raises(InputError, match=told):
        Job(2, **knobs).run(batches)
