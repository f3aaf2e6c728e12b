"""Copies of gradients into flat buckets, checked where they are large."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wirewise.runtime.data_parallel import flat


def test_copies_keep_the_layout_and_leave_to_torch_what_lies_otherwise():
    conv = nn.Conv2d(64, 128, 2).to(memory_format=torch.channels_last)
    slots = [flat.Slot(name, p, p.numel()) for name, p in conv.named_parameters()]
    (bucket,) = flat.flat_buckets([slots], [1])
    bucket.checks = True
    for layout, finite in ((torch.channels_last, True), (torch.contiguous_format, False)):
        gradient = torch.randn(128, 64, 2, 2).contiguous(memory_format=layout)
        conv.weight.grad, conv.bias.grad = gradient.clone(), torch.ones(128)
        bucket.begin()
        for parameter in conv.parameters():
            bucket.own(parameter)
        assert torch.equal(conv.weight.grad, gradient) and conv.bias.grad.tolist() == [1.0] * 128
        assert conv.weight.grad.data_ptr() == bucket.flats[0].data_ptr()
        assert bucket.is_finite(0) == finite


def test_large_gradients_are_left_to_torch_where_it_has_several_threads(monkeypatch):
    parameter = nn.Parameter(torch.zeros(40_000))
    (bucket,) = flat.flat_buckets([[flat.Slot("a", parameter, 40_000)]], [1])
    bucket.checks = True
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        parameter.grad = torch.randn(40_000)
        bucket.begin()
        bucket.own(parameter)
        assert bucket.is_finite(0) == (threads == 1)


@pytest.mark.parametrize("bad", range(5))
def test_gradients_of_all_sizes_are_seen(bad):
    sizes = (20_000, 3, 50, 16_384, 1)
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    slots = [flat.Slot(str(i), p, p.numel()) for i, p in enumerate(parameters)]
    (bucket,) = flat.flat_buckets([slots], [1])
    bucket.checks = True
    for value in (1.0, torch.nan, 2.0):
        bucket.begin()
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.full_like(parameter, value if number == bad else 0.5)
            bucket.own(parameter)
        assert bucket.is_finite(0) == (value == value)
        expected = torch.cat([torch.full((s,), value if i == bad else 0.5) for i, s in enumerate(sizes)])
        assert torch.equal(bucket.flats[0].nan_to_num(), expected.nan_to_num())


def test_pieces_of_a_gradient_are_seen_in_all_their_buckets():
    parameter = nn.Parameter(torch.zeros(40_000))
    slots = [[flat.Slot("a.0", parameter, 30_000)], [flat.Slot("a.1", parameter, 10_000)]]
    buckets = flat.flat_buckets(slots, [1, 1])
    for value in (1.0, torch.inf, 1.0):
        parameter.grad = torch.ones(40_000)
        parameter.grad[35_000] = value
        for bucket in buckets:
            bucket.checks = True
            bucket.begin()
        for bucket in buckets:
            bucket.own(parameter)
        alone = torch.get_num_threads() == 1
        assert [bucket.is_finite(0) for bucket in buckets] == [alone and value == 1.0] * 2
