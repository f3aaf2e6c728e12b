"""Sizes, contraction, bias and sums of the gradient codecs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.gradients.groups import (
    FEEDBACK,
    OPTIONS,
    codec_of,
    decode,
    encode,
    memory_of,
    normal,
    ratio_of,
    rest_of,
    sent,
    vectors,
    whole,
    wire_bytes,
)
from wirewise.codec.gradients import CODECS, Segments, make
from wirewise.errors import CodecError, InputError

SIZES = (1, 7, 8, 9, 1000, (1 << 16) + 3, 1 << 20)


def inputs(size):
    hot = torch.zeros(size)
    hot[size // 2] = -3.0
    signs = torch.where(torch.arange(size) % 3 == 0, -1.0, 1.0)
    return {
        "normal": normal(size),
        "zero": torch.zeros(size),
        "one-hot": hot,
        "tiny": 1e-38 * signs,
        "huge": 1e38 * signs,
    }


@pytest.mark.sweep
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPTIONS)
def test_a1_sizes_are_exact_and_all_inputs_stay_finite(name, size):
    codec, segments = codec_of(name), Segments([size])
    assert codec.size_bytes(segments) == wire_bytes(name, size)
    for gradient in inputs(size).values():
        memory = memory_of(codec, size) if name in FEEDBACK else None
        # Bytes behind the payload stay as they are, and all of the payload is written.
        buffers = [
            torch.full((wire_bytes(name, size) + 1,), fill, dtype=torch.uint8) for fill in (0x5A, 0xA5)
        ]
        for buffer in buffers:
            kept = None if memory is None else memory.clone()
            encode(codec, gradient, segments, kept, out=buffer[:-1])
        assert torch.equal(buffers[0][:-1], buffers[1][:-1]) and buffers[0][-1] == 0x5A
        result = decode(codec, [buffers[0][:-1].clone()], segments)
        assert result.isfinite().all()
        if kept is not None:
            torch.testing.assert_close(
                result + rest_of(kept), gradient, rtol=1e-5, atol=1e-6 * float(result.abs().max())
            )


@pytest.mark.parametrize("name", ["topk", "dgc", "efsign", "onebit"])
def test_a2_contraction_on_a_thousand_vectors(name):
    codec, size = codec_of(name), 200
    for v in vectors(1000, size):
        error, wide = ratio_of(v, sent(codec, v)), v.double()
        closed = 1 - float(wide.abs().sum() ** 2 / (size * (wide**2).sum()))
        if name in ("topk", "dgc"):
            assert error <= 1 - 2 / size + 1e-6
        elif name == "efsign":
            assert error == pytest.approx(closed, abs=1e-5)
        else:
            # Two levels of each sign's own fit at least as well as one magnitude for both.
            assert error <= closed + 1e-6


def draws(codec, v, count, segments=None):
    segments = segments or whole(v)
    return torch.stack([sent(codec, v, segments, step=step) for step in range(count)]).double()


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", ["qsgd", "terngrad", "randomk", "int8", "int4"])
def test_a3_unbiased_with_the_variance_of_theory(name):
    size, count = 300, 4000
    v = normal(size, 3)
    options = {"qsgd": {"levels": 4}, "terngrad": {}, "randomk": {"ratio": 0.1, "scaled": True}}
    options = options.get(name, {"rounding": "stochastic"})
    found, wide = draws(codec_of(name, **options), v, count), v.double()
    spread = found.std(dim=0) / math.sqrt(count)
    off = (found.mean(dim=0) - wide).abs()
    assert (off <= 4 * spread + 1e-6).double().mean() >= 0.99
    squares, top = float((wide**2).sum()), float(wide.abs().max())
    bound = {
        # A quarter of the squared step of each element.
        "int8": size / 4 * (1.01 * top / 127) ** 2,
        "int4": size / 4 * (1.01 * top / 7) ** 2,
        "qsgd": min(size / 16, math.sqrt(size) / 4) * squares,
        "terngrad": float((wide.abs() * (wide.abs().max() - wide.abs())).sum()),
        "randomk": 9 * squares,
    }[name]
    assert float(((found - wide) ** 2).sum(dim=1).mean()) <= 1.02 * bound


def test_a3_ranks_round_independently_and_steps_differ():
    v = normal(1000)
    for name in ("qsgd", "terngrad", "int8", "int4"):
        codec = codec_of(name, **({"rounding": "stochastic"} if name.startswith("int") else {}))
        payloads = [encode(codec, v, rank=r, step=s) for r, s in ((0, 0), (1, 0), (0, 1))]
        assert not torch.equal(payloads[0], payloads[1]) and not torch.equal(payloads[0], payloads[2])


@pytest.mark.parametrize("name", OPTIONS)
def test_a4_a_sum_is_the_sum_of_what_each_rank_sent(name):
    segments, codec = Segments([5000, 1, 777], block=600), codec_of(name)
    # Ranks of very unequal scale, whose largest elements lie partly at the same places.
    gradients = [10.0**r * (normal(segments.total, r) + 3 * normal(segments.total, 9)) for r in range(5)]
    payloads = [encode(codec, g, segments, rank=r) for r, g in enumerate(gradients)]
    alone = torch.stack([decode(codec, [p], segments) for p in payloads]).double()
    expected = alone.sum(dim=0)
    if name in ("signsgd", "signum"):
        expected = expected.sign()
    total = decode(codec, payloads, segments)
    assert ((total - expected).abs() <= 1e-6 * alone.abs().sum(dim=0)).all()
    # All ranks get the same bits, from a list or from the matrix of an all-gather, and by either implementation;
    # products agree to rounding.
    matrix = torch.stack(payloads)
    assert torch.equal(decode(codec, matrix, segments), total)
    off = 1e-6 * alone.abs().max() if name == "powersgd" else 0.0
    assert ((decode(codec_of(name, "torch"), matrix, segments) - total).abs() <= off).all()
    half = decode(codec, matrix, segments, scale=0.5)
    torch.testing.assert_close(half, 0.5 * total)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32, min_value=-(2.0**60), max_value=2.0**60), min_size=1, max_size=50),
    st.sampled_from(FEEDBACK),
    st.integers(1, 60),
)
def test_what_is_sent_and_what_stays_make_up_the_gradient(values, name, block):
    v = torch.tensor(values, dtype=torch.float32)
    codec, segments = codec_of(name), Segments([len(v)], block=block)
    memory = memory_of(codec, len(v))
    result = sent(codec, v, segments, memory)
    size = max(float(v.abs().max()), float(result.abs().max()))
    assert ((result + rest_of(memory) - v).abs() <= 1e-6 * size).all()


@pytest.mark.sweep
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("implementation", ["numba", "torch"])
@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_not_finite_is_named_and_the_memory_kept(name, implementation, bad):
    codec, segments = codec_of(name, implementation), Segments([40, 50, 60], ids=[7, 8, 9])
    gradient = normal(segments.total)
    gradient[60] = bad
    memory = memory_of(codec, segments.total, 1, 2) if codec.memories else None
    before = None if memory is None else memory.clone()
    with pytest.raises(CodecError, match=r"segment 1 \(tensor 8"):
        encode(codec, gradient, segments, memory)
    assert memory is None or torch.equal(memory, before)


def test_wrong_arguments_say_what_was_expected():
    codec, segments, v = codec_of("efsign"), Segments([10]), normal(10)
    out = torch.empty(codec.size_bytes(segments), dtype=torch.uint8)
    for gradient, memory, target in (
        (v[1:], None, out),
        (v.double(), None, out),
        (v, v[1:], out),
        (v, None, out[1:]),
    ):
        with pytest.raises(CodecError, match="expected"):
            codec.encode(gradient, memory, segments, target)
    with pytest.raises(CodecError, match="keeps no memory"):
        encode(codec_of("signsgd"), v, memory=v.clone())
    with pytest.raises(CodecError, match="expected 0 to 9"):
        decode(codec_of("topk"), [encode(codec_of("topk"), normal(200), memory=None)[:8] | 0x40], segments)
    with pytest.raises(CodecError, match="expected at most 1"):
        decode(codec_of("dgc"), [encode(codec_of("dgc"), v) | 0x40], segments)
    with pytest.raises(CodecError, match="keeps residual and momentum: expected 1 or 2"):
        encode(codec_of("dgc"), v, memory=torch.zeros(3, 10))
    for name, options in (
        ("topk", {"ratio": 0.0}),
        ("qsgd", {"levels": 128}),
        ("signum", {"momentum": 1.0}),
        ("x", {}),
        ("fp16", {"k": 1}),
        ("dgc", {"momentum": 1.0}),
        ("int8", {"rounding": "up"}),
        ("powersgd", {"rank": 0}),
    ):
        with pytest.raises(InputError):
            make(name, **options)
    for sizes, options in (
        ([], {}),
        ([0, 1], {}),
        ([1], {"block": 0}),
        ([1], {"ids": [1, 2]}),
        ([1 << 31], {}),
        ([6], {"shapes": [(2, 4)]}),
    ):
        with pytest.raises(InputError, match="expected"):
            Segments(sizes, **options)


def test_every_codec_is_tested():
    assert set(CODECS) == set(OPTIONS)
