import itertools

import numpy as np
import pytest
import torch

from tests.codec.messages import adversarial, decode, encode, steps
from wirewise import codec
from wirewise.errors import CodecError


def test_codes_stay_in_range_on_ten_million_adversarial_elements():
    # A code beyond the last would spill into the code beside it and move that value by more than a step.
    for seed, bits in enumerate((1, 2, 4, 8)):
        x = adversarial(9800, 256, seed)
        layout, buffer = encode(x, bits)
        step = steps(buffer, layout)[:, None]
        error = (decode(buffer, layout) - x).abs()
        rounding = 2.0**-22 * x.abs().amax(1, keepdim=True)
        assert bool((error <= step + rounding).all())


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_constant_rows_are_exact(bits):
    x = torch.tensor([0.0, -0.0, 1.1, -3e38, 1e-45, 7e-30])[:, None].repeat(1, 9)
    layout, buffer = encode(x, bits)
    assert torch.equal(decode(buffer, layout), x)
    assert not steps(buffer, layout).any()
    assert not buffer[: layout.zeros_offset].any()
    narrow, short = encode(x[:-2], bits, param_bytes=4)
    assert bool(((decode(short, narrow) - x[:-2]).abs() <= 2.0**-7 * x[:-2].abs()).all())


@pytest.mark.parametrize("bits", codec.BITS)
def test_a_single_column_is_exact(bits):
    x = torch.tensor([[1.5], [-2.0], [0.0]])
    layout, buffer = encode(x, bits)
    assert torch.equal(decode(buffer, layout), x)


def _mean_error(x, bits, draws, **options):
    """Mean over independent draws of (decoded - x) / step, [n, d]."""
    batch = 50
    total = torch.zeros(x.shape, dtype=torch.float64)
    index = torch.arange(len(x)).repeat(batch)
    layout = codec.MessageLayout(np.full(len(index), bits), x.shape[1])
    buffer = torch.empty(layout.size_bytes, dtype=torch.uint8)
    out = torch.empty(len(index), x.shape[1])
    for start in range(0, draws, batch):
        rows = start * len(x) + np.arange(len(index))
        codec.pack(x, index, layout, buffer, key=77, rows=rows, **options)
        codec.unpack(buffer, layout, out)
        total += out.view(batch, *x.shape).sub_(x).sum(dim=0)
    return total / draws / steps(buffer, layout)[: len(x), None]


def _unbiased(mean_error, draws):
    return float(mean_error.square().mean().sqrt()) <= 1.05 * (1 / (6 * draws)) ** 0.5


def _mean_error_of_mismatched_ends(x, bits, draws):
    """The released code: quantizes in float32, decodes with bfloat16 roundings of scale and zero."""
    zero, scale = x.amin(1, keepdim=True), (2**bits - 1) / (x.amax(1, keepdim=True) - x.amin(1, keepdim=True))
    near_zero, near_scale = zero.bfloat16().float(), scale.bfloat16().float()
    total = torch.zeros(x.shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(draws):
        codes = ((x - zero) * scale + torch.rand(x.shape, generator=generator) - 0.5).clamp_min(0).round()
        total += codes / near_scale + near_zero - x
    return total / draws * scale


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("offset", [0.3, 30.0])
def test_unbiased(offset):
    x = torch.randn(200, 256, generator=torch.Generator().manual_seed(1)) + offset
    for bits in (2, 4, 8):
        assert _unbiased(_mean_error(x, bits, 4000), 4000), bits
    assert not _unbiased(_mean_error_of_mismatched_ends(x, 8, 100), 100)


def test_rounding_to_nearest_is_seen_as_biased():
    x = torch.randn(20, 256, generator=torch.Generator().manual_seed(1))
    assert not _unbiased(_mean_error(x, 4, 100, stochastic=False), 100)


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_variance_is_that_of_the_theory(bits, width):
    base = torch.randn(200, width, generator=torch.Generator().manual_seed(2))
    spread = base.amax(1, keepdim=True) - base.amin(1, keepdim=True)
    for offset in (0.0, 1.0, 10.0, 100.0):
        x = base + offset * spread
        step = (x.amax(1) - x.amin(1)).double() / (2**bits - 1)
        error = torch.zeros(len(x), dtype=torch.float64)
        for draw in range(20):
            layout, buffer = encode(x, bits, rows=np.arange(200) + 200 * draw)
            error += (decode(buffer, layout).double() - x).square().sum(1) / 20
        ratio = error / (width * step**2 / 6)
        assert 0.95 <= float(ratio.mean()) <= 1.05
        assert float(ratio.max()) <= 1.5 * (1 + 2**-6)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_variance_never_exceeds_a_quarter_step(bits):
    # Every value halfway between two levels is the worst case.
    x = torch.full((100, 96), 0.5)
    x[:, 0], x[:, 1] = 0.0, float(2**bits - 1)
    layout, buffer = encode(x, bits)
    ratio = (decode(buffer, layout) - x).square().sum(1) / (96 / 6)
    assert float(ratio.max()) <= 1.5 * (1 + 2**-6)


@pytest.mark.parametrize("param_bytes", [4, 6])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_nearest_is_within_half_a_step(bits, param_bytes):
    x = torch.randn(100, 33)
    layout, buffer = encode(x, bits, stochastic=False, param_bytes=param_bytes)
    assert bool(((decode(buffer, layout) - x).abs() <= 0.501 * steps(buffer, layout)[:, None]).all())


@pytest.mark.sweep
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_packing_is_a_bijection(bits, stochastic):
    for width, count in itertools.product(range(1, 71), range(10)):
        seed = 10 * width + count
        # Rows of whole numbers that span 0..L have step one, so they are their own codes.
        codes = np.random.default_rng(seed).integers(0, 2**bits, (count, width))
        codes[:, 0], codes[:, -1] = 0, 2**bits - 1
        x = torch.from_numpy(codes).float()
        layout, buffer = encode(x, bits, key=seed, stochastic=stochastic)
        assert torch.equal(decode(buffer, layout), x)
        if width > 1:
            size = -(-width * bits // 8)
            expected = np.zeros((count, size), dtype=np.uint8)
            for column in range(width):
                plane, place = divmod(column, size)
                expected[:, place] |= (codes[:, column] << (plane * bits)).astype(np.uint8)
            assert np.array_equal(buffer[: layout.zeros_offset].numpy().reshape(count, size), expected)


def test_bfloat16_rows_round_to_nearest_even():
    # The largest are far enough from bfloat16's largest value, which is not exceeded.
    x = torch.randn(30, 17) * torch.logspace(-40, 37, 30)[:, None]
    x[0, :3] = torch.tensor([1.00390625, 1.01171875, -0.0])  # ties
    layout, buffer = encode(x, 16)
    assert torch.equal(decode(buffer, layout), x.bfloat16().float())


def test_bfloat16_does_not_round_up_to_infinity():
    x = torch.tensor([[3.4e38, -3.4e38]])
    layout, buffer = encode(x, 16)
    largest = torch.finfo(torch.bfloat16).max
    assert decode(buffer, layout).tolist() == [[largest, -largest]]


def test_float32_rows_are_exact():
    x = adversarial(24, 5)
    layout, buffer = encode(x, 32)
    assert torch.equal(decode(buffer, layout).view(torch.int32), x.view(torch.int32))


@pytest.mark.parametrize("implementation", ["torch", "numba"])
def test_ranges_report_the_spread(implementation):
    x = torch.randn(48, 19)
    ranges = torch.full((48,), torch.nan)
    encode(x, np.resize(codec.BITS, 48), ranges=ranges, implementation=implementation)
    assert torch.equal(ranges, x.amax(1) - x.amin(1))


def test_index_gathers_rows_and_scale_multiplies():
    x = torch.randn(9, 6)
    index = torch.tensor([8, 0, 3, 3], dtype=torch.int32)
    layout, buffer = encode(x[index.long()], 32)
    gathered = torch.empty_like(buffer)
    codec.pack(x, index, layout, gathered, key=1, rows=np.zeros(4, dtype=np.int64))
    assert torch.equal(gathered, buffer)
    assert torch.equal(decode(buffer, layout, scale=0.25), x[index.long()] * 0.25)


def test_rows_may_be_a_tensor_a_read_only_array_and_the_matrix_strided():
    x = torch.randn(6, 10)
    rows = np.arange(3, 9)
    rows.setflags(write=False)
    layout, expected = encode(x, 4, rows=rows.copy())
    for source, ids in ((x, rows), (x, torch.from_numpy(rows.copy())), (x.t().contiguous().t(), rows)):
        out = torch.empty(layout.size_bytes, dtype=torch.uint8)
        codec.pack(source, None, layout, out, key=12345, rows=ids)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("implementation", ["torch", "numba"])
def test_unpack_add_sums_into_rows(implementation):
    x = adversarial(24, 11)[5:8].repeat(8, 1)
    layout, buffer = encode(x, np.resize(codec.BITS, 24))
    index = torch.arange(24) % 5
    out = torch.ones(6, 11)
    expected = out.clone().index_add_(0, index, 2.0 * decode(buffer, layout))
    codec.unpack_add(buffer, layout, index, out, scale=2.0, implementation=implementation)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["torch", "numba"])
@pytest.mark.parametrize("width", [1, 13, 64])
def test_unpack_aggregate_is_a_sparse_product(implementation, width):
    g = torch.Generator().manual_seed(width)
    layout, buffer = encode(torch.randn(30, width, generator=g), np.resize(codec.BITS, 30))
    counts = torch.randint(0, 7, (12,), generator=g)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    indices = torch.randint(0, 30, (int(indptr[-1]),), generator=g, dtype=torch.int32)
    weight = torch.rand(len(indices), generator=g)
    out = torch.randn(12, width, generator=g)
    expected = out.double()
    for row in range(12):
        for e in range(int(indptr[row]), int(indptr[row + 1])):
            expected[row] += decode(buffer, layout)[indices[e]].double() * weight[e]
    codec.unpack_aggregate(buffer, layout, indptr, indices, weight, out, implementation=implementation)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_no_messages_are_no_work():
    layout, buffer = encode(torch.empty(0, 8), [])
    assert len(buffer) == 0
    out = torch.ones(3, 8)
    codec.unpack(buffer, layout, torch.empty(0, 8))
    codec.unpack_add(buffer, layout, torch.empty(0, dtype=torch.int64), out)
    no_entries = (torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0))
    codec.unpack_aggregate(buffer, layout, *no_entries, out)
    assert torch.equal(out, torch.ones(3, 8))


@pytest.mark.sweep
@pytest.mark.parametrize("implementation", ["torch", "numba"])
@pytest.mark.parametrize("bits", codec.BITS)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_values_that_are_not_finite_are_named(implementation, bits, value):
    x = torch.randn(7, 40)
    x[4, 33] = x[5, 0] = value
    with pytest.raises(
        CodecError, match=rf"message 4 \(global row 104, {bits} bit\) holds -?(nan|inf) in column 33"
    ):
        encode(x, bits, rows=np.arange(100, 107), implementation=implementation)


@pytest.mark.parametrize("implementation", ["torch", "numba"])
def test_a_spread_beyond_float32_is_named(implementation):
    x = torch.tensor([[1.0, 2.0], [-3e38, 3e38]])
    with pytest.raises(
        CodecError, match=r"message 1 .* spans -3e\+38 to 3e\+38, more than float32 can express"
    ):
        encode(x, 8, implementation=implementation)


def _arguments():
    layout = codec.MessageLayout([4, 8, 4], 6)
    return {
        "x": torch.randn(5, 6),
        "index": torch.tensor([0, 4, 2]),
        "layout": layout,
        "out": torch.empty(layout.size_bytes, dtype=torch.uint8),
        "key": 1,
        "rows": np.arange(3),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.randn(5, 6).double()}, "x is torch.float64"),
        ({"x": torch.randn(6)}, r"x is torch.float32 \(6,\), expected a 2-D tensor"),
        ({"x": np.zeros((5, 6))}, "x is a ndarray"),
        ({"x": torch.randn(5, 7)}, "x has 7 columns, expected the layout's 6"),
        ({"index": None}, "x has 5 rows and there is no index, expected one row for each of 3 messages"),
        ({"index": torch.tensor([0, 5, 1])}, r"index\[1\] is 5, expected a number in \[0, 5\)"),
        ({"index": torch.tensor([0, 1, -1])}, r"index\[2\] is -1"),
        ({"index": torch.tensor([0, 1])}, "index has 2 entries, expected one for each of 3 messages"),
        ({"index": torch.tensor([0.0, 1.0, 2.0])}, "index is torch.float32"),
        ({"out": torch.empty(3, dtype=torch.uint8)}, "out has 3 bytes .* expected 30 contiguous"),
        ({"out": torch.empty(30)}, "out is torch.float32"),
        ({"key": 1 << 32}, "key is 4294967296, expected 32 bits"),
        ({"rows": np.arange(4)}, r"rows is torch.int64 \(4,\), expected the int64 global ids of 3 messages"),
        ({"rows": np.arange(3, dtype=np.int32)}, "rows is torch.int32"),
        ({"rows": [1, 2, 3]}, "rows is list"),
        ({"ranges": torch.empty(2)}, "ranges has 2 entries, expected 3"),
        ({"implementation": "cuda"}, "implementation is 'cuda', expected one of"),
    ],
)
def test_bad_arguments_of_pack_are_named(change, message):
    with pytest.raises(CodecError, match=message):
        codec.pack(**(_arguments() | change))


def test_bad_arguments_of_unpack_are_named():
    layout, buffer = encode(torch.randn(3, 6), 4)
    with pytest.raises(CodecError, match="buffer has 26 bytes"):
        codec.unpack(buffer[:-1], layout, torch.empty(3, 6))
    with pytest.raises(CodecError, match="out has 4 rows, expected one for each of 3 messages"):
        codec.unpack(buffer, layout, torch.empty(4, 6))
    with pytest.raises(CodecError, match="out has strides"):
        codec.unpack(buffer, layout, torch.empty(6, 3).t())
    with pytest.raises(CodecError, match=r"index\[0\] is 9, expected a number in \[0, 4\): the rows of out"):
        codec.unpack_add(buffer, layout, torch.tensor([9, 0, 1]), torch.empty(4, 6))


@pytest.mark.parametrize(
    ("indptr", "indices", "weights", "message"),
    [
        ([0, 1, 2], [0, 3], 2, r"index\[1\] is 3, expected a number in \[0, 3\): the rows of the layout"),
        ([0, 1], [0, 1], 2, r"csr_indptr is torch.int64 \(2,\), expected int64 \(3,\)"),
        ([0, 1, 3], [0, 1], 2, r"csr_indptr spans 0\.\.3 .* expected 0\.\.2"),
        ([0, 1, 2], [0, 1], 3, "weight has 3 entries"),
        ([0, 5, 2], [0, 1], 2, "csr_indptr decreases"),
    ],
)
def test_bad_arguments_of_unpack_aggregate_are_named(indptr, indices, weights, message):
    layout, buffer = encode(torch.randn(3, 6), 4)
    csr = (torch.tensor(indptr), torch.tensor(indices), torch.ones(weights))
    with pytest.raises(CodecError, match=message):
        codec.unpack_aggregate(buffer, layout, *csr, torch.zeros(2, 6))
