"""What all tests share: one thread a process, nothing left behind, and the reasons for skips."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading

# Before torch and numba load; ranks are many and cores are few.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.browser import browser_path
from tests.harness.leftovers import Snapshot
from tests.harness.processes import start_server
from tests.harness.tiers import leave_out_exhaustive, leave_out_sweeps

if TYPE_CHECKING:
    from wirewise.lab import SlurmCluster

_MANY_THREADS = 300


@pytest.fixture(autouse=True)
def processes_start_warm(request: pytest.FixtureRequest) -> None:
    """Tests that start ranks start them warm; a test marked `cold` starts them as users do."""
    marks = {mark.name for mark in request.node.iter_markers()}
    if marks & {"dist", "lab", "slurm"} and "cold" not in marks:
        request.getfixturevalue("warm_ranks")


@pytest.fixture(autouse=True)
def nothing_left_behind(processes_start_warm: None) -> Iterator[None]:
    """Fail a test that leaves processes, threads, variables, namespaces or a process group."""
    # Ranks that are over keep their waiting threads until they are collected, which a large heap puts off for long.
    if threading.active_count() > _MANY_THREADS:
        gc.collect()
    before = Snapshot.take()
    yield
    if left := before.leftovers():
        pytest.fail(f"the test left behind: {'; '.join(left)}", pytrace=False)


@pytest.fixture(scope="session")
def wirewise_data() -> Path:
    """The folder of downloaded sets; a continuous-integration run must have it."""
    root = os.environ.get("WIREWISE_DATA")
    if root and Path(root).is_dir():
        return Path(root)
    reason = f"WIREWISE_DATA is {root!r}; set it to the folder that holds the downloaded sets"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_sweeps(items)
    if left := leave_out_exhaustive(items):
        config.hook.pytest_deselected(items=left)


@pytest.fixture(scope="session")
def slurm_cluster(warm_server: Callable[[], Path]) -> Iterator[SlurmCluster]:
    """A Slurm of three hosts that tests marked slurm share; one that breaks a host or a daemon has its own.

    Its daemons wait for each other while the warm Python loads what most of these tests start ranks with.
    """
    from wirewise.lab import SlurmCluster

    _need_slurm()
    with SlurmCluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def warm_server() -> Iterator[Callable[[], Path]]:
    """A Python that begins to load what ranks import; what waits for it and gives its program."""
    from tests.harness.warm import warm_server

    with warm_server() as ready:
        yield ready


@pytest.fixture(scope="session")
def warm_python(warm_server: Callable[[], Path]) -> Path:
    """A Python that has loaded what ranks import."""
    return warm_server()


@pytest.fixture
def warm_ranks(warm_python: Path) -> Iterator[Path]:
    """Python that has loaded torch and the library, as `sys.executable` of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_python))
        yield warm_python


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("dist"):
        start_server()
    if item.get_closest_marker("gpu"):
        _need_gpu()
    if item.get_closest_marker("lab"):
        _need_lab()
    if item.get_closest_marker("slurm"):
        _need_slurm()
    if item.get_closest_marker("browser"):
        _need_browser()
    if item.get_closest_marker("triton"):
        _need_triton()


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def _need_lab() -> None:
    from wirewise import lab

    usable, reason = lab.available()
    if usable:
        return
    if os.environ.get("WIREWISE_REQUIRE_LAB") == "1":
        pytest.fail(f"WIREWISE_REQUIRE_LAB=1, but the lab cannot be built: {reason}", pytrace=False)
    pytest.skip(f"the lab cannot be built: {reason}")


def _need_slurm() -> None:
    from wirewise import lab

    usable, reason = lab.slurm_available()
    if usable:
        return
    if os.environ.get("WIREWISE_REQUIRE_SLURM") == "1":
        pytest.fail(f"WIREWISE_REQUIRE_SLURM=1, but no Slurm can be run: {reason}", pytrace=False)
    pytest.skip(f"no Slurm can be run: {reason}")


def _need_triton() -> None:
    if importlib.util.find_spec("triton") is not None:
        return
    reason = 'no Triton; pip install -e ".[triton]"'
    if os.environ.get("WIREWISE_REQUIRE_TRITON") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _need_browser() -> None:
    if browser_path() is not None:
        return
    reason = "no browser; install Chromium (Debian: apt-get install chromium)"
    if os.environ.get("CI") or os.environ.get("WIREWISE_REQUIRE_BROWSER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
