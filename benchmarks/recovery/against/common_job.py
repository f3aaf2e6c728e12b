"""The job of all four scripts, and how they note a step: three linear layers with dropout on rows of a random map."""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

__all__ = ["BATCH", "model_of", "note", "rows"]

BATCH = 32


def rows():
    """4,096 rows of 512 features, of 128 classes."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 512, generator=random)
    return TensorDataset(x, (x @ torch.randn(512, 128, generator=random)).argmax(1))


def model_of():
    """1.1 million parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return nn.Sequential(
        nn.Linear(512, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 128)
    )


def note(folder, rank, step):
    """Note that a rank has made a step: its number, the time, the process."""
    with (Path(folder) / f"steps-{rank}").open("a") as file:
        file.write(f"{step} {time.monotonic():.6f} {os.getpid()}\n")
