"""Rates of a job's own connections: falls are told from noise, and named in a job on a network that gets slower."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wirewise import lab
from wirewise.cost.drift import StepWindow, WatchEvent, read_history
from wirewise.hosts.connections import ConnectionCounts
from wirewise.profile import connection_rates
from wirewise.profile.connection_rates import LinkReader


def figures(monkeypatch: pytest.MonkeyPatch, *windows: tuple[float, float, float]) -> list[Any]:
    """Figures of a reader for windows of (bytes, busy seconds, seconds limited by the receiver)."""
    total = [0.0, 0.0, 0.0]

    def counted() -> Any:
        yield ("10.0.0.2", 5000, 40000), ConnectionCounts(int(total[0]), total[1], total[2])
        yield ("192.168.1.1", 80, 40001), ConnectionCounts(10**12, 1.0)

    monkeypatch.setattr(connection_rates, "own_connections", counted)
    reader = LinkReader([("10.0.0.1",), ("10.0.0.1",), ("10.0.0.2",)], 0)
    found = []
    for window in windows:
        total[:] = [before + more for before, more in zip(total, window, strict=True)]
        found.append(reader.read())
    return found


def test_a_fall_is_below_the_limit_for_two_windows_and_then_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, slow = (10e6, 0.1, 0.0), (4e6, 0.1, 0.0)
    found = figures(monkeypatch, *[usual] * 6, *[slow] * 4)
    assert [one.bytes_per_s < one.limit_bytes_per_s for one in found] == [
        *[False] * 6,
        True,
        True,
        False,
        False,
    ]
    assert found[6].peer == 2.0 and found[6].bytes_per_s == pytest.approx(40e6)
    assert found[6].usual_bytes_per_s == pytest.approx(100e6)


def test_noise_late_readers_and_little_traffic_are_no_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = [(10e6, seconds, 0.0) for seconds in (0.1, 0.1, 0.15, 0.08, 0.12, 0.16, 0.16)]
    assert not any(one.bytes_per_s < one.limit_bytes_per_s for one in figures(monkeypatch, *noisy))
    late = [(10e6, 0.1, 0.0)] * 6 + [(10e6, 5.1, 5.0)] * 3
    assert not any(one.bytes_per_s < one.limit_bytes_per_s for one in figures(monkeypatch, *late))
    assert all(math.isnan(one.peer) for one in figures(monkeypatch, (1000, 1.0, 0.0), (10e6, 0.01, 0.0)))


SCRIPT = """
import sys, torch, torch.distributed as dist, wirewise
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(500, 1000))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
watch = wirewise.watch(model, optimizer, folder=sys.argv[1], every=5)
for step in range(50):
    if step == 35 and dist.get_rank() == 0:
        print("SLOWER", flush=True)
    model(torch.ones(2, 500)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
watch.close()
dist.destroy_process_group()
"""


@pytest.mark.lab
@pytest.mark.slow
def test_a_link_that_gets_slower_is_named(tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    # A rank that waits for a processor for two windows has slow links too, before this one is slow.
    for attempt in range(3):
        history = tmp_path / f"watch-{attempt}"
        with lab.Lab(2, "200mbit") as network:

            def slow_down(_: int, line: str, network: lab.Lab = network) -> None:
                if line.startswith("SLOWER"):
                    network.set_link(1, "25mbit")

            done = network.run(
                [str(script), str(history)], launcher="direct", listener=slow_down, timeout_s=150
            )
        assert done.ok, done.tails
        found = read_history(history)
        events = [one for one in found if isinstance(one, WatchEvent) and "host of rank" in one.sentence]
        if all(one.step > 35 for one in events):
            break
    assert any("rank 1 sends" in one.sentence and "to the host of rank 0" in one.sentence for one in events)
    assert all(one.step > 35 for one in events)
    windows = [one for one in found if isinstance(one, StepWindow)]
    # 200 Mbit/s are 25 MB/s.
    link = windows[5].links[1]
    assert link is not None and 0 < link.bytes_per_s < 30e6
