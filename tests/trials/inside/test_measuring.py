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
    own = torch.optim.SGD(net.parameters(), 0.1)
    # Of parameters that no wrapped model has.
    other = torch.optim.SGD([torch.zeros(1)], 0.1)
    for _ in range(5):
        for micro in range(4):
            model.require_backward_grad_sync = micro == 3
            time.sleep(0.002)
            net(torch.ones(1, 4)).sum().backward()
        with torch.no_grad():
            net(torch.ones(1, 4))
        for optimizer in (own, other)[:optimizers]:
            script.before_step(optimizer)
            time.sleep(0.001)
            script.after_step(optimizer)
    steps, forwards = script._steps_s(), script._forward_s()
    assert len(steps) == len(forwards) == 3
    # All micro-steps before the last one, and the optimizers; the last backward pass is left.
    for step, forward in zip(steps, forwards, strict=True):
        assert 4 * 0.002 + optimizers * 0.001 <= forward < step
    assert {t.name for t in script.main.gradients.trace(3).tensors} == {"weight", "bias"}


def test_gradients_exchanged_in_every_micro_step_are_refused():
    net = nn.Linear(4, 4)
    script = _Script(Measure(file="", codecs=(), warmup=100, steps=2))
    script.begin(SimpleNamespace(module=net, require_backward_grad_sync=True))
    own = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        for _ in range(2):
            net(torch.ones(1, 4)).sum().backward()
        script.before_step(own)
        script.after_step(own)
    with pytest.raises(InputError, match=r"2 backward passes, of which 2 exchange .* under no_sync"):
        script._forward_s()


def test_the_model_with_most_gradients_is_measured_where_two_learn_in_turns():
    small, large = nn.Linear(4, 4), nn.Linear(4, 40)
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (small, large)]
    script = _Script(Measure(file="", codecs=(), warmup=100, steps=3))
    for net in (small, large):
        script.begin(SimpleNamespace(module=net, require_backward_grad_sync=True))
    for _ in range(5):
        # The large one's output is made before the small one learns, and used behind, as in a GAN.
        made = large(torch.ones(1, 4))
        for net, optimizer in zip((small, large), optimizers, strict=True):
            script_loss = small(torch.ones(1, 4)).sum() if net is small else made.sum()
            time.sleep(0.004 if net is small else 0.0)
            script_loss.backward()
            script.before_step(optimizer)
            script.after_step(optimizer)
    assert script.main.model.module is large and len(script.main.ends) == 5
    assert all(0.004 <= step for step in script._steps_s())
    assert {t.elements for t in script.main.gradients.trace(3).tensors} == {160, 40}
    assert all(len(one.ends) == 5 for one in script.models)
