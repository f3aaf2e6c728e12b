"""Deep gradient compression against its definition."""

import pytest
import torch

from tests.codec.gradients.groups import (
    codec_of,
    encode,
    normal,
    ratio_of,
    sent,
    vectors,
)
from wirewise.codec.gradients import Residuals, Segments, resize


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("implementation", ["numba", "torch"])
def test_momentum_and_residual_follow_the_definition(implementation, masking):
    codec = codec_of("dgc", implementation, ratio=0.05, momentum=0.9, masking=masking)
    memory, u, w = torch.zeros(2, 400), torch.zeros(400), torch.zeros(400)
    for step in range(20):
        gradient = normal(400, step)
        result = sent(codec, gradient, memory=memory, step=step)
        u = 0.9 * u + gradient
        w = w + u
        chosen = w.abs() >= w.abs().topk(20).values[-1]
        torch.testing.assert_close(result, torch.where(chosen, w, 0.0))
        u, w = torch.where(chosen & masking, 0.0, u), torch.where(chosen, 0.0, w)
        torch.testing.assert_close(memory, torch.stack([w, u]))


@pytest.mark.parametrize("size", [400, 40_000])
def test_without_masking_everything_is_sent_as_by_momentum(size):
    codec, memory = codec_of("dgc", ratio=0.05, momentum=0.9), torch.zeros(2, size)
    u, moved, total = torch.zeros(size), torch.zeros(size), torch.zeros(size)
    for step in range(20):
        gradient = normal(size, step)
        total += sent(codec, gradient, memory=memory, step=step)
        u = 0.9 * u + gradient
        moved += u
    torch.testing.assert_close(total + memory[0], moved)


def test_with_all_elements_sent_masking_leaves_nothing_of_momentum():
    for masking, share in ((True, 0.0), (False, 0.9)):
        codec, memory = codec_of("dgc", ratio=1.0, momentum=0.9, masking=masking), torch.zeros(2, 50)
        first, second = (sent(codec, normal(50, step), memory=memory, step=step) for step in (0, 1))
        torch.testing.assert_close(second, share * first + normal(50, 1))


def test_a_ratio_that_falls_as_in_a_warm_up_is_followed():
    codec, segments, memory = codec_of("dgc", ratio=0.25), Segments([40_000]), torch.zeros(2, 40_000)
    sizes = []
    for step, ratio in enumerate((0.25, 0.0625, 0.01)):
        codec.ratio = ratio
        payload = torch.empty(codec.size_bytes(segments), dtype=torch.uint8)
        codec.encode(normal(40_000, step), memory, segments, payload, step=step)
        out = torch.empty(40_000)
        codec.decode_sum(payload[None], segments, out, step=step)
        assert 0.7 * ratio <= float((out != 0).float().mean()) <= 1.3 * ratio
        sizes.append(len(payload))
    assert sizes == [8 * 13_000 + 4, 8 * 3_250 + 4, 8 * 520 + 4]


def test_a7_the_mask_clears_what_was_sent_and_scales_nothing():
    codec, memory = codec_of("dgc", ratio=0.1, masking=True), torch.stack([normal(50, 1), normal(50, 2)])
    before = memory.clone()
    places = sent(codec, torch.zeros(50), memory=memory) != 0
    assert int(places.sum()) == 5 and not memory[:, places].any()
    # Without momentum the new u is the gradient, 0, and w stays.
    assert torch.equal(memory[0, ~places], before[0, ~places]) and not memory[1].any()


def test_a_residual_alone_is_plain_error_feedback():
    codecs = codec_of("dgc", momentum=0.9), codec_of("dgc", momentum=0.0)
    memories = torch.zeros(400), torch.zeros(2, 400)
    for step in range(5):
        results = [sent(c, normal(400, step), memory=m) for c, m in zip(codecs, memories, strict=True)]
        assert torch.equal(*results) and torch.equal(memories[0], memories[1][0])


def test_sums_beyond_float32_stay_finite():
    memory = torch.full((2, 10), 3e38)
    result = sent(codec_of("dgc", ratio=0.5, momentum=0.9), torch.full((10,), 3e38), memory=memory)
    assert result.max() == torch.finfo(torch.float32).max and memory.isfinite().all()


def test_several_buffers_move_and_resize_by_name():
    sizes = {"a": 3, "b": 5}
    pool = Residuals(sizes, buffers=2)
    pool.flat.copy_(torch.arange(16.0).view(2, 8))
    other = Residuals(dict(reversed(sizes.items())), buffers=2)
    other.load_state_dict(resize([pool.state_dict()] * 2, 3))
    assert torch.equal(other.group(["b"]), torch.arange(16.0).view(2, 8)[:, 3:])
    segments = Segments([3])
    # A list of buffers is a memory too.
    sent(codec_of("dgc", masking=True), torch.ones(3), segments, list(other.group(["a"]).unbind()))
    assert int((other.group(["a"]) == 0).sum()) == 2


@pytest.mark.parametrize("implementation", ["numba", "torch"])
def test_a_payload_need_not_be_aligned(implementation):
    codec, segments, gradient = codec_of("dgc", implementation), Segments([300, 20]), normal(320)
    size, found = codec.size_bytes(segments), []
    for start in range(5):
        out = torch.full((size + 8,), 7, dtype=torch.uint8)
        encode(codec, gradient, segments, out=out[start : start + size])
        assert out[:start].tolist() == [7] * start and out[start + size :].tolist() == [7] * (8 - start)
        found.append(out[start : start + size].clone())
    assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.parametrize("size", [20_000, 1 << 17])
def test_a2_a_sampled_threshold_keeps_its_share_within_bounds(size):
    codec, wanted = codec_of("dgc"), size // 100
    for v in vectors(20, size):
        result = sent(codec, v)
        count = int((result != 0).sum())
        assert 0.7 * wanted <= count <= 1.3 * wanted
        assert ratio_of(v, result) <= 1 - count / size
        # No element that stays is larger than one that is sent.
        assert v[result == 0].abs().max() <= result[result != 0].abs().min()
