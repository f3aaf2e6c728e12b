"""What codecs remember, in a file for each rank beside a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from wirewise.errors import InputError
from wirewise.files import atomic_file
from wirewise.runtime.data_parallel import HookState
from wirewise.runtime.data_parallel.pools import resize

__all__ = ["load_pools", "save_pools"]

_NAME = "wirewise-rank{}.pt"


def save_pools(state: HookState, folder: str | Path) -> None:
    """Write the file of this rank.

    Raises:
        InputError: The folder does not take it; an older file is still whole.
    """
    with atomic_file(Path(folder) / _NAME.format(dist.get_rank())) as file:
        torch.save(state.state_dict(), file)


def load_pools(state: HookState, folder: str | Path) -> None:
    """Read what this rank saved; where as many ranks as now did not save, the mean of what all saved.

    Raises:
        InputError: No files, or files that do not belong together.
    """
    files = sorted(Path(folder).glob(_NAME.format("*")))
    if not files:
        raise InputError(
            f"{folder} has no {_NAME.format('*')}; expected a checkpoint that was saved under compression"
        )
    states = [torch.load(file, map_location="cpu", weights_only=True) for file in files]
    world = dist.get_world_size()
    if len(files) == world:
        own = Path(folder) / _NAME.format(dist.get_rank())
        state.load_state_dict(states[files.index(own)])
    else:
        state.load_state_dict(resize(states, world))
