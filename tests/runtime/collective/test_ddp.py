"""DistributedDataParallel over the group's programs."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import run_ranks_as_processes
from wirewise.runtime import collective

pytestmark = pytest.mark.dist


def trained(rank, how, integers):
    """Weights after three steps of DDP."""
    torch.manual_seed(0)
    # The weights of integers stay exact in any order of additions.
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.ReLU(), torch.nn.Linear(60, 3))
    if integers:
        for parameter in model.parameters():
            parameter.data = parameter.data.mul(8).round()
    process_group = dist.new_group(backend="wirewise") if how == "backend" else None
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.005, process_group=process_group)
    group = collective.connect(deterministic=True) if how == "hook" else None
    if group is not None:
        ddp.register_comm_hook(*collective.ddp_hook(group))
    torch.manual_seed(rank)
    for _ in range(3):
        inputs = torch.randint(-2, 3, (4, 40)).float() if integers else torch.randn(4, 40)
        loss = ddp(inputs).sum() if integers else ddp(inputs).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= (1.0 if integers else 0.1) * parameter.grad
        model.zero_grad()
    if group is not None:
        group.close()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def all_trainings(rank):
    cases = [(how, integers) for how in ("gloo", "backend", "hook", "hook") for integers in (True, False)]
    return [trained(rank, *case) for case in cases]


@pytest.mark.slow
def test_ddp_trains_as_with_gloo():
    """F7: equal for integers, within 1e-5 in fp32, and the same bits on all ranks and in all runs."""
    ranks = run_ranks_as_processes(4, all_trainings)
    for found in ranks:
        assert all(map(torch.equal, found, ranks[0]))
        gloo_exact, gloo, exact, close, hook_exact, hook_close, again_exact, again = found
        assert torch.equal(exact, gloo_exact) and torch.equal(hook_exact, gloo_exact)
        assert torch.equal(again, hook_close) and torch.equal(again_exact, hook_exact)
        for other in (close, hook_close):
            assert torch.allclose(other, gloo, rtol=1e-5, atol=1e-6)


def with_power_sgd(rank, backend):
    """Weights after training with torch's hook, whose callbacks wait for further collectives."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.ReLU(), torch.nn.Linear(60, 30))
    # Callbacks of several buckets have no order among ranks, with which gloo hangs.
    ddp = DistributedDataParallel(model, process_group=dist.new_group(backend=backend))
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2, "min_compression_rate": 1}
    ddp.register_comm_hook(power.PowerSGDState(ddp.process_group, **options), power.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(rank)
    for _ in range(6):
        optimizer.zero_grad()
        ddp(torch.randn(4, 40)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def with_both(rank):
    return [with_power_sgd(rank, backend) for backend in ("gloo", "wirewise")]


def test_torchs_powersgd_hook_trains_as_with_gloo():
    for gloo, ours in run_ranks_as_processes(2, with_both):
        assert torch.allclose(gloo, ours, rtol=1e-4, atol=1e-5)
