"""Runs functions in every rank process of a command that knows nothing of wirewise.

Python imports a module of this name at its start; `profile.launch.environment` puts this folder first on the
path. The functions that WIREWISE_STARTUP names run once torch is there, so a script that never imports torch
is left alone.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# The launcher itself and the helpers of multiprocessing are no ranks.
_NO_RANK = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "--multiprocessing-fork")


def _is_rank():
    if any(word in " ".join(sys.orig_argv) for word in ("multiprocessing.forkserver", "resource_tracker")):
        return False
    return "RANK" in os.environ or not any(word in part for part in sys.orig_argv for word in _NO_RANK)


def _run_entries():
    for entry in filter(None, os.environ.get("WIREWISE_STARTUP", "").split(",")):
        module, _, function = entry.partition(":")
        getattr(importlib.import_module(module), function)()


class _AfterTorch:
    """A finder that lets others find torch, and runs the functions at the end of its import."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _run_entries()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _the_next_one():
    """Run the sitecustomize that this one hides."""
    sys.path[:] = [p for p in sys.path if Path(p).resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_the_next_one()
if _is_rank():
    sys.meta_path.insert(0, _AfterTorch())
