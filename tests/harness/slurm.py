"""What tests on a Slurm of the lab share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from wirewise.lab import SlurmCluster

ROOT = Path(__file__).parents[2]


def in_allocation(
    cluster: SlurmCluster,
    hosts: int,
    *argv: str | Path,
    python: str | Path = sys.executable,
    per_host: int = 1,
    **options: Any,
) -> str:
    """Run Python on the head, inside an allocation; what it prints."""
    paths = [str(ROOT / "src"), str(ROOT)]
    asked = [f"--nodes={hosts}", f"--ntasks-per-node={per_host}"]
    programs = [str(Path(sys.prefix, "bin")), os.environ["PATH"]]
    environment = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join(programs),
        **options.pop("environment", {}),
    }
    words = ["salloc", "--quiet", *asked, str(python), *map(str, argv)]
    return cluster.run(*words, environment=environment, timeout_s=options.pop("timeout_s", 240.0), **options)
