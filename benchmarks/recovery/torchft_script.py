"""The benchmark's training under torchft (https://github.com/meta-pytorch/torchft), as its documentation says.

    torchrun --max-restarts 100 ... torchft_script.py FOLDER HOST ADDRESS

Each host is a replica group of one rank, restarted by its torchrun. Survivors go on without the group that failed; its
batches are not taken meanwhile. The rank notes a step whenever torchft says that it is committed.
"""

import json
import logging
import socket
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torchft
from torch import nn

from wirewise_papers.swift.kills import note_step
from wirewise_papers.swift.script import loader_of, model_of, optimizer_of


def main(folder, host, address):
    torch.set_num_threads(1)
    # Hosts of a lab have addresses and no names, and torchft announces checkpoints under the name.
    socket.gethostname = lambda: address
    logging.disable(logging.INFO)
    settings = json.loads((folder / "script.json").read_text())
    model = model_of(settings)
    inner = optimizer_of(settings, model.parameters())

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=settings["timeout_s"])),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=settings["least_replicas"],
        replica_id=f"host{host}",
        hostname=address,
        timeout=timedelta(seconds=settings["timeout_s"]),
        quorum_timeout=timedelta(seconds=settings["timeout_s"]),
        connect_timeout=timedelta(seconds=settings["timeout_s"]),
    )
    optimizer = torchft.Optimizer(manager, inner)
    batches = list(loader_of(settings, host, settings["ranks"]))
    while manager.current_step() < settings["steps"]:
        x, y = batches[manager.current_step() % len(batches)]
        before = manager.current_step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        # Not torchft.DistributedDataParallel: version 0.2.0 raises an AssertionError in it when a peer has died.
        for work in [manager.allreduce(p.grad) for p in model.parameters()]:
            work.wait()
        optimizer.step()
        if manager.current_step() > before:
            note_step(folder, host, manager.current_step())
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
