"""The numba kernels write the bytes of the reference."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.codec.gradients.groups import OPTIONS, codec_of, decode, encode, memory_of, normal, sent
from wirewise.codec.gradients import Segments

SMALLEST = 2.0**-149
SHAPES = ([1], [7, 1, 9], [4095, 4097, 8192], [40000, 3], [300, 70001])


def same(name, gradient, segments, memory=None, *, options=None, **draw):
    results = []
    for implementation in ("numba", "torch"):
        codec = codec_of(name, implementation, **(options or {}))
        kept = None if memory is None else memory.clone()
        payload = encode(codec, gradient, segments, kept, **draw)
        rows = torch.stack([payload, payload.clone()])
        results.append((payload, kept, decode(codec, rows, segments, scale=0.5, seed=draw.get("seed", 0))))
    (bytes_a, kept_a, sum_a), (bytes_b, kept_b, sum_b) = results
    if name == "powersgd":
        # Of products only the exact value is defined.
        for a, b in zip(*((one[0].view(torch.float32), *one[1:]) for one in results), strict=True):
            assert a is None or (a - b).abs().max() <= 1e-5 * b.abs().max()
        return
    assert torch.equal(bytes_a, bytes_b)
    assert torch.equal(sum_a, sum_b)
    assert memory is None or torch.equal(kept_a, kept_b)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_implementations_agree_to_the_bit(name, sizes):
    for block in (None, 512):
        segments = Segments(sizes, ids=range(5, 5 + len(sizes)), block=block)
        gradient, codec = normal(segments.total, 1), codec_of(name)
        same(name, gradient, segments, seed=3)
        if codec.memories:
            same(name, gradient, segments, memory_of(codec, segments.total, 2, 3), seed=4)


@settings(max_examples=60, deadline=None)
@example("int8", [SMALLEST], 1, 0)
@example("int4", [SMALLEST, 0.0], 9, 0)
@given(
    st.sampled_from(list(OPTIONS)),
    st.lists(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(0, 2**40),
)
def test_implementations_agree_on_any_floats(name, values, block, seed):
    gradient = torch.tensor(values, dtype=torch.float32)
    segments = Segments([len(gradient)], block=block)
    same(name, gradient, segments, seed=seed)
    codec = codec_of(name)
    if codec.memories:
        memory = memory_of(codec, len(gradient))
        memory[...] = gradient.flip(0)
        same(name, gradient, segments, memory, seed=seed)


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.51, 0.9, 1.0])
@pytest.mark.parametrize("name", ["topk", "randomk"])
def test_implementations_agree_at_large_shares(name, ratio):
    segments = Segments([1, 2, 50, 3001])
    gradient = normal(segments.total)
    a, b = (encode(codec_of(name, i, ratio=ratio), gradient, segments, seed=9) for i in ("numba", "torch"))
    assert torch.equal(a, b)


@pytest.mark.parametrize("case", ["equal", "zeros", "few large", "sorted", "periodic"])
def test_top_k_is_exact_where_sampling_misleads(case):
    size = 100_000
    gradient = {
        "equal": torch.full((size,), -2.5),
        "zeros": torch.zeros(size),
        "few large": torch.where(torch.arange(size) % 17 == 0, 1e6, 1e-3) * normal(size).abs(),
        "sorted": torch.arange(size, dtype=torch.float32),
        "periodic": (torch.arange(size) % 17).float(),
    }[case]
    same("topk", gradient, Segments([size]), torch.zeros(size))


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("memories", [1, 2])
@pytest.mark.parametrize("repeats", [1, 50, 5000, 100_000])
def test_what_was_taken_of_too_many_equals_is_given_back(repeats, memories, masking):
    size = 100_000
    gradient = (torch.arange(size) // repeats).float() + 1.0
    memory = torch.stack([normal(size, 1), normal(size, 2)])
    options = {"momentum": 0.5, "masking": masking}
    for kept in (torch.zeros_like(memory), memory):
        same("dgc", gradient, Segments([size]), kept[0] if memories == 1 else kept, options=options)
    same("dgc", gradient, Segments([size - 70, 70]), None)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_sums_beyond_float32_are_cut_alike(name):
    gradient = 3e38 * normal(1000).sign()
    same(name, gradient, Segments([1000]), gradient.clone())
    memory = gradient.clone()
    result = sent(codec_of(name), gradient, Segments([1000]), memory)
    assert result.isfinite().all() and memory.isfinite().all() and result.abs().min() > 3e38


@pytest.mark.parametrize("memory", [None, torch.zeros(8)])
def test_halves_are_rounded_away_from_zero(memory):
    below, above = (float(torch.nextafter(torch.tensor(0.5), torch.tensor(end))) for end in (0.0, 1.0))
    # The largest makes the step of the block 1.
    gradient = torch.tensor([127.0, below, 0.5, -0.5, above, 1.5, -2.5, -below])
    same("int8", gradient, Segments([8]), memory)
    result = sent(codec_of("int8"), gradient, Segments([8]))
    assert result.tolist() == [127.0, 0.0, 1.0, -1.0, 1.0, 2.0, -3.0, 0.0]


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("size", [100, 70001])
@pytest.mark.parametrize("factor", [1.0, 5e37])
def test_momentum_moves_alike_where_elements_are_collected(size, factor, masking):
    results = []
    for implementation in ("numba", "torch"):
        codec, memory = codec_of("dgc", implementation, momentum=0.9, masking=masking), torch.zeros(2, size)
        payloads = [
            encode(codec, factor * normal(size, step), memory=memory, step=step, seed=1) for step in range(6)
        ]
        results.append((torch.stack(payloads), memory))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and memory.isfinite().all()
