"""Drifts that are planted in windows of steps are named, and noise is none."""

import re

import msgspec
import numpy as np
import pytest

from wirewise.cost.drift import DriftRule, LinkWindow, StepWindow, read_history
from wirewise.errors import InputError

RANKS = 3


def windows(
    count, start=0, *, data_s=0.0, compute_s=0.0, exchange_s=0.0, rank=1, memory=lambda number: 1e9, seed=0
):
    """Ranks that compute 40 ms and exchange 10 ms; a late rank makes the others wait in the exchange."""
    draw = np.random.default_rng(seed + start)
    found = []
    for number in range(start, start + count):
        late = data_s + compute_s
        step = 0.05 + late + exchange_s + draw.normal(0, 2e-4)
        own = np.arange(RANKS) == rank
        exchange = 0.01 + exchange_s + np.where(own, 0.0, late)
        found.append(
            StepWindow(
                step=50 * (number + 1),
                step_s=(step,) * RANKS,
                data_s=tuple(np.where(own, data_s, 0.0)),
                exchange_s=tuple(exchange),
                memory_bytes=tuple(int(memory(number) if one else 1e9) for one in own),
            )
        )
    return found


def events_of(*parts):
    rule = DriftRule()
    return [event for part in parts for window in part for event in rule.add(window)]


@pytest.mark.parametrize(
    ("planted", "cause", "rank", "words"),
    [
        ({"data_s": 0.02}, "data", 1, "rank 1 waits 20 ms longer for data"),
        ({"compute_s": 0.02}, "compute", 1, "rank 1 computes "),
        ({"exchange_s": 0.02}, "network", None, "the exchange of gradients takes 20 ms longer on all ranks"),
    ],
)
def test_what_drifted_is_named_once(planted, cause, rank, words):
    (event,) = events_of(windows(8), windows(10, 8, **planted))
    assert (event.cause, event.rank) == (cause, rank) and words in event.sentence
    # It has to last for two windows.
    assert event.step == 500 and re.match(r"a step takes (69|70).* ms instead of 50.* ms", event.sentence)


def with_links(found, *rates, usual=100e6, limit=75e6):
    """Windows in which rank 2 sends to the host of rank 0 at these rates."""
    links = [
        LinkWindow(peer=0, bytes_per_s=rate, usual_bytes_per_s=usual, limit_bytes_per_s=limit)
        for rate in rates
    ]
    return [
        msgspec.structs.replace(one, links=(None, None, link)) for one, link in zip(found, links, strict=True)
    ]


def test_a_link_that_falls_is_named_once_and_a_single_slow_window_is_not():
    calm = with_links(windows(8), *[100e6] * 8)
    (event,) = events_of(
        calm,
        with_links(windows(2, 8), 40e6, 41e6),
        with_links(windows(4, 10), *[40e6] * 4, usual=40e6, limit=30e6),
    )
    assert (event.cause, event.rank, event.step) == ("network", 2, 500)
    assert event.sentence == "rank 2 sends 41 MB/s to the host of rank 0 instead of 100 MB/s"
    assert events_of(calm, with_links(windows(3, 8), 40e6, 99e6, 40e6)) == []


def test_noise_and_a_single_slow_window_are_no_drift():
    assert events_of(windows(40)) == []
    assert events_of(windows(8), windows(1, 8, data_s=0.1), windows(8, 9)) == []


def test_a_job_that_gets_faster_again_is_told():
    events = events_of(windows(8), windows(10, 8, data_s=0.02), windows(10, 18))
    assert [event.cause for event in events] == ["data", "faster"]


@pytest.mark.parametrize("later", range(2, 7))
def test_a_drift_soon_after_another_is_told_too(later):
    events = events_of(windows(8), windows(later, 8, data_s=0.02), windows(8, 8 + later, compute_s=0.06))
    assert [event.cause for event in events] == ["data", "compute"]


def test_memory_that_creeps_is_told_with_its_rank():
    (event, *_) = events_of(windows(30, memory=lambda number: 1e9 + 2e7 * number))
    assert (event.cause, event.rank) == ("memory", 1) and "memory of rank 1 grows: " in event.sentence
    assert events_of(windows(30, memory=lambda number: 1e9 + 4e8 * (number == 10))) == []


def test_histories_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"expected the folder that wirewise.watch was given"):
        read_history(tmp_path)
    (tmp_path / "watch.jsonl").write_text('{"type":"other"}\n')
    with pytest.raises(InputError, match=r"is no history of wirewise.watch"):
        read_history(tmp_path)
    with pytest.raises(InputError, match=r"between 0 and 1"):
        DriftRule(1.5)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"host_use": 0.95}, "; its host's processors are 95% busy, 30% before"),
        ({"device_clock_hz": 1.2e9}, "; the clock of its GPU is 1.20 GHz, 2.00 before"),
        ({}, " ms longer"),
    ],
)
def test_the_machine_of_a_late_rank_is_named(machine, words):
    def on(part, host_use=0.3, device_clock_hz=2e9):
        rows = {"host_use": (0.3, host_use, None), "device_clock_hz": (2e9, device_clock_hz, None)}
        return [msgspec.structs.replace(one, **rows) for one in part]

    (event,) = events_of(on(windows(8)), on(windows(3, 8, compute_s=0.02), **machine))
    assert (event.cause, event.rank) == ("compute", 1) and event.sentence.endswith(words)


def test_memory_that_grows_is_told_where_steps_drift_again_and_again():
    def grown(number):
        return 1e9 + 5e7 * max(number - 6, 0)

    # Every fourth window another length of steps is usual, so that none of them stays the baseline for long.
    parts = [windows(4, 4 * i, compute_s=0.03 * (i % 2), memory=grown) for i in range(6)]
    events = events_of(*parts)
    assert {"compute", "memory"} <= {event.cause for event in events}
    assert next(event for event in events if event.cause == "memory").rank == 1
