"""R11: a file that is cut off or has one wrong bit is never read with another content."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
import torch

from wirewise.errors import InputError
from wirewise.runtime.state_files import read_state, write_state
from wirewise.runtime.trees import digest_of

STATE = {
    "step": 7,
    "weights": {"a": torch.arange(700.0), "b": torch.ones(3, dtype=torch.bfloat16)},
    "lr": [0.1],
}


def test_a_state_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, STATE)
    assert digest_of(read_state(path)) == digest_of(STATE)


def test_every_cut_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, STATE)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 512), len(whole) - 1, 3]:
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"cannot read the checkpoint .*expected"):
            read_state(path)
    path.write_bytes(whole + b"0")
    with pytest.raises(InputError, match=f"has {len(whole) + 1} bytes"):
        read_state(path)


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, STATE)
    whole = bytearray(path.read_bytes())
    # All of the head and of the end, and every 37th byte between.
    places = {*range(60), *range(60, len(whole), 37), *range(len(whole) - 20, len(whole))}
    for place in sorted(places):
        whole[place] ^= 1 << place % 8
        path.write_bytes(whole)
        with pytest.raises(InputError, match="cannot read the checkpoint"):
            read_state(path)
        whole[place] ^= 1 << place % 8
    path.write_bytes(whole)
    assert digest_of(read_state(path)) == digest_of(STATE)


def test_a_full_disk_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, STATE)
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*nothing was left there, free space"):
            write_state(path, STATE | {"step": 8})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_state(path)["step"] == 7 and [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the checkpoint .*nowhere: No such file"):
        read_state(tmp_path / "nowhere")
