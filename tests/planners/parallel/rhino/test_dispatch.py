"""Rows sorted by their expert in microbatches: what is followed, and what is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.runtime.parallel.compared import compare
from wirewise.errors import PlanError
from wirewise.planners.parallel.rhino.accumulation import accumulate
from wirewise.runtime.joint_graph import capture_step

ROWS, WIDTH = 12, 6


class Sorted(nn.Module):
    """Rows by their expert, changed, and put back or not."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way, self.gate, self.inside = way, nn.Linear(WIDTH, 4), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        scores, keys = self.gate(x).topk(2, dim=-1)
        order = torch.sort(keys.view(-1))[1]
        rows = x[order // 2]
        made = torch.tanh(self.inside(rows))
        return WAYS[self.way](x, order, rows, made) * scores.sum(1, keepdim=True)


def put_back(x, order, rows, made):
    return made[torch.argsort(order)].view(-1, 2, WIDTH).sum(1)


def added_to_tokens(x, order, rows, made):
    return torch.zeros_like(x).index_add(0, order // 2, made)


def written_back(x, order, rows, made):
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel())
    return (rows + made)[back].view(-1, 2, WIDTH).sum(1)


def summed(x, order, rows, made):
    return x * 0 + made.sum(0)


def by_which_copy(x, order, rows, made):
    return torch.zeros_like(x).index_add(0, order // 2, made * (order % 2).unsqueeze(1))


def by_number(x, order, rows, made):
    return torch.zeros_like(x).index_add(0, order // 2, made * order.unsqueeze(1))


def with_other_rows(x, order, rows, made):
    return (made + x.repeat_interleave(2, 0))[torch.argsort(order)].view(-1, 2, WIDTH).sum(1)


def neighbours(x, order, rows, made):
    return made.view(-1, 2, WIDTH).sum(1)


def left_sorted(x, order, rows, made):
    return made[::2] * x


def numbered(x, order, rows, made):
    return torch.zeros_like(x[:, 0]).index_add(0, order // 2, made[:, 0] * torch.arange(order.numel()))[
        :, None
    ]


RIGHT = (put_back, added_to_tokens, written_back, by_which_copy)
WRONG = (summed, by_number, with_other_rows, neighbours, left_sorted, numbered)
WAYS = {one.__name__: one for one in (*RIGHT, *WRONG)}


def square(model, inputs):
    return model(*inputs).square().mean()


@pytest.mark.parametrize("way", [one.__name__ for one in RIGHT])
def test_rows_that_are_put_back_are_right_in_microbatches(way):
    """Loss and gradients of two microbatches on two ranks are those of eager autograd of the batch."""
    compare(Sorted(way), (torch.randn(ROWS, WIDTH),), square, mesh=(2,), microbatches=2)


@pytest.mark.parametrize("way", [one.__name__ for one in WRONG])
def test_what_depends_on_the_order_of_the_batch_is_refused(way):
    step = capture_step(Sorted(way), (torch.randn(ROWS, WIDTH),), square)
    with pytest.raises(PlanError, match="microbatch"):
        accumulate(step.graph, 2)
