"""Compressed reduce-scatter under FSDP2."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.harness.processes import run_ranks_as_processes
from wirewise.codec.gradients import Segments, make
from wirewise.errors import InputError
from wirewise.runtime.data_parallel.fsdp import compress_fsdp

RANKS = 2


def model_of():
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 5))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net[2], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def train(rank, net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in steps:
        random = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(32, 12, generator=random)
        loss = (net(x) - x[:, :5]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    full = torch.cat([p.full_tensor().detach().view(-1) for p in net.parameters()])
    return full, float(loss)


def compare(rank, codecs):
    found = {"none": train(rank, model_of(), range(60))}
    for codec, options, feedback in codecs:
        net = model_of()
        state = compress_fsdp(net, codec, options=options, block=64, feedback=feedback)
        found[codec, feedback] = (*train(rank, net, range(60)), state.bytes_sent)
    return found


@pytest.mark.slow
@pytest.mark.dist
def test_compressed_training_comes_near_that_without():
    codecs = [
        ("fp16", {}, True),
        ("int8", {}, True),
        ("topk", {"ratio": 0.1}, True),
        ("topk", {"ratio": 0.1}, False),
    ]
    found = run_ranks_as_processes(RANKS, compare, codecs)
    whole, loss = found[0].pop("none")
    assert loss < 0.5
    assert torch.equal(whole, found[1]["none"][0])
    assert torch.allclose(found[0]["fp16", True][0], whole, atol=2e-3)
    assert torch.allclose(found[0]["int8", True][0], whole, atol=2e-2)
    gap = {feedback: found[0]["topk", feedback][1] - loss for feedback in (True, False)}
    assert gap[True] <= 0.6 * gap[False]
    for key, (parameters, *_) in found[0].items():
        assert torch.equal(parameters, found[1][key][0])
    # A share of each of two layers, to the one other rank, in each of 60 steps.
    shares = [(12 * 32 + 32) // 2, (32 * 5 + 6) // 2 + 15]
    expected = sum(make("int8").size_bytes(Segments([share], block=64)) for share in shares)
    assert found[0]["int8", True][2] == pytest.approx(60 * expected, rel=0.1)


def resume(rank):
    net = model_of()
    state = compress_fsdp(net, "topk", options={"ratio": 0.1}, block=64)
    train(rank, net, range(10))
    saved = state.state_dict()
    weights = [p.detach().to_local().clone() for p in net.parameters()]
    whole = train(rank, net, range(10, 20))[0]
    again = model_of()
    with torch.no_grad():
        for parameter, weight in zip(again.parameters(), weights, strict=True):
            parameter.to_local().copy_(weight)
    loaded = compress_fsdp(again, "topk", options={"ratio": 0.1}, block=64)
    loaded.load_state_dict(saved)
    resumed = train(rank, again, range(10, 20))[0]
    with pytest.raises(InputError, match="differs in modules"):
        loaded.load_state_dict({"other": {}})
    wrong = {name: {"step": 1, "residual": torch.zeros(3, 7)} for name in saved}
    loaded.load_state_dict(wrong)
    with pytest.raises(InputError, match=r"residuals of \(3, 7\)"):
        train(rank, again, range(1))
    return whole, resumed


@pytest.mark.slow
@pytest.mark.dist
def test_a_loaded_state_goes_on_exactly():
    for whole, resumed in run_ranks_as_processes(RANKS, resume):
        assert torch.equal(whole, resumed)


def refuse(rank):
    net = model_of()
    for codec in ("powersgd", "signum"):
        with pytest.raises(InputError, match="expected one such as int8"):
            compress_fsdp(net, codec)


@pytest.mark.dist
def test_codecs_that_cannot_be_used():
    run_ranks_as_processes(RANKS, refuse)


def test_models_that_are_not_sharded():
    with pytest.raises(InputError, match="Linear has no sharded module"):
        compress_fsdp(nn.Linear(2, 2), "int8")
