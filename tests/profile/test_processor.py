"""A thread's time with a processor, and without one although it is ready to run."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from wirewise.profile.processor import ProcessorClock

_TICK_S = 0.02
"""The kernel may count a running thread's time once a tick, which is 10 ms at most."""


@pytest.fixture
def clock():
    made = ProcessorClock()
    if made.read() is None:
        pytest.skip("this kernel keeps no times of threads")
    yield made
    made.close()
    assert made.read() is None


def spent(clock, action):
    """Times of an action by the clock; the last one is that of a clock on the wall, which reads before and after."""
    began_s = time.perf_counter()
    before = clock.read()
    action()
    after = clock.read()
    whole_s = time.perf_counter() - began_s
    return after.cpu_s - before.cpu_s, after.preempted_s - before.preempted_s, whole_s


def compute(cpu_s=0.2):
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def test_computing_has_a_processor(clock):
    cpu_s, _, _ = spent(clock, compute)
    assert cpu_s == pytest.approx(0.2, abs=0.05)


def test_sleep_has_none_and_waits_for_none(clock):
    cpu_s, preempted_s, whole_s = spent(clock, lambda: time.sleep(0.3))
    # After its sleep the thread may wait for a processor, which no clock counts as sleep.
    assert cpu_s < 0.05 and cpu_s + preempted_s < whole_s - 0.3 + _TICK_S


def test_others_on_the_same_processor_are_waited_for(clock):
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    busy = f"import os\nos.sched_setaffinity(0, {one})\nprint('on', flush=True)\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for other in others:
            assert other.stdout is not None and other.stdout.readline() == b"on\n"
        os.sched_setaffinity(0, one)
        cpu_s, preempted_s, whole_s = spent(clock, compute)
    finally:
        os.sched_setaffinity(0, allowed)
        for other in others:
            other.kill()
            other.wait()
            other.stdout.close()
    # Three others have most of the processor, whatever else runs.
    assert preempted_s > cpu_s
    assert 0.5 * whole_s < cpu_s + preempted_s < whole_s + _TICK_S
