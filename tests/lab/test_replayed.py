"""Replayed models: the gradients of a trace, when the trace says."""

import time

import pytest
import torch

from wirewise.errors import LabError
from wirewise.lab.replayed import ReplayedModel, scale_trace
from wirewise.trace.gradients import GradientTensor, GradientTrace


def trace(*tensors):
    return GradientTrace(tensors=tuple(GradientTensor(name=n, elements=e, gap_us=g) for n, e, g in tensors))


THREE = trace(("fc.bias", 3, 0), ("fc.weight", 40, 3_000), ("body.0.weight", 7, 1_000))


def backward(model):
    """Names in the order in which their gradients come."""
    came = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda _, n=n: came.append(n))
        for n, p in model.named_parameters()
    ]
    model(torch.ones(1, requires_grad=True)).sum().backward()
    for handle in handles:
        handle.remove()
    return came


def test_parameters_have_the_names_and_sizes_of_the_trace_and_its_order():
    model = ReplayedModel(THREE)
    assert {n: p.numel() for n, p in model.named_parameters()} == {t.name: t.elements for t in THREE.tensors}
    assert backward(model) == [t.name for t in THREE.tensors]


def test_gradients_differ_between_steps_and_seeds():
    def first(model):
        model.zero_grad()
        backward(model)
        return model.get_parameter("fc.weight").grad.clone()

    model, other = ReplayedModel(THREE), ReplayedModel(THREE, seed=1)
    one, two = first(model), first(model)
    assert not torch.equal(one, two) and not torch.equal(one, first(other))
    assert torch.isfinite(one).all() and one.std() > 0


@pytest.fixture
def clock(monkeypatch):
    """A clock that only sleeping moves, 60 us too far each time."""
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "perf_counter", lambda: sum(slept) + 60e-6 * len(slept))
    return slept


def test_tiny_gaps_are_slept_together_and_what_took_too_long_is_taken_off(clock):
    model = ReplayedModel(trace(*((str(i), 1, 90) for i in range(100))), forward_share=0.5)
    backward(model)
    assert clock[0] == pytest.approx(4.5e-3)
    assert len(clock) < 50 and min(clock) >= 200e-6
    whole = time.perf_counter()
    assert whole == pytest.approx(1.5 * 9e-3, abs=2 * 200e-6)


def test_what_a_hook_does_comes_on_top(clock):
    model = ReplayedModel(trace(("a", 1, 1_000), ("b", 1, 1_000)), forward_share=0)
    model.a.register_post_accumulate_grad_hook(lambda _: time.sleep(0.5))
    backward(model)
    assert time.perf_counter() == pytest.approx(0.502, abs=4e-4)


def test_scaled_divides_elements_and_keeps_times():
    small = scale_trace(THREE, 10)
    assert [t.elements for t in small.tensors] == [1, 4, 1]
    assert [t.gap_us for t in small.tensors] == [t.gap_us for t in THREE.tensors]
    with pytest.raises(LabError, match="scale is 0"):
        scale_trace(THREE, 0)


def test_a_name_that_is_a_module_as_well_is_refused():
    with pytest.raises(LabError, match=r"'a\.b'"):
        ReplayedModel(trace(("a", 1, 0), ("a.b", 1, 0)))
    with pytest.raises(LabError, match="forward_share is -1"):
        ReplayedModel(THREE, forward_share=-1)
