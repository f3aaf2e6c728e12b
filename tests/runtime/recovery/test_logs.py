"""What was committed is read as it was sent; what is torn, altered or missing is found, never taken for something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wirewise.errors import InputError
from wirewise.runtime.pipeline.messages import ValueSpec
from wirewise.runtime.recovery.logs import ALL_RANKS, LoggedMessages, MessageKey, SenderLog, watermark

STEPS, MICROBATCHES, ROWS = 6, 3, 24


def message(step: int, microbatch: int) -> torch.Tensor:
    return torch.arange(ROWS, dtype=torch.float64).reshape(4, 6) + 1000 * step + 100 * microbatch


def write(folder: Path, steps: int = STEPS, **more: object) -> SenderLog:
    log = SenderLog(folder, 0, **more)  # type: ignore[arg-type]
    for step in range(steps):
        for microbatch in range(MICROBATCHES):
            log.append(MessageKey(0, 1, 2, step, microbatch), message(step, microbatch))
        log.commit(step + 1)
    return log


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.log"))


def test_what_was_committed_is_read_bit_by_bit(tmp_path: Path) -> None:
    log = SenderLog(tmp_path, 0)
    sent = {
        MessageKey(0, 1, 0, 0, 0): torch.randn(3, 5).to(torch.bfloat16),
        MessageKey(0, 1, 0, 0, 1): torch.tensor([float("nan"), -0.0]),
        MessageKey(0, 1, 3, 0, 0): torch.tensor(7),
        MessageKey(0, 1, 4, 0, 0): torch.zeros(0, 3, dtype=torch.bool),
        MessageKey(0, 1, 5, 0, 0): torch.randint(0, 255, (77,), dtype=torch.uint8),
    }
    for key, tensor in sent.items():
        log.append(key, tensor, ValueSpec(tensor.shape, tensor.dtype, key.channel == 3))
    log.append(MessageKey(0, 2, 0, 0, 0), torch.ones(3))
    log.append(MessageKey(0, ALL_RANKS, 9, 0), torch.tensor(2.5, dtype=torch.float64))
    log.commit(1)
    found = LoggedMessages([tmp_path], 1)
    assert found.span(0) == (0, 1) and found.span(0, ALL_RANKS) == (0, 1)
    for key, tensor in sent.items():
        taken, description = found.take(key)
        assert (taken.shape, taken.dtype) == (tensor.shape, tensor.dtype)
        assert taken.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))
        assert description.wants_gradient == (key.channel == 3)
    assert float(found.read_agreed(9, 0)) == 2.5
    log.close()


def test_only_what_is_committed_counts(tmp_path: Path) -> None:
    log = write(tmp_path, 2)
    log.append(MessageKey(0, 1, 2, 2, 0), message(2, 0))
    log.flush()
    found = LoggedMessages([tmp_path], 1)
    assert found.span(0) == (0, 2)
    with pytest.raises(
        InputError, match=r"no whole message 2 of microbatch 0 in step 2; it has steps 0 to 1"
    ):
        found.take(MessageKey(0, 1, 2, 2, 0))
    # After a fault the step is done again: with other messages, as far as the log can know.
    log.begin(2, generation=1)
    for microbatch in range(MICROBATCHES):
        log.append(MessageKey(0, 1, 2, 2, microbatch), -message(2, microbatch))
    log.commit(3)
    found = LoggedMessages([tmp_path], 1)
    assert found.span(0) == (0, 3)
    assert found.take(MessageKey(0, 1, 2, 2, 0))[0].equal(-message(2, 0))
    log.close()


def test_a_log_that_is_opened_again_is_empty(tmp_path: Path) -> None:
    write(tmp_path).close()
    SenderLog(tmp_path, 0).close()
    assert LoggedMessages([tmp_path], 1).span(0) == (0, 0) and not segments(tmp_path)


def check_every_message(folder: Path, least: int) -> None:
    """All that the log offers is right, and steps of `span` are whole."""
    found = LoggedMessages([folder], 1)
    first, end = found.span(0)
    assert end - first >= least
    for step in range(STEPS):
        for microbatch in range(MICROBATCHES):
            try:
                taken, _ = found.take(MessageKey(0, 1, 2, step, microbatch))
            except InputError:
                assert not first <= step < end
            else:
                assert taken.equal(message(step, microbatch))


def test_a_log_that_is_cut_anywhere_is_never_wrong(tmp_path: Path) -> None:
    write(tmp_path, chunk_steps=3).close()
    for path in segments(tmp_path):
        whole = path.read_bytes()
        for size in {*range(0, len(whole), 512), *range(0, len(whole), 97)}:
            path.write_bytes(whole[:size])
            check_every_message(tmp_path, 3 if path.stem == "000000" else 0)
        path.write_bytes(whole)
    check_every_message(tmp_path, STEPS)


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), file=st.integers(0, 2))
def test_a_bit_that_flips_is_found(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, file: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    write(folder, chunk_steps=3).close()
    path = [*segments(folder), folder / "rank-0" / "watermark"][file]
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    path.write_bytes(content)
    check_every_message(folder, 0)
    if file == 2:
        assert watermark(folder / "rank-0") in (STEPS - 1, STEPS)


def test_a_message_that_is_missing_in_the_middle_ends_the_span(tmp_path: Path) -> None:
    write(tmp_path, chunk_steps=1).close()
    segments(tmp_path)[2].unlink()
    assert LoggedMessages([tmp_path], 1).span(0) == (3, STEPS)


def test_segments_go_when_all_their_steps_are_durable(tmp_path: Path) -> None:
    log = SenderLog(tmp_path, 0, chunk_steps=2, chunk_bytes=2**20)
    step_bytes, most = 0, 0
    every = 4
    for step in range(3 * every):
        for microbatch in range(MICROBATCHES):
            log.append(MessageKey(0, 1, 2, step, microbatch), message(step, microbatch))
        log.commit(step + 1)
        step_bytes = step_bytes or log.size_bytes
        most = max(most, log.size_bytes)
        assert log.size_bytes == sum(path.stat().st_size for path in segments(tmp_path))
        if (step + 1) % every == 0:
            # Durable here, not yet everywhere.
            assert LoggedMessages([tmp_path], 1).span(0)[0] <= step + 1 - every
            log.collect(step + 1)
            assert log.size_bytes <= 2 * step_bytes
            assert LoggedMessages([tmp_path], 1).span(0) == (step + 1, step + 1)
    assert most <= every * step_bytes + 2 * step_bytes
    log.collect(2)
    log.close(remove=True)
    assert not list(tmp_path.iterdir())


def test_what_memory_does_not_take_goes_to_disk(tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    log = write(memory, spill=disk, memory_bytes=3000)
    assert 0 < log.memory_used_bytes <= 3000 and segments(disk)
    assert log.size_bytes > 3000
    found = LoggedMessages([memory, disk], 1)
    assert found.span(0) == (0, STEPS)
    assert found.take(MessageKey(0, 1, 2, 4, 1))[0].equal(message(4, 1))
    log.collect(STEPS)
    assert not segments(tmp_path)
    log.close()
    with pytest.raises(InputError, match="give a spill folder on disk"):
        write(memory, memory_bytes=3000)


def test_a_full_disk_is_named_and_what_was_committed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write(tmp_path, 2)
    writev = os.writev

    def full(handle: int, buffers: list[memoryview]) -> int:
        writev(handle, [buffers[0], buffers[1][:9]])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    log.append(MessageKey(0, 1, 2, 2, 0), message(2, 0))
    with pytest.raises(InputError, match=r"log of rank 0 cannot be written to .*No space left.*spill folder"):
        log.flush()
    monkeypatch.undo()
    assert LoggedMessages([tmp_path], 1).span(0) == (0, 2)
    log.close()


def test_writing_stops_when_the_awaited_message_is_there(tmp_path: Path) -> None:
    log = SenderLog(tmp_path, 0)
    for microbatch in range(4):
        log.append(MessageKey(0, 1, 2, 0, microbatch), message(0, microbatch))
    answers = iter([False, False, True])
    log.flush(lambda: next(answers))
    two = log.size_bytes
    log.commit(1)
    assert 0 < two < log.size_bytes and LoggedMessages([tmp_path], 1).span(0) == (0, 1)
    log.close()
