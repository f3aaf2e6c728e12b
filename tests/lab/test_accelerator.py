import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import run_ranks_as_processes
from wirewise.errors import LabError
from wirewise.lab import PacedOperators, VirtualAccelerator, VirtualLayer
from wirewise.runtime.joint_graph import capture_step
from wirewise.sim.operator_times import DeviceFigures, roofline_times
from wirewise_papers.parallel_models import MODELS


def test_gradients_are_those_of_the_formula():
    layer = VirtualLayer(5, forward_s=0, backward_s=0).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(5, dtype=torch.float64))
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(layer, {"weight": w}, x), (x, layer.weight)
    )


def test_training_changes_every_weight():
    model = VirtualAccelerator([(4, 0, 0), (3, 0, 0)])
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all((p != 0).all() for p in model.parameters())


def test_each_layer_sleeps_its_own_times(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    model = VirtualAccelerator([(1, 0.1, 0.2), (1, 0.3, 0.4)])
    model(torch.ones(1)).sum().backward()
    assert slept == [0.1, 0.3, 0.4, 0.2]


def test_uniform_shares_out_parameters_and_times():
    model = VirtualAccelerator.uniform(3, 11, forward_s=0.3, backward_s=0.6)
    assert [p.numel() for p in model.parameters()] == [4, 4, 3]
    assert sum(layer.backward_s for layer in model) == pytest.approx(0.6)


@pytest.mark.parametrize(("count", "forward_s", "backward_s"), [(0, 0, 0), (1, -1, 0), (1, 0, float("nan"))])
def test_impossible_layers_are_refused(count, forward_s, backward_s):
    with pytest.raises(LabError, match="expected at least one parameter and finite times"):
        VirtualLayer(count, forward_s=forward_s, backward_s=backward_s)


def test_more_layers_than_parameters_are_refused():
    with pytest.raises(LabError, match="got 3 layers and 2 parameters"):
        VirtualAccelerator.uniform(3, 2, forward_s=0, backward_s=0)


def train_with_buckets(rank):
    """Buckets reduced before the backward pass is over, and the averaged gradient."""
    model = VirtualAccelerator([(1000, 0.0, 0.02)] * 3)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    buckets = []

    def hook(group, bucket):
        buckets.append((bucket.buffer().numel(), bucket.is_last()))
        reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0] / dist.get_world_size())

    ddp.register_comm_hook(None, hook)
    for _ in range(2):  # the first step finds the order of the gradients, the second has the buckets that fit
        model.zero_grad()
        buckets.clear()
        ddp(torch.full((2, 3), float(rank + 1))).sum().backward()
    return buckets, [p.grad[0].item() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.dist
def test_data_parallel_training_with_hooks_works_for_real():
    results = run_ranks_as_processes(2, train_with_buckets)
    assert results[0] == results[1]
    buckets, gradients = results[0]
    assert sum(count for count, _ in buckets) == 3000
    assert [last for _, last in buckets] == [False, False, True]
    # The mean over ranks of the sum of six inputs, shared out over 1000 weights.
    assert gradients == pytest.approx([6 * 1.5 / 1000] * 3)


def test_operators_sleep_what_is_left_of_their_time_and_views_do_not(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    x, weight = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    with PacedOperators(DeviceFigures(1e3, 1e3, 1e9, 0.5)):
        made = x @ weight
        made.t().relu()
    # The sleeps are none here, so what is due adds up.
    product_s = 2 * 8 * 16 * 32 / 1e3
    assert slept == [pytest.approx(product_s, rel=0.05), pytest.approx(product_s + 0.5, rel=0.05)]


def test_accelerators_without_speed_are_refused():
    with pytest.raises(LabError, match="expected finite rates above 0"):
        PacedOperators(DeviceFigures(0.0, 1.0, 1.0))


@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_what_is_slept_is_what_a_captured_step_is_said_to_take(name, monkeypatch):
    due = []
    real = PacedOperators._seconds
    monkeypatch.setattr(PacedOperators, "_seconds", lambda *given: due.append(real(*given)) or 0.0)
    figures = DeviceFigures(1e9, 1e9, 1e9, 1e-5)
    model, inputs = MODELS[name]()
    step = capture_step(model, inputs)
    state = [one.detach() for one in (*model.parameters(), *model.buffers())]
    with torch.no_grad(), PacedOperators(figures):
        step.module(*state, *inputs)
    assert sum(due) == pytest.approx(roofline_times(step.graph, figures).time_s, rel=0.02)
