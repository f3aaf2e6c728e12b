"""The models to split: a loss, gradients of every parameter, and the same weights each time."""

from __future__ import annotations

import pytest
import torch

from wirewise_papers.parallel_models import MODELS, moe


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name):
    model, inputs = MODELS[name]()
    model(*inputs).backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_batch_are_the_same_and_the_caller_keeps_its_random_numbers(name):
    state = torch.get_rng_state()
    first, again = MODELS[name](seed=3), MODELS[name](seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.model(*first.inputs), again.model(*again.inputs))


def test_experts_take_no_more_tokens_than_they_have_room_for():
    """Experts with room for all tokens give what each token's own expert gives."""
    model, _ = moe(length=16, capacity=16)
    experts, x = model.blocks[0].mlp, torch.randn(2, 16, 32)
    weight, chosen = experts.gate(x).softmax(-1).max(-1)
    wanted = torch.stack(
        [
            torch.nn.functional.gelu(row @ experts.up[e]) @ experts.down[e] * w
            for row, e, w in zip(x.flatten(0, 1), chosen.flatten(), weight.flatten(), strict=True)
        ]
    )
    torch.testing.assert_close(experts(x).flatten(0, 1), wanted)
    tight, _ = moe(length=16, capacity=1)
    tight.blocks[0].mlp.load_state_dict(experts.state_dict())
    passed_by = (tight.blocks[0].mlp(x).abs().sum(-1) == 0).sum()
    assert int(passed_by) == 32 - sum(len(set(row.tolist())) for row in chosen)
