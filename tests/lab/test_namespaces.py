import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.helpers import ROOT, processes_with, soon, start_owner
from wirewise import lab
from wirewise.errors import LabError
from wirewise.lab import namespaces

OWNER = """
import json, sys
from wirewise.lab import Lab
with Lab(2, "100mbit") as lab:
    job = lab.launch(["sh", "-c", "setsid sleep " + sys.argv[1] + " & sleep " + sys.argv[1]], launcher="none")
    while sum(len(lab.processes(h)) for h in range(2)) < 6: pass
    print(json.dumps([lab.names, job._keeper.pid, lab._realm._keeper.pid]), flush=True)
    job.wait()
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the shared list of namespaces needs root")


def names():
    folder = Path("/run/netns")
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


@pytest.mark.lab
@needs_root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_owner_is_ended(number):
    mark = f"300.{os.getpid()}{int(number)}"
    with start_owner(OWNER, mark, stderr=subprocess.DEVNULL) as owner:
        built = json.loads(owner.stdout.readline())[0]
        assert set(built) <= names()
        # A process is there before it is the program that it will be.
        assert soon(lambda: len(processes_with(f"sleep\0{mark}")) == 4)
        owner.send_signal(number)
        owner.wait(timeout=30)
    if number == signal.SIGTERM:
        assert owner.returncode == 128 + signal.SIGTERM
    assert soon(lambda: not set(built) & names())
    assert soon(lambda: not processes_with(f"sleep\0{mark}"))


@pytest.mark.lab
@needs_root
def test_the_next_start_removes_what_is_stale_and_nothing_else():
    mark = f"300.{os.getpid()}0"
    ours = [f"ww-foreign-{os.getpid()}", f"{namespaces.owner_name()}-living"]
    for _ in range(5):
        with start_owner(OWNER, mark) as owner:
            built, *keepers = json.loads(owner.stdout.readline())
            for pid in [*keepers, owner.pid]:
                os.kill(pid, signal.SIGKILL)
            owner.wait(timeout=30)
        # A lab that starts in another process meanwhile may remove them already.
        if set(built) <= names():
            break
    else:
        raise AssertionError("no owner left its namespaces")
    try:
        for name in ours:
            subprocess.run(["ip", "netns", "add", name], check=True)
        with lab.Lab(1, "100mbit"):
            assert not set(built) & names()
            assert set(ours) <= names()
            # Others may have left something meanwhile.
            assert not {*built, *ours} & {*lab.clean()}
    finally:
        for name in ours:
            subprocess.run(["ip", "netns", "delete", name], check=True)
    assert soon(lambda: not processes_with(f"sleep\0{mark}"))


@pytest.mark.lab
@needs_root
def test_labs_of_two_processes_do_not_touch_each_other():
    mark = f"300.{os.getpid()}1"
    with start_owner(OWNER, mark, stderr=subprocess.DEVNULL) as owner:
        theirs = set(json.loads(owner.stdout.readline())[0])
        with lab.Lab(2, "100mbit") as network:
            assert network.run(["true"], launcher="none").ok
            assert theirs | set(network.names) <= names()
            ours = set(network.names)
        assert theirs <= names()
        assert not ours & names()
        assert soon(lambda: len(processes_with(f"sleep\0{mark}")) == 4)
        owner.terminate()
    assert soon(lambda: not theirs & names())


def test_names_tell_the_owner_and_whether_it_lives():
    own = namespaces.owner_name()
    assert own.startswith(f"ww-{os.getpid()}-") and not namespaces.owner_is_gone(f"{own}-abch0")
    code = "from wirewise.lab.namespaces import owner_name; print(owner_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert namespaces.owner_is_gone(f"{done.stdout.strip()}-abch0")
    assert not namespaces.owner_is_gone(f"other-{done.stdout.strip()}")


@pytest.mark.lab
def test_a_forked_child_does_not_take_the_network_away():
    # A new process forks, because forking this one would copy whatever threads other tests use.
    script = (
        "import os; from wirewise.lab import Lab\n"
        "with Lab(1, '100mbit') as lab:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        lab.close()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    print(len(lab.counters()), lab.run(['true'], launcher='none').exit_code)\n"
    )
    with start_owner(script) as owner:
        assert owner.stdout.read().split() == ["1", "0"]


def test_without_iproute_the_lab_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    ok, reason = lab.available()
    assert not ok
    assert "ip" in reason and "tc" in reason and "iproute2" in reason
    with pytest.raises(LabError, match=r"no lab here: ip and tc and sh.* not found; install iproute2"):
        lab.Lab(2).__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
def test_root_without_capabilities_is_told_what_is_missing():
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--"]
    script = "from wirewise.lab import available; print(*available())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*drop, sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.startswith("False network namespaces cannot be made here (as root: ")
    assert "CAP_SYS_ADMIN" in done.stdout


@pytest.mark.lab
def test_a_lab_without_root():
    # Modules are imported first: an ordinary user may not be able to read where they lie.
    script = (
        "import os, sys, subprocess, wirewise.lab.network\n"
        "from wirewise.lab import Lab, available\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(available())\n"
        "with Lab(2, '40mbit', {1: '10mbit'}) as lab:\n"
        "    lab.set_link(1, '20mbit'); lab.cut(1); lab.heal(1)\n"
        "    job = lab.launch(['sh', '-c', 'cat /proc/net/dev; sleep 300'], launcher='none', grace_s=0.1)\n"
        "    while len(lab.processes(1)) < 2: pass\n"
        "    lab.kill(1)\n"
        "    print(job.wait().exit_codes, len(lab.counters()), 'net0' in str(job.wait().tails[0]))\n"
    )
    with start_owner(script, cwd="/") as owner:
        lines = owner.stdout.read().splitlines()
    assert lines == ["(True, 'without root, in a user namespace')", "[-15, -9] 2 True"]
    assert not [name for name in names() if str(owner.pid) in name.split("-")]
