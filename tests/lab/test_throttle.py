import os
import subprocess
from pathlib import Path

from tests.lab.helpers import soon
from wirewise.lab.throttle import Throttle


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_processes_are_stopped_at_times_and_run_on_in_the_end():
    with subprocess.Popen(["sleep", "300"]) as process:
        throttle = Throttle(process.send_signal, 10)
        assert soon(lambda: state(process.pid) == "T")
        assert soon(lambda: state(process.pid) != "T")
        throttle.stop()
        assert state(process.pid) != "T"
        process.kill()


def test_processes_that_end_meanwhile_do_no_harm():
    with subprocess.Popen(["true"]) as process:
        pass
    throttle = Throttle(process.send_signal, 2)
    throttle.stop()
    assert os.getpid()
