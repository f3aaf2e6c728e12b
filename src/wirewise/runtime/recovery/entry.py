"""Entry and exit of a process started by an agent."""

from __future__ import annotations

import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wirewise.errors import InputError
from wirewise.hosts import exit_at_once, integer_variable
from wirewise.runtime.recovery import control
from wirewise.runtime.recovery.generations import ErrorRaised

__all__ = ["enter", "run_script"]

_GRACE_S = 5.0


def run_script(path: str, arguments: Sequence[str] = ()) -> None:
    """Run a script as the main program, as `python path arguments` does; target of `Agent` for a user's script.

    It remains the main program until the process ends, so that loader workers of every start method find its classes.

    Raises:
        InputError: The script creates a process group before it calls `protect`.
    """
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    main = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    try:
        exec(compile(loader.get_data(path), path, "exec"), vars(main))
    except ValueError as error:
        if "environment variable RANK expected" not in str(error):
            raise
        raise InputError(
            f"{path} calls init_process_group before protect, and has no rank yet: under an agent `protect` waits for "
            "a role and joins the group of all ranks. Expected no process group of the script's own before it"
        ) from error


def enter(descriptor: int, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run the agent's target in this process.

    Args:
        descriptor: Control channel to the agent.
        target: Function passed to the agent.
        arguments: Arguments of the target.
    """
    import torch

    torch.set_num_threads(integer_variable("OMP_NUM_THREADS", 1, minimum=1))
    code: Any = Path(arguments[0]) if target is run_script else target
    link = control.adopt_channel(Connection(descriptor), code)
    try:
        try:
            target(*arguments)
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        if link.at_end is not None:
            link.at_end()
    except SystemExit as end:
        if end.code not in (None, 0):
            link.notify(ErrorRaised(link.worker, f"exit code {end.code}"))
        raise
    except BaseException:
        text = traceback.format_exc()
        sys.stderr.write(text)
        link.notify(ErrorRaised(link.worker, text))
        time.sleep(_GRACE_S)
        # What the script has printed is in a buffer where its output is a file.
        exit_at_once(1)
