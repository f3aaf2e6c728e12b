"""Batches over machines hold the rows of the whole graph, and training on them is training on one machine."""

import time
from itertools import chain, product

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import SAGEConv

from tests.harness.tiers import slow
from tests.runtime.mini_batch.machines import FANOUTS, Job, problem_of
from wirewise.codec.layout import row_bytes
from wirewise.errors import InputError, PeerError
from wirewise.graph.sampling import NeighborSampler, seed_batches
from wirewise.runtime.mini_batch import STAGES, RowStore


def batches(rank, loader, epoch=0, start=0):
    return [(b.number, b.n_id, b.x, b.y, b.scale) for b in loader.epoch(epoch, start=start)]


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


@pytest.mark.parametrize(
    ("machines", "alpha", "depth"),
    [(1, 0.1, 0), (2, 0.0, 3), (3, 1.0, 3), (4, 0.1, 1), (8, 0.0, 0), (8, 0.1, 3)],
)
def test_d1_rows_kept_as_halves_are_those_halves(machines, alpha, depth):
    job = Job(machines, alpha=alpha, depth=depth, dtype=torch.float16)
    whole = job.graph.x.astype(np.float16)
    for found in job.run(batches):
        for _, n_id, x, _, _ in found:
            assert x.dtype == torch.float32
            assert np.array_equal(x.numpy(), whole[n_id].astype(np.float32))


def test_halves_take_half_the_bytes_and_are_quantized_as_others_are():
    def count(rank, loader):
        made = list(loader.epoch(0))
        rows, steps = sum(batch.remote_rows for batch in made), len(loader)
        return loader.fetcher.sent_bytes, rows, steps, [batch.x for batch in made]

    halves = Job(3, alpha=0.1, depth=2, dtype=torch.float16).run(count)
    heads = 3 * 2 * (8 + 4 * halves[0][2])
    assert sum(sent for sent, *_ in halves) == sum(rows for _, rows, *_ in halves) * (2 * 12 + 4) + heads
    for exact, rough in zip(
        halves, Job(3, alpha=0.1, depth=2, dtype=torch.float16, bits=8).run(count), strict=True
    ):
        for x, rounded in zip(exact[-1], rough[-1], strict=True):
            spread = x.max(dim=1).values - x.min(dim=1).values
            assert ((rounded - x).abs() <= 1.05 / 255 * spread[:, None] + 1e-6).all()
            assert not torch.equal(rounded, x)


@pytest.mark.parametrize(("bits", "most"), [(16, 2**-8), (8, 1 / 255)])
def test_d1_fetched_rows_are_rounded_and_others_are_not(bits, most):
    job = Job(3, alpha=0.1, depth=2, bits=bits)
    for rank, found in enumerate(job.run(batches)):
        own = np.zeros(job.graph.num_nodes, bool)
        own[job.plan.machines[rank].ids] = True
        own[job.ranges.offsets[rank] : job.ranges.offsets[rank + 1]] = True
        for _, n_id, x, *_ in found:
            whole = job.graph.x[n_id]
            assert np.array_equal(x.numpy()[own[n_id]], whole[own[n_id]])
            size = np.abs(whole) if bits == 16 else np.ptp(whole, axis=1, keepdims=True)
            assert (np.abs(x.numpy() - whole) <= most * 1.05 * size + 1e-6).all()


def test_every_training_node_is_a_seed_once_and_all_machines_make_equally_many():
    job = Job(3, depth=2, skew=220)
    found = job.run(batches)
    assert len({len(made) for made in found}) == 1
    for rank, made in enumerate(found):
        seeds = np.concatenate([n_id[: len(y)] for _, n_id, _, y, _ in made])
        assert sorted(seeds) == job.train[rank].tolist()
    for one in zip(*found, strict=True):
        assert sum(len(y) for *_, y, _ in one) * one[0][-1] == pytest.approx(3)


def test_d3_a_pipeline_changes_nothing():
    alone = Job(3, depth=0).run(batches)
    for other in (Job(3, depth=4, threads=3), Job(3, depth=1, alpha=0.5)):
        for one, two in zip(alone, other.run(batches), strict=True):
            for a, b in zip(one, two, strict=True):
                assert np.array_equal(a[1], b[1])
                assert torch.equal(a[2], b[2])


def several_epochs(rank, loader):
    """Batches of three epochs from the second one's third batch on, by a pipeline that goes on, and one by one."""
    together = [
        [(number, b.number, b.n_id, b.x, b.scale) for b in own]
        for number, own in loader.epochs(range(1, 4), start=2)
    ]
    apart = [
        [(number, b.number, b.n_id, b.x, b.scale) for b in loader.epoch(number, start=start)]
        for number, start in ((1, 2), (2, 0), (3, 0))
    ]
    return together, apart


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_a_pipeline_goes_on_from_epoch_to_epoch_with_the_batches_of_each(depth):
    for together, apart in Job(3, depth=depth, bits=8, alpha=0.1).run(several_epochs):
        assert [len(own) for own in together] == [len(own) for own in apart]
        for one, two in zip(chain(*together), chain(*apart), strict=True):
            assert (one[0], one[1], one[4]) == (two[0], two[1], two[4])
            assert np.array_equal(one[2], two[2]) and torch.equal(one[3], two[3])


def left_early(rank, loader):
    """Numbers of what is read where an epoch is left after two batches, and the second one after three for good."""
    found = []
    for number, own in loader.epochs(range(5)):
        for batch in own:
            found.append((number, batch.number))
            if batch.number == 1 + number:
                break
        if number == 1:
            break
    # The group is free again.
    return found, [batch.number for batch in loader.epoch(7)]


@pytest.mark.parametrize("depth", [0, 4])
def test_an_epoch_that_is_left_early_is_skipped(depth):
    for found, after in Job(2, depth=depth, batch_size=8).run(left_early):
        assert found == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert after == list(range(len(after))) and len(after) > 3


def first_of_the_next(rank, loader):
    """Whether ids of the next epoch have left while the last batches of this one are read."""
    asked, call = [], loader.fetcher.ask
    loader.fetcher.ask = lambda *args: (asked.append(1), call(*args))[1]
    epochs = loader.epochs(range(2))
    _, own = next(epochs)
    for _ in range(len(loader) - 1):
        next(own)
    deadline = time.monotonic() + 20
    while len(asked) <= len(loader) and time.monotonic() < deadline:
        time.sleep(0.01)
    count = len(asked)
    for _, rest in epochs:
        assert len(list(rest)) == len(loader)
    return count > len(loader)


def test_batches_of_the_next_epoch_are_on_their_way_before_this_one_ends():
    assert Job(2, depth=4, batch_size=4).run(first_of_the_next) == [True, True]


def held_back(rank, loader):
    """Batches whose ids and rows have left when training has taken one, and once it takes another."""
    left, found = {"ask": 0, "send": 0}, []

    def counted(name):
        call = getattr(loader.fetcher, name)

        def act(*args):
            left[name] += 1
            return call(*args)

        return act

    loader.fetcher.ask, loader.fetcher.send = counted("ask"), counted("send")
    epoch = loader.epoch(0)
    for expected in ((9, 7), (10, 8)):
        next(epoch)
        deadline = time.monotonic() + 20
        while tuple(left.values()) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        found.append(tuple(left.values()))
    return found, len(list(epoch)) + 2


def test_rows_wait_until_training_takes_a_batch_and_ids_go_ahead():
    # Of depth 4: one taken, two ready, one that has come, three on their way; ids of the next one and of the one after.
    for found, count in Job(2, depth=4, batch_size=4).run(held_back):
        assert count > 12
        assert found == [(9, 7), (10, 8)]


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


def test_sent_bytes_are_rows_and_ids():
    job = Job(3, alpha=0.1, depth=2, bits=8)

    def count(rank, loader):
        remote = sum(batch.remote_rows for batch in loader.epoch(0))
        return remote, loader.fetcher.sent_bytes, len(loader)

    found = job.run(count)
    rows, steps = sum(remote for remote, *_ in found), found[0][2]
    # Each machine tells the two others the numbers of its first batch, and those of the next with every batch.
    heads = 3 * 2 * (8 + 4 * steps)
    assert sum(sent for _, sent, _ in found) == rows * (row_bytes(12, 8) + 4) + heads
    problem = problem_of(job.graph, job.ranges, job.train, job.batch_size)
    assert sum(sum(machine.fetched) for machine in job.plan.machines) == pytest.approx(rows / steps, rel=0.05)
    assert problem.machines == 3


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


@pytest.mark.parametrize("depth", [0, slow(3)])
def test_d5_a_machine_that_is_gone_is_named_with_the_stage(depth):
    # More batches than any machine makes ahead.
    job = Job(3, depth=depth, timeout_s=3.0, batch_size=3)

    def machine(rank, loader):
        assert len(loader) > 15
        try:
            for batch in loader.epoch(0):
                if rank == 1 and batch.number == 1:
                    return "gone"
        except PeerError as error:
            return str(error)
        return "done"

    found = job.run(machine)
    assert found[1] == "gone"
    for told in (found[0], found[2]):
        assert "the exchange of" in told or "the numbers of" in told
        # Numbers of rows travel in a collective, which cannot tell who of the peers is silent.
        assert ("rank 1" if depth == 0 else "a peer") in told


def test_stages_are_timed():
    def times(rank, loader):
        return [batch.stage_s for batch in loader.epoch(0)]

    for made in Job(2, depth=2).run(times):
        assert all(set(stage_s) == set(STAGES) for stage_s in made)
        assert all(seconds >= 0 for stage_s in made for seconds in stage_s.values())


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


def test_rows_that_do_not_fit_a_machine():
    offsets = np.array([0, 3, 7])
    with pytest.raises(InputError, match="features are missing for a part"):
        RowStore(torch.zeros(3, 2), offsets, 1)
    with pytest.raises(InputError, match="some its own"):
        RowStore(torch.zeros(4, 2), offsets, 1, np.array([1, 4]))
