"""Models with state that a tracer does not see: refused by the line that changes it, however they are traced."""

from __future__ import annotations

import gc
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.data_parallel.capture import capture
from wirewise.runtime.joint_graph import capture_step
from wirewise.runtime.pipeline import LayerGraph

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
CALLS = 0
NUMBERS = itertools.count()


class Base(nn.Module):
    """A layer whose output a factor scales."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) * self.factor()

    def factor(self):
        return 1.0


class Attribute(Base):
    """Counts in an attribute."""

    steps = 0

    def factor(self):
        self.steps += 1
        return min(1.0, self.steps / 100)


class Listed(Base):
    """Counts in a list."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def factor(self):
        self.seen.append(len(self.seen))
        return 1.0 / len(self.seen)


class OfClass(Base):
    """Counts for all modules of the class."""

    total = 0

    def factor(self):
        OfClass.total += 1
        return OfClass.total


class Global(Base):
    """Counts in a global."""

    def forward(self, x):
        global CALLS
        CALLS += 1
        return self.layer(x) * CALLS


class Numbered(Base):
    """Takes the next number."""

    def forward(self, x):
        return self.layer(x) * next(NUMBERS)


class Random(Base):
    """Draws by Python."""

    def factor(self):
        return random.choice([0.5, 1.0, 2.0])


class Own(Base):
    """Draws by a generator of its own."""

    def __init__(self):
        super().__init__()
        self.random = random.Random(0)

    def factor(self):
        return self.random.random()


class Numpy(Base):
    """Draws by NumPy."""

    def factor(self):
        return float(np.random.rand())  # noqa: NPY002 - as users write it


class Generated(Base):
    """Draws by a generator of NumPy."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(0)

    def factor(self):
        return float(self.random.uniform())


CHANGING = {
    Attribute: r"changes 0\.steps at .*: self\.steps \+= 1",
    Listed: r"changes 0\.seen at .*: self\.seen\.append",
    OfClass: r"changes OfClass\.total at .*: OfClass\.total \+= 1",
    Global: r"changes .*CALLS at .*: CALLS \+= 1",
    Numbered: r"changes .*NUMBERS at .*: return self\.layer\(x\) \* next\(NUMBERS\)",
    Random: r"changes Python's random numbers .* at .*: return random\.choice",
    Own: r"changes 0\.random at .*: return self\.random\.random\(\)",
    Numpy: r"changes NumPy's random numbers .* at .*: return float\(np\.random\.rand",
    Generated: r"changes 0\.random at .*: return float\(self\.random\.uniform",
}


def loss(model, inputs):
    return model(inputs).square().mean()


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
def test_what_a_captured_step_would_freeze_is_refused_with_its_line(kind):
    for trace in (
        lambda model: capture_step(model, X, loss),
        lambda model: capture(model, loss, X),
    ):
        with pytest.raises(InputError, match=CHANGING[kind]):
            trace(nn.Sequential(kind()))


def test_the_line_is_the_models_where_garbage_is_collected_meanwhile():
    thresholds = gc.get_threshold()

    def collected(phase, info):
        return phase, info

    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        with pytest.raises(InputError, match=CHANGING[Numbered]):
            capture(nn.Sequential(Numbered()), loss, X)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collected)


def test_a_loss_that_counts_is_refused():
    steps = [0]

    def counting(model, inputs):
        steps[0] += 1
        return loss(model, inputs) * steps[0]

    with pytest.raises(InputError, match=r"changes .*counting.steps at .*: steps\[0\] \+= 1"):
        capture_step(nn.Sequential(Base()), X, counting)


class Followed(nn.Module):
    """Two layers of which Python draws how often the second is taken."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        for _ in range(random.randrange(1, 9)):
            x = self.second(x)
        return x


def test_a_model_that_is_followed_layer_by_layer_is_refused_too():
    with pytest.raises(InputError, match=r"changes Python.s random numbers .* at .*: for _ in range"):
        LayerGraph(Followed())


class Kept(Base):
    """Keeps what it made, as for a look at it, and a table of its first pass."""

    def __init__(self):
        super().__init__()
        self.last, self.size = None, None

    def forward(self, x):
        if self.size is None:
            self.size = x.shape[1]
        self.last = self.layer(x) / self.size
        return self.last


def test_what_a_pass_keeps_and_never_reads_before_is_no_state():
    model = nn.Sequential(Kept())
    step = capture_step(model, X, loss)
    assert model[0].last is None and model[0].size is None  # as before the capture
    found, *_ = step.module(*step.inputs(model, X))
    torch.testing.assert_close(found, loss(model, X).detach())


class Noisy(nn.Module):
    """Branches by a value, and drops out in both branches."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.positive(x) if x.sum() > 0 else self.negative(x))


def test_a_module_taken_as_a_whole_has_the_random_numbers_of_its_forward_pass_in_the_backward_pass():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Dropout(0.2), nn.Linear(4, 4))
    step = capture_step(model, X, loss)
    torch.manual_seed(5)
    expected = loss(model, X)
    expected.backward()
    torch.manual_seed(5)
    found, *gradients = step.module(*step.inputs(model, X))
    torch.testing.assert_close(found, expected.detach())
    named = dict(model.named_parameters())
    for name, gradient in zip(step.graph.gradients, gradients, strict=False):
        wanted = named[name].grad
        # Of the branch that was not taken autograd has no gradient; the operator makes zeros.
        torch.testing.assert_close(gradient, torch.zeros_like(gradient) if wanted is None else wanted)


class Sometimes(nn.Module):
    """Draws random numbers in one branch alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else nn.functional.dropout(self.layer(x), 0.5)


class Counting(Sometimes):
    """Counts, and branches by a value."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def test_modules_taken_as_wholes_change_nothing_but_tensors():
    with pytest.raises(
        InputError, match=r"module 1 \(Counting\) cannot be traced, and its forward pass changes calls"
    ):
        capture_step(nn.Sequential(nn.Identity(), Counting(), nn.Linear(4, 4)), X, loss)
    model = nn.Sequential(nn.Identity(), Sometimes(), nn.Linear(4, 4))
    step = capture_step(model, X.abs(), loss)
    step.module(*step.inputs(model, X.abs()))
    with pytest.raises(
        InputError, match="module 1 draws random numbers, which it did not when it was captured"
    ):
        step.module(*step.inputs(model, -X.abs()))
