"""`wirewise doctor`: check what this machine supports, what is missing, and how to fix it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import wirewise
from wirewise.cli.output import write_out
from wirewise.errors import GraphError
from wirewise.jit import private_folder
from wirewise.topology import processor
from wirewise.units import format_rate, format_size

__all__ = ["Finding", "checks", "report"]

_KERNELS = ("codec", "graph.ops", "planners.bitwidth")
_UNTRIED = "wirewise's paths between several GPUs were not yet run"


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    state: str
    """ "ok", "missing" (optional; wirewise works without it) or "broken" (needed)."""
    found: str
    advice: str = ""


def report(*, warm: bool = False, json: str | None = None) -> bool:
    """Print all checks, or write them as JSON; return False if something required is broken."""
    found = list(checks(warm=warm))
    healthy = all(check.state != "broken" for check in found)
    record = {"ok": healthy, "checks": [check._asdict() for check in found]}
    write_out(json, record, (["part", "state", "found", "what to do"], found))
    return healthy


def checks(*, warm: bool = False) -> Iterator[Finding]:
    """Run every check; one that fails unexpectedly is reported as broken, and the others still run.

    Args:
        warm: Compile the kernels, instead of only checking whether they are compiled.
    """
    necessary: dict[str, Callable[[], tuple[str, ...]]] = {
        "wirewise": _versions,
        "cpu": _cpu,
        "torch": _torch,
        "numba": lambda: _package("numba"),
        "metis": _metis,
        "highs": _highs,
        "kernels": _warm if warm else _kernels,
        "self-test": _selftest,
    }
    optional: dict[str, Callable[[], tuple[str, ...]]] = {
        "triton": _triton,
        "cuda": _cuda,
        "lab": _lab,
        "data": _data,
    }
    for name, check in (necessary | optional).items():
        try:
            yield Finding(name, *check())
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            state = "broken" if name in necessary else "missing"
            yield Finding(name, state, text, f"mend or reinstall what {name} needs")


def _versions() -> tuple[str, ...]:
    return "ok", f"{wirewise.__version__}, Python {platform.python_version()}, {platform.platform()}"


def _package(name: str) -> tuple[str, ...]:
    importlib.import_module(name)
    return "ok", importlib.metadata.version(name)


def _cpu() -> tuple[str, ...]:
    usable = len(os.sched_getaffinity(0))
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return "ok", f"{processor()[0]}, {usable} usable cores, {format_size(pages * page_bytes)} memory"


def _torch() -> tuple[str, ...]:
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return (
            "broken",
            f"{torch.__version__} without torch.distributed's gloo",
            "install a build of PyTorch for Linux that has gloo",
        )
    return "ok", f"{torch.__version__}, gloo, {torch.get_num_threads()} threads"


def _triton() -> tuple[str, ...]:
    if importlib.util.find_spec("triton") is None:
        return "missing", "not installed; only CUDA devices use it", "comes with PyTorch's CUDA builds"
    return _package("triton")


def _cuda() -> tuple[str, ...]:
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        return (
            "missing",
            f"no CUDA device is usable; everything runs on the CPU; {_UNTRIED}",
            "install PyTorch's CUDA build on a machine with a GPU",
        )
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    if not dist.is_nccl_available():
        return (
            "missing",
            f"{names}, CUDA {torch.version.cuda}, no NCCL",
            "install a build of PyTorch with NCCL",
        )
    version: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
    nccl = ".".join(map(str, version()))
    return "ok", f"{names}, CUDA {torch.version.cuda}, NCCL {nccl}; {_UNTRIED}: `pytest -m gpu` tries them"


def _metis() -> tuple[str, ...]:
    if importlib.util.find_spec("pymetis") is None:
        return "missing", "not installed; partitions of graphs use it", "pip install 'wirewise[gnn]'"
    import pymetis

    cuts, owner = pymetis.part_graph(2, adjacency=[[1], [0, 2], [1, 3], [2]])
    if cuts != 1 or sorted(owner) != [0, 0, 1, 1]:
        return (
            "broken",
            f"cut a path of 4 nodes {cuts} times into {owner}; once into halves is right",
            "reinstall pymetis",
        )
    return _package("pymetis")


def _highs() -> tuple[str, ...]:
    import numpy as np
    from scipy.optimize import milp

    solved = milp(c=np.array([-1.0]), bounds=(0, 2.5), integrality=np.array([1]))
    if solved.x is None or round(solved.x[0]) != 2:
        return "broken", f"a program of one integer was not solved: {solved.message}", "reinstall scipy"
    return "ok", f"solves mixed-integer programs, scipy {importlib.metadata.version('scipy')}"


def _kernels() -> tuple[str, ...]:
    counts = {name: len(list(_cache_folder(name).rglob("*.nbi"))) for name in _KERNELS}
    text = ", ".join(f"{name}: {count or 'none'}" for name, count in counts.items())
    if all(counts.values()):
        return "ok", f"compiled kernels on disk: {text}"
    return (
        "missing",
        f"compiled kernels on disk: {text}",
        "run `wirewise doctor --warm` once, or let the first run compile them",
    )


def _cache_folder(part: str) -> Path:
    """Where numba keeps the kernels of a folder of wirewise; its subfolders are included."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return Path(os.environ["NUMBA_CACHE_DIR"])
    own = Path(wirewise.__file__).parent.joinpath(*part.split("."))
    if os.access(own, os.W_OK):
        return own
    # A user of a container may have no home.
    with suppress(RuntimeError):
        users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
        if users.is_dir():
            return users
    return private_folder() or own


def _warm() -> tuple[str, ...]:
    from wirewise.cli.warm import JOBS, warm_kernels

    failed = warm_kernels()
    count = sum(map(len, JOBS))
    if not failed:
        return "ok", f"compiled: all kernels, by {count} small commands and calls"
    return (
        "missing",
        f"compiled: what {count - len(failed)} of {count} small commands and calls need; not {failed[0]}",
        "run that command to see why",
    )


def _selftest() -> tuple[str, ...]:
    from wirewise.cli.selftest import run_selftest

    message_bytes, bytes_per_s = run_selftest()
    text = (
        f"2 ranks exchanged {format_size(message_bytes)} of packed rows over gloo; loopback "
        f"{format_rate(bytes_per_s)} each way"
    )
    return "ok", text


def _lab() -> tuple[str, ...]:
    from wirewise import lab

    usable, reason = lab.available()
    if usable:
        return "ok", "hosts as network namespaces with shaped links"
    return "missing", reason, "install iproute2 and run as root or where user namespaces are allowed"


def _data() -> tuple[str, ...]:
    from wirewise.graph.datasets import data_root

    try:
        root = data_root()
    except GraphError as error:
        return "missing", f"{error}; the shipped graph needs no folder", "set WIREWISE_DATA"
    if root.is_dir():
        return "ok", f"downloaded sets are kept in {root}"
    return (
        "missing",
        f"{root} does not exist; the shipped graph needs no folder",
        "made at the first download; set WIREWISE_DATA to keep sets elsewhere",
    )
