"""Agents: what they start, what they see, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.recovery.trained import alone, outcomes, run, train
from wirewise.errors import InputError, PeerError
from wirewise.hosts import free_port
from wirewise.runtime.recovery import Agent, run_script
from wirewise.runtime.recovery import agent as module
from wirewise.runtime.recovery.limits import AgentLimits

_START_S = 240.0
"""Processes of two hosts load torch at once, on busy processors for minutes."""


def test_numbers_that_do_not_fit_each_other_are_refused():
    for options, told in (
        ({"ranks": 3, "hosts": 2, "port": 1}, "got 3 ranks on 2 hosts"),
        ({"ranks": 2, "spares": -1}, "-1 spares"),
        ({"ranks": 2, "hosts": 2}, "got no port for 2 hosts"),
    ):
        with pytest.raises(InputError, match=told):
            Agent(train, **options)


def test_a_machine_that_stood_still_makes_nobody_silent(monkeypatch):
    now_s, takes_s = [100.0], [1.5, 60.0, 0.1, *[0.5] * 9]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(module, "is_computing", lambda pid: False)

    def select(_timeout_s):
        now_s[0] += takes_s.pop(0)
        return []

    killed_s = []
    process = module._Process((0, 0), SimpleNamespace(pid=1, kill=lambda: killed_s.append(now_s[0])), None)
    process.ready = True
    agent = object.__new__(Agent)
    agent._selector, agent._processes, agent._end = SimpleNamespace(select=select), {(0, 0): process}, None
    agent._limits, agent._looked_s = AgentLimits(silence_s=2.0), now_s[0]
    while takes_s:
        agent._look()
    # Looks that last half a second are late by less than a pause.
    assert (
        killed_s == [pytest.approx(100.0 + 1.5 + 60.0 + 0.1 + 4 * 0.5)] and process.cause == "silent for 2 s"
    )


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("amid", r"(?s)rank 1 raised an error.*a mistake of the script"),
        ("after", r"(?s)rank 1 failed after the training had come to its end.*a mistake of the script"),
    ],
)
def test_an_error_of_a_script_ends_the_job_with_its_traceback(tmp_path, when, told):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "import torch\n"
        "from wirewise.runtime import recovery\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "training = recovery.protect(model, optimizer, lambda step, share: torch.ones(2), steps=9)\n"
        "for batch in training:\n"
        "    with training.step():\n"
        "        model(batch).sum().backward()\n"
        "    if (training.position, training.rank, sys.argv[1]) == (3, 1, 'amid'):\n"
        "        raise KeyError('a mistake of the script')\n"
        "if training.rank == 1:\n"
        "    raise KeyError('a mistake of the script')\n"
    )
    with pytest.raises(PeerError, match=told):
        Agent(run_script, [str(script), [when]], ranks=2, spares=0, folder=tmp_path / "job").run()
    assert not list(Path("/dev/shm").glob(f"wirewise-recovery-{os.getpid()}-*"))


@pytest.mark.slow
@pytest.mark.dist
def test_a_start_is_given_up_by_its_own_limit_alone(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time\n"
        "time.sleep(float(sys.argv[1]))\n"
        "import torch\n"
        "from wirewise.runtime import recovery\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for batch in (training := recovery.protect(model, optimizer, lambda step, share: torch.ones(2), steps=2)):\n"
        "    with training.step():\n"
        "        model(batch).sum().backward()\n"
    )
    # Other limits are those of processes that are missing or silent, and these live.
    limits = {"wait_s": 2.0, "silence_s": 2.0}
    assert (
        Agent(run_script, [str(script), ["5"]], ranks=2, spares=0, folder=tmp_path, **limits)
        .run()
        .generations
        == 1
    )
    with pytest.raises(
        PeerError, match=r"has not called `protect` within 1 s, though it lives.*--start-timeout"
    ):
        Agent(
            run_script,
            [str(script), ["600"]],
            ranks=2,
            spares=0,
            folder=tmp_path,
            start_timeout_s=1.0,
            **limits,
        ).run()


HOST = """
import json
import sys
from pathlib import Path
from tests.runtime.recovery.trained import train
from wirewise.runtime.recovery import Agent

if __name__ == "__main__":
    host, port, folder, faults = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    Agent(
        train, (folder, json.loads(sys.argv[5])), ranks=2, host=host, hosts=2, spares=1, port=port,
        folder=Path(folder) / str(host), environment={"WIREWISE_FAULTS": faults}, lease_s=5.0,
        wait_s=240.0,
    ).run()
"""


@pytest.fixture
def hosts(tmp_path):
    """Starts the agents of two hosts; returns them with their folder."""
    started: list[subprocess.Popen] = []

    def start(faults: list[dict], **settings: Any) -> list[subprocess.Popen]:
        script = tmp_path / "host.py"
        script.write_text(HOST)
        port = free_port("127.0.0.1")
        for number, fault in enumerate(faults):
            fault["claim"] = str(tmp_path / f"claim-{number}")
        paths = os.pathsep.join(["src", str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        for host in range(2):
            told = [json.dumps(faults), json.dumps({"steps": 20, "sleep_s": 0.05} | settings)]
            command = [sys.executable, str(script), str(host), str(port), str(tmp_path), *told]
            started.append(
                subprocess.Popen(
                    command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
                )
            )
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def descendants(pid: int) -> set[int]:
    """Processes that a process has started, and that those have."""
    children: set[int] = set()
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may end between the two looks.
        with contextlib.suppress(OSError):
            children.update(map(int, listing.read_text().split()))
    return children.union(*map(descendants, children))


def gone(processes: set[int], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while (left := any(Path(f"/proc/{pid}").exists() for pid in processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not left


@pytest.mark.slow
@pytest.mark.dist
def test_a_spare_of_a_host_takes_the_role_of_its_rank(tmp_path, hosts):
    agents = hosts([{"act": "kill", "rank": 1, "point": "bucket", "step": 8}])
    for agent in agents:
        _, errors = agent.communicate(timeout=_START_S)
        assert agent.returncode == 0, errors
    assert {one["digest"] for one in outcomes(tmp_path, 2)} == {alone({"steps": 20}, 2)}
    assert [one["generation"] for one in outcomes(tmp_path, 2)] == [2, 2]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.cold  # it looks at the processes of an agent
@pytest.mark.timeout(600)
def test_what_codecs_remember_outlives_the_host_where_it_is_mirrored(tmp_path, hosts):
    settings = {"steps": 20, "codec": "topk", "mirrored": True}
    calm = tmp_path / "calm"
    calm.mkdir()
    run(calm, settings, spares=0)
    first, second = hosts([{"act": "stop", "rank": 1, "point": "bucket", "step": 8}], **settings)
    deadline = time.monotonic() + _START_S
    while not (tmp_path / "claim-0").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    # With its memory; its processes end with it, the stopped one too.
    processes = descendants(second.pid)
    second.kill()
    assert processes
    assert gone(processes)
    _, errors = first.communicate(timeout=_START_S)
    assert first.returncode == 0, errors
    assert outcomes(tmp_path, 2) == [one | {"generation": 2} for one in outcomes(calm, 2)]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.cold  # it looks at the processes of an agent
@pytest.mark.timeout(600)
def test_a_host_without_the_store_stops_its_ranks(tmp_path, hosts):
    first, second = hosts([{"act": "stop", "rank": 0, "point": "batch", "step": 3}])
    deadline = time.monotonic() + _START_S
    while not (tmp_path / "claim-0").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    # The network is cut: nothing of the first host answers any more.
    first.send_signal(signal.SIGSTOP)
    _, errors = second.communicate(timeout=_START_S)
    assert second.returncode == 1
    assert "host 1 does not reach the store of host 0" in errors
    assert "never two parts of a cut network train on" in errors.replace("\n", " ")
    # However an agent ends, its memory and its processes go with it, stopped ones too.
    folder = f"wirewise-recovery-{first.pid}-*"
    assert list(Path("/dev/shm").glob(folder))
    processes = descendants(first.pid)
    first.kill()
    assert processes
    assert gone(processes)
    deadline = time.monotonic() + 30
    while list(Path("/dev/shm").glob(folder)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(Path("/dev/shm").glob(folder))
