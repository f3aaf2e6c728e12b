"""A Python that has loaded what ranks import, for tests on hosts: a process starts in milliseconds, not in seconds.

`warm_server` gives a program that takes `-m MODULE ...`, `-c PROGRAM ...` and scripts as Python does. It asks a server,
which has the modules, to fork; the new process takes the namespaces (network, names, mounts, clocks), variables, folder
and open files of the program that asked, which hands signals on to it, ends as it ends, and takes it along when it is
killed. Whatever else it is asked to do it leaves to the Python that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PRELOAD = (
    "torch.distributed", "torch._dynamo", "torch.distributed.run", "numba", "scipy.optimize", "scipy.sparse", "highspy",
    "pymetis", "typer.testing", "wirewise.cli.main", "wirewise.trials.rank", "wirewise.codec", "wirewise.planners",
    "wirewise.runtime.recovery", "wirewise.runtime.full_graph", "wirewise.runtime.data_parallel", "wirewise.report",
    "torch_geometric", "wirewise_papers.cupcake.worker", "wirewise_papers.pipedream_2bw.training",
    "wirewise_papers.rhino.experiment", "wirewise_papers.salientpp.worker", "wirewise_papers.sea_er.experiment",
    "wirewise_papers.swift.experiment", "wirewise_papers.tapfinger.experiment",
)  # fmt: skip
"""What ranks and commands of most tests import."""
_PROGRAMS = {"python": [], "torchrun": ["-m", "torch.distributed.run"], "wirewise": ["-m", "wirewise"]}
"""Programs beside a Python, and what Python runs them as."""
_READY_S = 300.0
_CLIENT = Path(__file__).parent / "warm_client.py"


@contextmanager
def warm_server() -> Iterator[Callable[[], Path]]:
    """Start to load the modules; in the block, a function that waits for the end of that and gives the program."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        server, program = Path(folder) / "server", Path(folder) / "python"
        for name, words in _PROGRAMS.items():
            # Without the modules of the site, which it does not need.
            lines = [f"#!{sys.executable} -ISs", _CLIENT.read_text(), f"sys.argv[1:1] = {words!r}"]
            lines.append(f"main({str(server)!r}, {sys.executable!r})\n")
            program.with_name(name).write_text("\n".join(lines))
            program.with_name(name).chmod(0o755)
        words = [sys.executable, "-m", "tests.harness.warm_server", str(server), str(program), *PRELOAD]
        root = os.fspath(Path(__file__).parents[2])
        paths = os.pathsep.join([f"{root}/src", root])
        with subprocess.Popen(
            words, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, start_new_session=True
        ) as process:

            def ready() -> Path:
                until_s = time.monotonic() + _READY_S
                while not server.exists():
                    if process.poll() is not None or time.monotonic() > until_s:
                        raise RuntimeError(f"no server of processes came up: exit code {process.returncode}")
                    time.sleep(0.02)
                return program

            try:
                yield ready
            finally:
                # It ends with its input, and whatever it has forked with it.
                assert process.stdin is not None
                process.stdin.close()
                if not server.exists():
                    process.kill()
