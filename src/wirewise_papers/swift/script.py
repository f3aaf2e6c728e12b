"""Training script as users write it: DistributedDataParallel, a checkpoint every K steps, restarted by torchrun.

    torchrun --max-restarts 100 ... script.py FOLDER

It needs torch alone, so that a restart imports nothing more. FOLDER/script.json describes the training.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

__all__ = ["dataset", "loader_of", "model_of", "optimizer_of", "start"]

FEATURES, CLASSES, ROWS = 512, 128, 4096


def dataset(seed):
    """Samples labelled by a random linear map; float32 [rows, 512] and int64 [rows]."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, FEATURES, generator=random)
    return TensorDataset(x, (x @ torch.randn(FEATURES, CLASSES, generator=random)).argmax(1))


def model_of(settings):
    """Model with two hidden layers and dropout, with the same weights on all ranks."""
    torch.manual_seed(settings["seed"])
    width = settings["width"]
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.GELU(), nn.Dropout(settings["dropout"]),
        nn.Linear(width, FEATURES), nn.GELU(), nn.Dropout(settings["dropout"]),
        nn.Linear(FEATURES, CLASSES),
    )  # fmt: skip


def optimizer_of(settings, parameters):
    """Optimizer of torch, by its name in lower case."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    more = {"momentum": 0.9} if settings["optimizer"] == "sgd" else {}
    return kinds[settings["optimizer"]](parameters, lr=settings["learning_rate"], **more)


def loader_of(settings, rank, ranks):
    """Batches of a rank, shuffled by seed and epoch."""
    data = dataset(settings["seed"])
    sampler: DistributedSampler = DistributedSampler(data, ranks, rank, seed=settings["seed"])
    return DataLoader(data, settings["batch_size"], sampler=sampler)


def start(folder):
    """Set up the training of all torchrun ranks in a process group."""
    torch.set_num_threads(1)
    settings = json.loads((folder / "script.json").read_text())
    dist.init_process_group("gloo", timeout=timedelta(seconds=settings["timeout_s"]))
    return settings


def main(folder):
    """Train until the last step, starting from the newest checkpoint."""
    settings = start(folder)
    rank, path = dist.get_rank(), folder / "checkpoint.pt"
    model = model_of(settings)
    step = 0
    optimizer = optimizer_of(settings, model.parameters())
    if path.exists():
        state = torch.load(path)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = nn.parallel.DistributedDataParallel(model)
    loader = loader_of(settings, rank, dist.get_world_size())
    # As `wirewise.hosts.owner_tag`, which a restart would have to import: process id, start time, process namespace.
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    tag = f"{os.getpid()}-{ticks}-{Path('/proc/self/ns/pid').stat().st_ino}"
    while step < settings["steps"]:
        epoch, begin = divmod(step, len(loader))
        loader.sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if number < begin:
                continue
            torch.manual_seed(settings["seed"] * 1_000_003 + step * 1009 + rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            with (folder / f"steps-{rank}").open("a") as file:
                file.write(f"{step} {time.monotonic():.6f} {tag} {os.uname().nodename}\n")
            every = settings["every"]
            if every and step % every == 0 and rank == 0:
                start_s = time.monotonic()
                state = {
                    "step": step,
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                torch.save(state, path.with_suffix(".new"))
                path.with_suffix(".new").rename(path)
                with (folder / "checkpoints").open("a") as file:
                    file.write(f"{step} {time.monotonic() - start_s:.6f}\n")
            if step == settings["steps"]:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
