"""Ranks that are killed at instants, and what a kill cost by the steps that were noted."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time

import pytest

from wirewise.errors import PeerError
from wirewise.hosts import ProcessIdentity
from wirewise_papers.swift.kills import (
    Kill,
    Killer,
    KillSignals,
    StepLine,
    kill_costs,
    note_step,
    read_steps,
    step_seconds,
)

RANK = """
import sys, time
from pathlib import Path
from wirewise_papers.swift.kills import note_step
step = 1
while True:
    note_step(Path(sys.argv[1]), 0, step)
    step += 1
    time.sleep(0.01)
"""


def process(number):
    return ProcessIdentity(number, 1, 1)


def write(folder, rank, *lines):
    text = "".join(f"{step} {at_s} {process(pid)} a\n" for step, at_s, pid in lines)
    (folder / f"steps-{rank}").write_text(text)


def test_steps_are_noted_and_read(tmp_path):
    assert read_steps(tmp_path, 0) == []
    for step in (1, 2):
        note_step(tmp_path, 0, step)
    steps = read_steps(tmp_path, 0)
    assert [line.step for line in steps] == [1, 2] and steps[0].at_s <= steps[1].at_s <= time.monotonic()
    # A rank may die within its last line.
    with (tmp_path / "steps-0").open("a") as file:
        file.write("3 1.0")
    assert read_steps(tmp_path, 0) == steps


def test_what_a_kill_cost_is_read_from_the_process_that_takes_over(tmp_path):
    # A checkpoint of step 2: steps 3 and 4 are computed again.
    write(tmp_path, 0, (3, 9.8, 7), (4, 10.0, 7), (3, 16.0, 8), (4, 16.1, 8), (5, 16.2, 8))
    [found] = kill_costs([Kill(0, 10.05, process(7))], tmp_path)
    assert found == pytest.approx((5.95, 6.15, 2))
    # A replica: the step that the others committed meanwhile is no step of the new process.
    write(tmp_path, 1, (4, 10.0, 7), (6, 10.3, 8))
    assert kill_costs([Kill(1, 10.05, process(7))], tmp_path)[0] == pytest.approx((0.25, 0.25, 0))
    assert kill_costs([Kill(1, 10.31, process(8))], tmp_path) == []


def test_steps_of_other_machines_are_put_on_this_ones_clock(tmp_path):
    (tmp_path / "steps-0").write_text(f"1 1010.0 {process(7)} a\n2 -89.7 {process(8)} b\n")
    ahead_s = {"a": 1000.0, "b": -100.0}
    assert [line.at_s for line in read_steps(tmp_path, 0, ahead_s)] == pytest.approx([10.0, 10.3])
    assert kill_costs([Kill(0, 10.1, process(7))], tmp_path, ahead_s)[0] == pytest.approx((0.2, 0.2, 0))


def test_a_machine_that_cannot_be_reached_is_told_at_the_end_of_the_block(tmp_path):
    class Unreachable(KillSignals):
        def send(self, line, number):
            raise PeerError(f"{line.host} does not answer")

    note_step(tmp_path, 0, 1)
    with pytest.raises(PeerError, match=f"{os.uname().nodename} does not answer"):
        with Killer(tmp_path, 1, [(0.0, 0)], sender=Unreachable()) as killer:
            killer._thread.join(10)


def test_a_step_is_the_median_before_the_first_kill():
    steps = [StepLine(n, t, process(7), 0) for n, t in enumerate([0.0, 1.0, 1.5, 2.0, 2.5, 9.0])]
    assert step_seconds(steps, first=1) == 0.5
    assert step_seconds(steps, [Kill(0, 2.2, process(7))], first=1) == 0.5
    assert step_seconds(steps, first=1, average=statistics.fmean) == 8.0 / 4


def test_a_rank_is_killed_at_its_time_and_again_once_it_trains_again(tmp_path):
    def rank():
        return subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path)])

    processes = [rank()]
    try:
        with Killer(tmp_path, 1, [(0.1, 0), (0.2, 0), (0.5, 0), (9.0, 0)]) as killer:
            assert processes[0].wait(10) == -9
            time.sleep(0.4)
            assert len(killer.kills) == 1
            processes.append(rank())
            assert processes[1].wait(10) == -9
            processes.append(rank())
            assert processes[2].wait(10) == -9
        assert [kill.process.pid for kill in killer.kills] == [process.pid for process in processes]
        # The third was due when the second struck, late; between them is as much time as was drawn.
        assert killer.kills[2].at_s - killer.kills[1].at_s >= 0.3
        # A rank may note one more step between the instant of its kill and the signal.
        assert killer.spared == 1 and read_steps(tmp_path, 0)[-1].process == killer.kills[2].process
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_killer_ends_with_its_block_though_nobody_trains(tmp_path):
    with Killer(tmp_path, 2, [(0.0, 1)]) as killer:
        pass
    assert killer.kills == []


def test_a_process_with_the_id_of_a_rank_that_has_ended_is_let_alone(tmp_path):
    own = ProcessIdentity.of_this_process()
    earlier = own._replace(start_ticks=own.start_ticks - 1)
    # By its id alone this would end the test.
    assert KillSignals().send(StepLine(1, 0.0, earlier, 0), signal.SIGKILL) is None
