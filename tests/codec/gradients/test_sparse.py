"""Some elements of each segment: which ones, and what stays."""

import numpy as np
import pytest
import torch

from tests.codec.gradients.groups import (
    codec_of,
    decode,
    encode,
    normal,
    ratio_of,
    sent,
    whole,
)


def test_a7_sparse_codecs_clear_what_was_sent_and_nothing_else():
    gradient, memory = normal(1000, 1), normal(1000, 2)
    expected = gradient + memory
    for name in ("topk", "randomk"):
        kept = memory.clone()
        result = sent(codec_of(name, ratio=0.05), gradient, memory=kept)
        places = result != 0
        assert int(places.sum()) == 50 and not kept[places].any()
        assert torch.equal(kept[~places], expected[~places])
        assert torch.equal(result[places], expected[places])


@pytest.mark.parametrize("name", ["topk", "dgc"])
def test_a7_indices_of_several_ranks_add_up(name):
    codec, hot = codec_of(name), torch.zeros(100)
    hot[42] = 1.5
    assert decode(codec, [encode(codec, hot)] * 4, whole(hot))[42] == 6.0


@pytest.mark.parametrize("ratio", [0.01, 0.4, 0.7, 1.0])
def test_a7_random_k_draws_alike_on_all_ranks_and_each_element_once(ratio):
    codec, count = codec_of("randomk", ratio=ratio), max(1, int(ratio * 1000))
    places = [sent(codec, torch.ones(1000), seed=5, step=3, rank=r) for r in range(3)]
    assert int((places[0] == 1).sum()) == count
    assert torch.equal(places[0], places[1]) and torch.equal(places[0], places[2])
    if ratio < 1:
        assert not torch.equal(places[0], sent(codec, torch.ones(1000), seed=5, step=4))


def test_a2_random_k_keeps_its_share():
    codec, v = codec_of("randomk", ratio=0.1), normal(500)
    errors = [ratio_of(v, sent(codec, v, step=step)) for step in range(2000)]
    assert np.mean(errors) == pytest.approx(0.9, rel=0.02)
