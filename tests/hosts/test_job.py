import os
import signal
import sys
import threading

import pytest

from tests.lab.helpers import processes_with, soon, start_owner
from wirewise.errors import LabError
from wirewise.hosts.job import JobResult, Process, RunningJob

SHELL = ["sh", "-c"]


def job(*scripts, **options):
    return RunningJob(
        [Process(number, [*SHELL, script], {}) for number, script in enumerate(scripts)], **options
    )


def test_all_end_well():
    result = job("echo a; echo b >&2", "true").wait()
    assert (result.ok, result.exit_code, result.exit_codes, result.first_failed) == (True, 0, [0, 0], None)
    assert result.tails == [["a", "b"], []]


def test_others_have_a_grace_period_after_a_failure():
    result = job("exit 3", "sleep 0.3; echo I saw it; exit 5", grace_s=60).wait()
    assert result.exit_codes == [3, 5]
    assert (result.first_failed, result.exit_code) == (0, 3)
    assert result.tails[1] == ["I saw it"]


def test_others_are_ended_when_the_grace_period_is_over():
    result = job("exit 3", "sleep 300", grace_s=0.3).wait()
    assert result.exit_codes == [3, -signal.SIGTERM]
    assert (result.first_failed, result.exit_code) == (0, 3)


def test_the_exit_code_is_that_of_the_first_failure_in_time(tmp_path):
    noticed = tmp_path / "noticed"
    running = job(f"until [ -e {noticed} ]; do sleep 0.02; done; exit 4", "exit 7", grace_s=60)
    assert soon(lambda: running.states.first_failed is not None)
    noticed.touch()
    result = running.wait()
    assert (result.exit_codes, result.exit_code) == ([4, 7], 7)


def test_a_job_that_takes_too_long_is_ended():
    result = job("sleep 300", timeout_s=0.2).wait()
    assert (result.timed_out, result.exit_code, result.ok) == (True, 124, False)


def test_stop_ends_a_job():
    running = job("sleep 300", "exec sleep 300")
    assert running.running
    running.stop()
    assert not running.running
    assert running.wait().exit_codes == [-signal.SIGTERM] * 2


def test_what_a_process_started_in_a_session_of_its_own_ends_with_the_job():
    mark = f"301.{os.getpid()}"
    assert job(f"setsid sleep {mark} & sleep 0.1; exit 0").wait().ok
    assert not processes_with(f"sleep\0{mark}")


def test_what_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr("wirewise.hosts.job._STOP_S", 0.3)
    ready = threading.Event()
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    running = job(script, listener=lambda *_: ready.set())
    assert ready.wait(30)
    running.stop()
    assert running.wait().exit_codes == [-signal.SIGKILL]


def test_nothing_outlives_an_owner_that_is_killed():
    mark = f"302.{os.getpid()}"
    script = (
        "import sys; from wirewise.hosts.job import RunningJob, Process\n"
        "job = RunningJob([Process(0, ['sh', '-c', f'setsid sleep {sys.argv[1]} & sleep {sys.argv[1]}'], {})])\n"
        "print('started', flush=True); job.wait()\n"
    )
    with start_owner(script, mark) as owner:
        assert owner.stdout.readline() == "started\n"
        assert soon(lambda: len(processes_with(f"sleep\0{mark}")) == 2)
        owner.kill()
    assert soon(lambda: not processes_with(f"sleep\0{mark}"))


def test_a_job_outlives_the_thread_that_started_it():
    found = []
    thread = threading.Thread(target=lambda: found.append(job("sleep 0.3; echo done")))
    thread.start()
    thread.join()
    assert found[0].wait().tails == [["done"]]


def test_the_timeline_is_kept_in_order_and_its_errors_are_raised(tmp_path):
    struck, last = [], tmp_path / "last"

    def strike_last():
        struck.append(2)
        last.touch()

    # A job that ends keeps no timeline, so this one ends after its last entry.
    script = f"until [ -e {last} ]; do sleep 0.02; done"
    job(script, timeline=[(0.2, strike_last), (0.1, lambda: struck.append(1))], timeout_s=60).wait()
    assert struck == [1, 2]

    def spoil():
        raise LabError("the link is gone")

    with pytest.raises(LabError, match="the link is gone"):
        job("sleep 300", timeline=[(0.0, spoil)]).wait()


def test_a_command_that_does_not_exist():
    # The keeper of the parent's death starts the command, so it is the one to report.
    result = RunningJob([Process(0, ["/no/such/program"], {})]).wait()
    assert result.exit_code in (126, 127)
    assert "/no/such/program" in result.tails[0][0]


def test_without_the_keeper_of_the_parents_death_a_missing_command_is_an_error(monkeypatch):
    monkeypatch.setattr("wirewise.hosts.job.dying_with_parent", list)
    with pytest.raises(LabError, match=r"cannot start '/no/such/program': No such file.*check the command"):
        RunningJob([Process(0, ["/no/such/program"], {})])


def test_logs_are_written_where_they_can_be(tmp_path):
    job("echo one", "echo two", folder=tmp_path / "deep" / "logs").wait()
    assert (tmp_path / "deep" / "logs" / "host-1.log").read_text() == "two\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="choose another folder"):
        job("true", folder=tmp_path / "file" / "logs")


def test_a_full_disk_of_the_logs_ends_the_job(tmp_path):
    (tmp_path / "host-0.log").symlink_to("/dev/full")
    with pytest.raises(LabError, match=r"host-0\.log: No space left on device; free space or choose"):
        job("echo one; sleep 300", folder=tmp_path).wait()


def test_a_listener_that_fails_ends_the_job():
    def gone(host, line):
        raise BrokenPipeError(host, line)

    with pytest.raises(BrokenPipeError, match="one"):
        job("echo one; sleep 300", listener=gone).wait()


def test_a_timeout_must_be_positive():
    with pytest.raises(LabError, match=r"timeout is 0 s; expected a number above 0"):
        job("true", timeout_s=0)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (JobResult([0, 0]), 0),
        (JobResult([0, -9]), 137),
        (JobResult([1, 2], first_failed=1), 2),
        (JobResult([-15], timed_out=True), 124),
    ],
)
def test_exit_codes_are_those_of_a_shell(result, code):
    assert result.exit_code == code


def test_bytes_that_are_no_text_do_not_end_the_job():
    script = "import sys; sys.stdout.buffer.write(bytes([255, 10]))"
    assert RunningJob([Process(0, [sys.executable, "-S", "-c", script], {})]).wait().tails == [["\ufffd"]]
