"""Rows that quantizers stumble over, and short forms of the calls under test."""

import numpy as np
import torch

from wirewise import codec


def encode(x, bits, *, key=12345, rows=None, **options):
    """The layout and the bytes of all rows of x; `bits` is one width or a table."""
    table = np.full(len(x), bits) if np.isscalar(bits) else np.asarray(bits)
    layout = codec.MessageLayout(table, x.shape[1], param_bytes=options.pop("param_bytes", 6))
    out = torch.full((layout.size_bytes,), 0xAA, dtype=torch.uint8)
    rows = np.arange(len(x)) if rows is None else rows
    codec.pack(x, options.pop("index", None), layout, out, key=key, rows=rows, **options)
    return layout, out


def decode(buffer, layout, **options):
    out = torch.full((len(layout), layout.width), torch.nan)
    codec.unpack(buffer, layout, out, **options)
    return out


def steps(buffer, layout):
    """Transmitted step of each message of a layout of one width, float32 [n]."""
    return buffer[layout.steps_offset :].clone().view(torch.bfloat16).float()


def adversarial(count, width, seed=0):
    """Rows of every kind that has broken a quantizer, shuffled; [count, width]."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=g)
    kinds = torch.arange(count) % 12
    spread = x.amax(1, keepdim=True) - x.amin(1, keepdim=True)
    x[kinds == 0] = 7.25
    x[kinds == 1, 0] = 1e6  # one outlier
    x[kinds == 2] *= 1e30
    x[kinds == 3] *= 1e-30
    x[kinds == 4] *= 1e-41  # denormal
    x[kinds == 5] = torch.where(x[kinds == 5] > 0, 3.0, -1.0)  # x = max in about half of the columns
    x[kinds == 6] += 100 * spread[kinds == 6]
    x[kinds == 7] = torch.relu(x[kinds == 7])
    x[kinds == 8] = -0.0
    x[kinds == 9] = torch.where(x[kinds == 9] > 0, 0.0, -0.0)
    x[kinds == 10] = x[kinds == 10].abs() * -1e-3
    return x


def assert_same_everywhere(x, bits, other, device="cpu", **options):
    """Bytes, ranges and decoded rows of an implementation are those of the torch reference."""
    rows = np.arange(len(x)) * 0x1234567
    layout, expected = encode(x, bits, rows=rows, implementation="torch", **options)
    spans, spans_expected = torch.empty(len(x), device=device), torch.empty(len(x))
    encode(x, bits, rows=rows, implementation="torch", ranges=spans_expected, **options)
    out = torch.empty(layout.size_bytes, dtype=torch.uint8, device=device)
    options.pop("param_bytes", None)
    codec.pack(
        x.to(device), None, layout, out, key=12345, rows=rows, implementation=other, ranges=spans, **options
    )
    assert torch.equal(out.cpu(), expected)
    assert torch.equal(spans.cpu(), spans_expected)
    decoded = torch.empty(len(x), x.shape[1], device=device)
    codec.unpack(out, layout, decoded, scale=0.7, implementation=other)
    assert torch.equal(decoded.cpu(), decode(expected, layout, scale=0.7, implementation="torch"))


def assert_sums_in_order(width, bits, implementation):
    """Messages of these bit widths in turns are added to rows one after another, each times its weight, in float32."""
    g = torch.Generator().manual_seed(width)
    layout, buffer = encode(torch.randn(12, width, generator=g), np.resize(bits, 12))
    indptr, indices = (
        torch.tensor([0, 0, 3, 8, 9]),
        torch.randint(0, 12, (9,), generator=g, dtype=torch.int32),
    )
    weight, out = torch.rand(9, generator=g), torch.randn(4, width, generator=g)
    expected, rows = out.clone(), decode(buffer, layout)
    for row in range(4):
        for entry in range(int(indptr[row]), int(indptr[row + 1])):
            expected[row] += rows[indices[entry].long()] * weight[entry]
    codec.unpack_aggregate(buffer, layout, indptr, indices, weight, out, implementation=implementation)
    assert torch.equal(out, expected)
