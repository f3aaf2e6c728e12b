"""A rank of a job that can be stopped and resumed: `-m wirewise.runtime.jobs.rank TARGET FOLDER`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from wirewise.hosts import exit_at_once
from wirewise.hosts.allocation import adopt_srun_rank

__all__ = ["run_rank"]


def run_rank(target: str, folder: str) -> NoReturn:
    """Run the rank defined by the environment of its launcher or srun, and end this process.

    Args:
        target: Function to call with the folder, as "module:function" or "/path/FILE.py:function"; the file's folder
            is on the module path, as for a script.
        folder: Folder of the job.
    """
    code = 0
    try:
        from wirewise.runtime.jobs.training import install_stop_handler

        # Before anything else: a rank that is asked to stop while it starts still saves what it has loaded.
        install_stop_handler()
        adopt_srun_rank()
        import torch

        torch.set_num_threads(1)
        module, _, function = target.rpartition(":")
        if module.endswith(".py"):
            sys.path.insert(0, str(Path(module).parent))
            module = Path(module).stem
        getattr(importlib.import_module(module), function)(Path(folder))
    except BaseException:
        traceback.print_exc()
        code = 1
    # Threads of torch that still wait must not keep it.
    exit_at_once(code)


if __name__ == "__main__":
    run_rank(sys.argv[1], sys.argv[2])
