import numpy as np
import pytest

from wirewise import codec
from wirewise.errors import CodecError


@pytest.mark.parametrize("param_bytes", [4, 6])
@pytest.mark.parametrize("width", [1, 7, 16, 41, 256])
def test_bytes_follow_the_formula(width, param_bytes):
    bits = np.random.default_rng(width).choice(codec.BITS, 60)
    layout = codec.MessageLayout(bits, width, param_bytes=param_bytes)
    codes = sum(int(np.sum(bits == b)) * -(-width * b // 8) for b in codec.BITS)
    assert layout.size_bytes == codes + param_bytes * int(np.sum(bits < 16))
    assert layout.size_bytes == sum(codec.row_bytes(width, int(b), param_bytes) for b in bits)
    assert layout.counts == {b: int(np.sum(bits == b)) for b in codec.BITS if np.any(bits == b)}


# Ratios to float32 as published for 4 bytes of parameters, and computed for 6.
@pytest.mark.parametrize(
    ("width", "bits", "param_bytes", "ratio"),
    [
        (256, 8, 4, 3.94),
        (256, 4, 4, 7.76),
        (256, 2, 4, 15.06),
        (41, 8, 4, 3.64),
        (41, 4, 4, 6.70),
        (41, 2, 4, 11.5),
        (16, 2, 4, 8.0),
        (256, 8, 6, 3.91),
        (256, 4, 6, 7.64),
        (256, 2, 6, 14.6),
    ],
)
def test_ratios_to_float32(width, bits, param_bytes, ratio):
    # Whole bytes a row: narrow odd widths pay up to seven bits, which the published formula leaves out.
    padding = -(-width * bits // 8) - width * bits / 8
    layout = codec.MessageLayout(np.full(1000, bits), width, param_bytes=param_bytes)
    assert 4 * width * 1000 / (layout.size_bytes - 1000 * padding) == pytest.approx(ratio, rel=0.01)


def test_groups_are_ascending_and_stable():
    layout = codec.MessageLayout([8, 2, 32, 8, 2, 16], 5)
    assert [(g.bits, g.order.tolist()) for g in layout.groups] == [
        (2, [1, 4]),
        (8, [0, 3]),
        (16, [5]),
        (32, [2]),
    ]
    assert [g.offset for g in layout.groups] == [0, 4, 14, 24]
    assert layout.zeros_offset == 44
    assert layout.steps_offset == 44 + 16
    assert layout.size_bytes == 44 + 24
    assert layout.row_offset.tolist() == [4, 0, 24, 9, 2, 14]
    assert layout.param_slot[[1, 4, 0, 3]].tolist() == [0, 1, 2, 3]


def test_the_table_may_come_as_bytes():
    assert repr(codec.MessageLayout(b"\x04\x04\x20", 4)) == repr(codec.MessageLayout([4, 4, 32], 4))


def test_no_messages_take_no_bytes():
    layout = codec.MessageLayout([], 8)
    assert layout.size_bytes == 0
    assert len(layout) == 0
    assert "no messages" in repr(layout)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([4, 3], 8), {}, r"message 1 has 3 bits, expected one of \(1, 2, 4, 8, 16, 32\)"),
        (([0], 8), {}, "message 0 has 0 bits"),
        (([[4]], 8), {}, r"shape \(1, 1\)"),
        (([4.5], 8), {}, "dtype float64"),
        (([4], 0), {}, "width 0, expected at least one column"),
        (([4], 8), {"param_bytes": 5}, "param_bytes is 5, expected 6"),
    ],
)
def test_bad_tables_are_named(arguments, options, message):
    with pytest.raises(CodecError, match=message):
        codec.MessageLayout(*arguments, **options)
