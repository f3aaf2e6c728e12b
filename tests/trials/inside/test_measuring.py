"""Steps of an unmodified script, measured."""

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.trials.inside import Measure
from wirewise.trials.inside.measuring import _Script


@pytest.mark.parametrize("optimizers", [1, 2])
def test_forward_passes_belong_to_their_steps(optimizers):
    net = nn.Linear(4, 4)
    model = SimpleNamespace(module=net, require_backward_grad_sync=True)
    script = _Script(Measure(file="", codecs=(), warmup=100, steps=3))
    script.begin(model)
    for _ in range(5):
        for micro in range(4):
            model.require_backward_grad_sync = micro == 3
            time.sleep(0.002)
            net(torch.ones(1, 4)).sum().backward()
        with torch.no_grad():
            net(torch.ones(1, 4))
        for _ in range(optimizers):
            script.before_step()
            time.sleep(0.001)
            script.after_step()
    steps, forwards = script._steps_s(), script._forward_s()
    assert len(steps) == len(forwards) == 3
    # All micro-steps before the last one, and the optimizers; the last backward pass is left.
    for step, forward in zip(steps, forwards, strict=True):
        assert 4 * 0.002 + optimizers * 0.001 <= forward < step
    assert {t.name for t in script.gradients.trace(3).tensors} == {"weight", "bias"}


def test_gradients_exchanged_in_every_micro_step_are_refused():
    net = nn.Linear(4, 4)
    script = _Script(Measure(file="", codecs=(), warmup=100, steps=2))
    script.begin(SimpleNamespace(module=net, require_backward_grad_sync=True))
    for _ in range(3):
        for _ in range(2):
            net(torch.ones(1, 4)).sum().backward()
        script.before_step()
        script.after_step()
    with pytest.raises(InputError, match=r"2 backward passes, of which 2 exchange .* under no_sync"):
        script._forward_s()
