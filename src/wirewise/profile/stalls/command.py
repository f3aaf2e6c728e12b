"""A user's training command, taken apart so that it can be started with other ranks and on other hosts."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from wirewise.errors import InputError

__all__ = ["Launch", "parse_command"]


@dataclass(frozen=True)
class Launch:
    """What to start."""

    arguments: list[str]
    """What follows torchrun (a script or -m module, and arguments); without torchrun the whole command."""
    ranks: int
    torchrun: bool


def parse_command(command: list[str]) -> Launch:
    """Take `torchrun ... train.py` or `python [-m torch.distributed.run ...] train.py` apart.

    Raises:
        InputError: The program is not there, or torchrun is told of several machines or of no script.
    """
    program = shutil.which(command[0]) or shutil.which(command[0], path=str(Path(sys.executable).parent))
    if program is None:
        raise InputError(f"there is no program {command[0]!r}; expected a command such as torchrun train.py")
    if Path(program).name == "torchrun":
        return _torchrun(command[1:])
    if command[1:3] == ["-m", "torch.distributed.run"]:
        return _torchrun(command[3:])
    return Launch([program, *command[1:]], 1, torchrun=False)


def _torchrun(words: list[str]) -> Launch:
    from torch.distributed.run import determine_local_world_size, get_args_parser

    try:
        options = get_args_parser().parse_args(words)
    except SystemExit as error:
        raise InputError(
            f"torchrun does not understand {' '.join(words)!r}; expected its options and a script"
        ) from error
    if str(options.nnodes) not in ("1", "1:1"):
        raise InputError(
            f"the command asks for --nnodes={options.nnodes}; give the command of one machine with all ranks, "
            "and --hosts or --network-command for several"
        )
    module = ["-m"] if options.module else []
    arguments = [*module, options.training_script, *options.training_script_args]
    return Launch(arguments, determine_local_world_size(options.nproc_per_node), torchrun=True)
