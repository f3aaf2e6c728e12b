"""Start-up hook that runs functions in every rank of a command that does not use wirewise.

Python imports a module of this name at its start; `profile.launch.environment` puts this folder first on the path.
The functions named in WIREWISE_STARTUP run once torch is imported, so a script that never imports torch is
unaffected.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# The launcher itself is no rank.
_NO_RANK = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# Processes that multiprocessing starts: ranks, or workers of loaders, which train nothing.
_SPAWNED = ("--multiprocessing-fork", "multiprocessing.forkserver")


def _is_rank():
    words = " ".join(sys.orig_argv)
    if "resource_tracker" in words:
        return False
    if any(word in words for word in _SPAWNED):
        # Those of a fork server have no start of their own: it hands the finder on to them.
        follows = "WIREWISE_FOLLOW_SPAWNED" in os.environ
        return follows or ("RANK" in os.environ and "multiprocessing.forkserver" not in words)
    return "RANK" in os.environ or not any(word in words for word in _NO_RANK)


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
