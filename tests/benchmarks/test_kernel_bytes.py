"""Bytes of Triton kernels are those of the tensors that they read and write."""

import numpy as np
import pytest
from tests.benchmarks.test_benchmarks import load
from tests.harness.tiers import spread

from wirewise import codec

pytest.importorskip("triton", reason="triton is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.triton]

COUNT = 32
LEAST = 4


@pytest.fixture
def run(monkeypatch):
    return load(monkeypatch, "run", "kernel_bytes")


def launches(run, row, *preset):
    return {(one["kernel"], one["work"][0]): one for one in run.counted(row, preset)}


def bytes_of(launch):
    return launch["loaded"], launch["stored"], launch["must"]


@pytest.mark.parametrize("bits", spread([4, 32], 2))
def test_v3_messages_are_read_once_and_written_once(run, bits):
    width, ids = 64, 8 * COUNT
    found = launches(run, "messages", COUNT * width, {width: [bits]})
    rows, packed = 4 * width * COUNT, codec.MessageLayout(np.full(COUNT, bits), width).size_bytes
    work, kind = f"{bits} bits, {width} columns", "_wide_kernel" if bits == 32 else "_kernel"
    # Order and index of the messages, and the ids of their rows, which random numbers are drawn for.
    loaded = rows + (2 if bits == 32 else 3) * ids
    assert bytes_of(found[f"_pack{kind}", f"pack, {work}"]) == (loaded, packed, loaded + packed)
    unpacked = packed + ids, rows, packed + ids + rows
    assert bytes_of(found[f"_unpack{kind}", f"unpack, {work}"]) == unpacked
    # The index of the rows that messages are added to, and the rows, which are read, too.
    added = packed + 2 * ids + rows
    assert bytes_of(found[f"_unpack{kind}", f"unpack and add, {work}"]) == (added, rows, added + rows)
    once = found["_aggregate_kernel", f"aggregate, each message once, {work}"]
    often = found["_aggregate_kernel", f"aggregate, each message 4 times, {work}"]
    # Entries of the index between two rows are read by both.
    assert once["loaded"] + once["stored"] - once["must"] == 8 * (COUNT // 4 - 1)
    assert often["loaded"] - once["loaded"] == 3 * once["loaded"]


@pytest.mark.parametrize(("width", "again"), spread([(64, 0), (36, 0), (34, 25 + 17)], 3, 2))
def test_bytes_of_mixed_messages_are_read_once_where_planes_of_one_begin_with_those_of_the_other(
    run, width, again
):
    found = launches(run, "messages", 12 * width, {width: [[2, 4, 8]]})
    launch = found["_aggregate_kernel", f"aggregate, each message once, 2, 4, 8 bits, {width} columns"]
    # Entries of the index between two rows are read by both; four messages of 2 bits and four of 4.
    assert launch["loaded"] + launch["stored"] - launch["must"] == 8 * 2 + 4 * again


@pytest.mark.exhaustive
def test_the_longest_rows_are_read_twice(run):
    width = 16384
    found = launches(run, "messages", LEAST * width, {width: [4], width + 8: [4]})
    for columns, held in ((width, True), (width + 8, False)):
        launch = found["_pack_kernel", f"pack, 4 bits, {columns} columns"]
        loaded, stored, must = bytes_of(launch)
        assert launch["values"]["HELD"] == held
        assert loaded + stored - must == (0 if held else 4 * columns * LEAST)


def test_v3_gradients_are_read_once_and_variants_compiled(run):
    size = 8192
    found = launches(run, "gradients", size, [("signum", {})])
    signs = found["write_signs", "signum, encode with feedback"]
    loaded, stored, must = bytes_of(signs)
    assert 8 * size <= loaded <= 1.01 * 8 * size and 4 * size + size // 8 <= stored <= 1.01 * (
        4 * size + size // 8
    )
    assert loaded + stored == must <= signs["sectors"] <= run.MOST * must
    for generation in run.GENERATIONS:
        made = run.machine_of(signs, generation)
        assert made.registers > 16 and made.spilt_bytes == 0
