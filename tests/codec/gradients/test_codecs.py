"""Sizes, contraction, bias and sums of the gradient codecs."""

import math

import numpy as np
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
    rest_of,
    sent,
    whole,
)
from wirewise.codec.gradients import CODECS, Segments, make
from wirewise.errors import CodecError, InputError

SIZES = (1, 7, 8, 9, 1000, (1 << 16) + 3, 1 << 20)


def wire_bytes(name, x):
    """The table of sizes, written down once more."""
    k, side = max(1, math.floor(0.01 * x)), math.ceil(math.sqrt(x))
    blocks, sides = 2 * math.ceil(x / 256), side + math.ceil(x / side)
    return {
        "fp16": 2 * x,
        "bf16": 2 * x,
        "topk": 8 * k,
        "randomk": 4 * k,
        "efsign": math.ceil(x / 8) + 4,
        "signsgd": math.ceil(x / 8),
        "signum": math.ceil(x / 8),
        "onebit": math.ceil(x / 8) + 8,
        "qsgd": x + 4,
        "terngrad": math.ceil(x / 4) + 4,
        "int8": x + blocks,
        "int4": math.ceil(x / 2) + blocks,
        "dgc": 8 * min(max(1, math.floor(1.3 * k)), x) + 4,
        "powersgd": 4 * min(min(2, side) * sides, x),
    }[name]


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


def test_a1_sizes_add_up_over_segments():
    segments = Segments([1, 7, 8, 9, 1000], block=100)
    for name in OPTIONS:
        if name == "powersgd":
            # It takes whole tensors.
            assert codec_of(name).size_bytes(segments) == sum(wire_bytes(name, x) for x in (1, 7, 8, 9, 1000))
            continue
        assert codec_of(name).size_bytes(segments) == sum(wire_bytes(name, int(x)) for x in segments.sizes)


@pytest.mark.parametrize(("name", "error"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
def test_a1_casts_round_to_nearest(name, error):
    v = normal(10_000) * 100
    v = v[v.abs() > 1e-4]
    assert ((sent(codec_of(name), v) - v).abs() <= error * v.abs()).all()


def vectors(count, size):
    random = np.random.default_rng(0)
    makers = (
        random.standard_normal,
        random.standard_cauchy,
        lambda n: random.laplace(size=n),
        lambda n: random.standard_t(2, n),
    )
    for i in range(count):
        yield torch.from_numpy(makers[i % 4](size).astype(np.float32))


def ratio_of(v, decoded):
    v, decoded = v.double(), decoded.double()
    return float(((v - decoded) ** 2).sum() / (v**2).sum())


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


@pytest.mark.parametrize(("name", "error"), [("int8", 1 / 254), ("int4", 1 / 14)])
def test_a2_blocks_round_to_half_a_step_of_their_own(name, error):
    v = normal(2000) * torch.logspace(-6, 6, 2000)
    peaks = torch.nn.functional.pad(v.abs(), (0, 48)).view(-1, 256).amax(dim=1).repeat_interleave(256)[:2000]
    # A step is rounded up to bfloat16.
    assert ((sent(codec_of(name), v) - v).abs() <= 1.01 * error * peaks).all()


def test_a2_sign_of_a_gaussian_keeps_what_theory_says():
    assert ratio_of(normal(1 << 20), sent(codec_of("efsign"), normal(1 << 20))) == pytest.approx(
        0.363, abs=2e-3
    )


def test_a2_random_k_keeps_its_share():
    codec, v = codec_of("randomk", ratio=0.1), normal(500)
    errors = [ratio_of(v, sent(codec, v, step=step)) for step in range(2000)]
    assert np.mean(errors) == pytest.approx(0.9, rel=0.02)


def draws(codec, v, count, segments=None):
    segments = segments or whole(v)
    return torch.stack([sent(codec, v, segments, step=step) for step in range(count)]).double()


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


def test_a3_blocks_bound_the_error_of_qsgd():
    v = normal(100_000)
    assert ratio_of(v, sent(codec_of("qsgd"), v, Segments([len(v)], block=512))) <= 0.125
    assert ratio_of(v, sent(codec_of("qsgd"), v)) > 1


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


def test_majority_decides_and_ties_are_zero():
    segments = Segments([3])
    votes = [
        torch.tensor(v) for v in ([1.0, -2.0, 0.5], [3.0, -1.0, -0.1], [-1.0, -1.0, 5.0], [2.0, 9.0, -1.0])
    ]
    codec = codec_of("signsgd")
    result = decode(codec, [encode(codec, v) for v in votes], segments, scale=0.1)
    torch.testing.assert_close(result, torch.tensor([0.1, -0.1, 0.0]))


def test_signum_votes_by_its_momentum():
    codec, momentum = codec_of("signum", momentum=0.5), torch.tensor([4.0, -4.0, 0.0])
    payload = encode(codec, torch.tensor([-1.0, 1.0, -2.0]), memory=momentum)
    assert momentum.tolist() == [1.5, -1.5, -1.0]
    assert decode(codec, [payload], Segments([3])).tolist() == [1.0, -1.0, -1.0]


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
