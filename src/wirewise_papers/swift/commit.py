"""Training with in-memory commits as in Elastic Horovod: survivors roll back, a new process joins.

    swift_commit.py FOLDER RANK STORE_ADDRESS STORE_PORT

Each host restarts its rank when it has died. Survivors keep a copy of the state every few steps in their own memory;
after a failure they roll back to it, wait for the new process, and send it the copy.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from wirewise.errors import PeerError
from wirewise.runtime.startup import join_group
from wirewise_papers.swift.kills import note_step
from wirewise_papers.swift.script import loader_of, model_of, optimizer_of

__all__ = ["LOOP", "STORE", "main"]

LOOP = 'until "$@"; do export WIREWISE_RESTARTS=$((${WIREWISE_RESTARTS:-0} + 1)); done'
"""Shell loop that restarts a rank until it succeeds."""
STORE = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("0.0.0.0", int(sys.argv[1]), is_master=True, wait_for_workers=False)
time.sleep(100_000)
"""
"""Program of the process with the store, which is never killed."""

_START_S = 120.0
"""Seconds that a process has to start in the place of a dead one; beside other work torch alone takes some."""
_POLL_S = 0.01


def main(folder: Path, rank: int, address: str, port: int) -> None:
    """Train until the last step; resume from the last commit after each failure of a peer."""
    torch.set_num_threads(1)
    settings = json.loads((folder / "script.json").read_text())
    ranks, every, timeout_s = settings["ranks"], settings["every"], settings["timeout_s"]
    model = model_of(settings)
    optimizer = optimizer_of(settings, model.parameters())
    loader = loader_of(settings, rank, ranks)
    batches, batches_epoch = list(loader), 0
    committed = (0, copy.deepcopy((model.state_dict(), optimizer.state_dict())))
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    # A process that takes the place of a dead one begins a generation, as does the first that has lost its peers.
    new = int(os.environ.get("WIREWISE_RESTARTS", "0")) > 0
    store.add("generation", int(new))
    while True:
        generation = _met(store, rank, ranks)
        try:
            join_group(PrefixStore(f"generation-{generation}", store), rank, ranks, timeout_s)
            steps = [0] * ranks
            dist.all_gather_object(steps, -1 if new else committed[0])
            source = max(range(ranks), key=lambda r: steps[r])
            held = [committed]
            dist.broadcast_object_list(held, source)
            committed, new = held[0], False
            step, (of_model, of_optimizer) = committed[0], copy.deepcopy(committed[1])
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            while step < settings["steps"]:
                epoch, number = divmod(step, len(batches))
                if epoch != batches_epoch:
                    loader.sampler.set_epoch(epoch)
                    batches, batches_epoch = list(loader), epoch
                x, y = batches[number]
                torch.manual_seed(settings["seed"] * 1_000_003 + step * 1009 + rank)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
                dist.all_reduce(gradients)
                shared = gradients.div_(ranks).split([p.numel() for p in model.parameters()])
                for p, own in zip(model.parameters(), shared, strict=True):
                    p.grad.copy_(own.view_as(p))
                optimizer.step()
                step += 1
                note_step(folder, rank, step)
                if step % every == 0:
                    committed = (step, copy.deepcopy((model.state_dict(), optimizer.state_dict())))
            dist.barrier()
            return
        except RuntimeError:
            if dist.is_initialized():
                dist.destroy_process_group()
            # A group that did not come about is counted too, and the count is part of names in the store.
            dist.distributed_c10d._world.group_count = 0
            store.compare_set("generation", str(generation), str(generation + 1))


def _met(store: Store, rank: int, ranks: int) -> int:
    """The generation to which all ranks have come; one that a newer one overtakes meanwhile is left at once."""
    deadline = time.monotonic() + _START_S
    while True:
        generation = store.add("generation", 0)
        store.set(f"{generation}-{rank}", "")
        while store.add("generation", 0) == generation:
            if store.check([f"{generation}-{one}" for one in range(ranks)]):
                return generation
            if time.monotonic() > deadline:
                raise PeerError(
                    f"rank {rank} waited {_START_S:g} s for the others of generation {generation}; look at their logs"
                )
            time.sleep(_POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
