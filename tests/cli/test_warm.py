"""Small jobs compile all kernels, in several processes that end with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wirewise.cli.warm import JOBS, warm_kernels
from wirewise.hosts.processes import children_of, start_ticks

WARM = """
import importlib, pkgutil, types
import numba
from numba.core import event
from numba.core.dispatcher import Dispatcher
import wirewise
from wirewise import jit
from wirewise.cli.warm import JOBS, run_job

with event.install_recorder("numba:compile") as compiled:
    # One that is not kept counts.
    numba.njit(lambda x: x + 1)(1)
    print([reason for job in JOBS for reason in run_job(job)])
print(sum(kind.is_start for _, kind in compiled.buffer))

for module in pkgutil.walk_packages(wirewise.__path__, "wirewise."):
    # Adapters to optional packages, which have no kernels, import the whole of these.
    if "wirewise.integrations" not in module.name:
        importlib.import_module(module.name)



def mentioned(function):
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= {*code.co_names}
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    values = [function.__globals__.get(name) for name in names]
    modules = [value for value in values if isinstance(value, types.ModuleType)]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*values, *cells, *(getattr(module, name, None) for module in modules for name in names)]


# A caller that is on disk brings what it calls with it, so that kernels within it have no signature here.
waiting = [kernel for kernel in jit.kernels() if kernel.signatures]
reached = {}
while waiting:
    kernel = waiting.pop()
    if id(kernel) not in reached:
        reached[id(kernel)] = kernel
        # Also those that are always inlined, which are no kernels of their own.
        waiting += [value for value in mentioned(kernel.py_func) if isinstance(value, Dispatcher)]
left = [kernel.py_func for kernel in jit.kernels() if id(kernel) not in reached]
print(len(jit.kernels()), sorted(f"{function.__module__}.{function.__name__}" for function in left))
"""
"""All jobs in one process: what failed, how many kernels were compiled, and those that nothing reached."""

UNREACHED: dict[str, str] = {}
"""Kernels that `doctor --warm` leaves to whoever calls them, and why."""

INTERRUPTED = """
from wirewise.cli.warm import warm_kernels
warm_kernels([("planners.bitwidth",)] * 2)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_kernel_is_reached_and_the_next_process_compiles_nothing():
    # Where they are not compiled yet, a first process takes minutes: `make test-all` has done it before.
    failed, compiled, left = warm()
    if compiled > 1:
        failed, compiled, left = warm()
    assert (failed, compiled) == ("[]", 1)
    count, names = left.split(" ", 1)
    assert int(count) > 300 and names == str(sorted(UNREACHED))


def warm() -> tuple[str, int, str]:
    done = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    failed, compiled, left = done.stdout.splitlines()
    return failed, int(compiled), left


def test_jobs_are_of_many_kinds():
    steps = [step for job in JOBS for step in job]
    kinds = {" ".join(step.split()[:2]) for step in steps}
    assert {"trace show", "plan fusion", "plan collective", "plan jobs", "data partition"} <= kinds
    assert all(word not in step for step in steps for word in ("/", "~"))


def test_what_fails_in_a_process_is_named_and_the_others_are_done():
    failed = warm_kernels([("topo show nothing", "topo show h4"), ("topo show nowhere",)])
    assert [reason.split(":")[0] for reason in sorted(failed)] == ["topo show nothing", "topo show nowhere"]
    assert all("wirewise: " in reason for reason in failed)


def test_ctrl_c_leaves_no_process(tmp_path: Path):
    variables = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env=variables,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert command.stderr is not None
    # Processes are ready, and one has begun to compile.
    assert b"compiling kernels" in command.stderr.readline()
    children = children_of(command.pid)
    os.killpg(command.pid, signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors and command.returncode == -signal.SIGINT
    deadline = time.monotonic() + 20
    while left := [child for child in children if start_ticks(child)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert len(children) >= 2
