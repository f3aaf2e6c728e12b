"""Rows on a device and in its host's memory make the batches that rows in one place make."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.runtime.mini_batch.machines import Job
from wirewise.errors import InputError
from wirewise.runtime.mini_batch import DeviceStore
from wirewise.runtime.mini_batch.sage import Sage

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def batches(rank, loader):
    return [(made.n_id, made.x, made.y, made.batch.layers) for made in loader.epoch(0)]


def on(device, prefix):
    return partial(DeviceStore, device=device, prefix=prefix)


@pytest.mark.sweep
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prefix", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("depth", [0, 3])
def test_d1_rows_are_those_of_the_whole_graph(device, prefix, alpha, depth):
    job = Job(3, alpha=alpha, depth=depth, store=on(device, prefix))
    for found in job.run(batches):
        for n_id, x, y, _ in found:
            assert x.device.type == y.device.type == device
            assert np.array_equal(x.cpu().numpy(), job.graph.x[n_id])
            assert np.array_equal(y.cpu().numpy(), job.graph.y[n_id[: len(y)]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prefix", [0.15, 1.0])
def test_d1_halves_on_eight_machines(device, prefix):
    job = Job(8, alpha=0.1, depth=2, store=on(device, prefix), dtype=torch.float16)
    whole = job.graph.x.astype(np.float16).astype(np.float32)
    for found in job.run(batches):
        for n_id, x, *_ in found:
            assert np.array_equal(x.cpu().numpy(), whole[n_id])


def test_the_prefix_is_the_first_rows():
    rows = torch.arange(20.0).view(10, 2)
    store = DeviceStore(rows, np.array([0, 10, 14]), 0, np.array([12, 10]), device="cpu", prefix=0.3)
    assert store.num_prefix == 3
    store.fill(torch.tensor([[100.0, 101.0], [200.0, 201.0]]))
    # Nothing of the prefix and the cache comes from the host.
    store.own.fill_(-1)
    store.copies.fill_(-1)
    found = store.assemble(np.array([12, 2, 9, 10, 0]), np.empty(0, np.int64), lambda x, places: None)
    assert found.copied is None
    assert found.x.tolist() == [[100, 101], [4, 5], [-1, -1], [200, 201], [0, 1]]


@pytest.mark.parametrize("prefix", [-0.1, 1.1])
def test_a_prefix_out_of_range(prefix):
    with pytest.raises(InputError, match="expected the share of the own rows on the device"):
        DeviceStore(torch.zeros(2, 2), np.array([0, 2]), 0, device="cpu", prefix=prefix)


@pytest.mark.parametrize("device", DEVICES)
def test_scores_on_a_device_are_those_of_the_kernels(device):
    job = Job(1, depth=1)
    torch.manual_seed(0)
    net = Sage([12, 16, 4]).eval()
    moved = Sage([12, 16, 4]).eval().to(device)
    moved.load_state_dict(net.state_dict())
    for _, x, _, layers in job.run(batches)[0][:2]:
        assert torch.allclose(moved(x.to(device), layers).cpu(), net(x, layers), atol=1e-4)


@pytest.mark.gpu
def test_rows_travel_between_devices():
    """NCCL: one rank is what one card takes; its exchanges go by way of the device."""
    import torch.distributed as dist

    from wirewise.runtime.mini_batch.all_to_all import AllToAll
    from wirewise.runtime.transport import Transport

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        transport = Transport(dist.group.WORLD, timeout_s=30.0)
        assert transport.on_device
        came = torch.empty(5, dtype=torch.int32)
        AllToAll(transport).exchange("a test", torch.arange(5, dtype=torch.int32), came)
        assert came.tolist() == [0, 1, 2, 3, 4]
    finally:
        dist.destroy_process_group()
