"""The benchmark of collectives: one row as it is run, and its noise."""

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.lab
@pytest.mark.slow
def test_a_row_runs(tmp_path):
    page = tmp_path / "page.md"
    words = ["--preset", "smoke", "--only", "uneven,servers", "--out", str(page)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "collectives" / "run.py"), *words],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "| h4 | 1 |" in page.read_text()
    # Three phases put on the link of a server exactly what they may.
    assert "1.000 | 1.000 | 1.0000 |" in page.read_text()


def test_noise_stops_processes_for_a_part_of_the_time(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "collectives"))
    from noise import Noise

    sent = []
    monkeypatch.setattr("noise.send", lambda pid, what: sent.append((pid, what.name)))

    class OneHost:
        num_hosts = 1

        def processes(self, host):
            return [7]

    source = Noise(0.02)
    source.disturb(OneHost())
    deadline = time.monotonic() + 30
    while len(sent) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    source.stop()
    assert len(sent) >= 4
    assert sent[-1] == (7, "SIGCONT")
    # Stops and continuations alternate, but for the last word.
    assert all(one != other for one, other in itertools.pairwise(sent[:-1]))
