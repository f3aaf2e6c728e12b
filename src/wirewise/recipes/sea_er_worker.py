"""One worker of rehearsal on a growing graph: `-m wirewise.recipes.sea_er_worker FOLDER`.

It reads what `recipes.sea_er` prepared and learns with the others; rank 0 writes FOLDER/outcome.json.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from wirewise.files import atomic_file
from wirewise.profile.ending import end_process
from wirewise.recipes.launch import SAYS
from wirewise.recipes.sea_er import Job, grown, learn
from wirewise.runtime.incremental import Peers
from wirewise.runtime.transport import Transport

__all__ = ["main"]


def main(path: str) -> None:
    """Be the worker that the environment names."""
    torch.set_num_threads(1)
    folder = Path(path)
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=job.timeout_s))
    try:
        store = dist.distributed_c10d._get_default_store()
        transport = Transport(dist.group.WORLD, timeout_s=job.timeout_s, store=store)  # type: ignore[arg-type]
        peers = Peers(np.load(folder / "owner.npy"), transport)
        found = learn(job, grown(job, folder), peers, _say if transport.rank == 0 else lambda _: None)
        if transport.rank == 0:
            with atomic_file(folder / "outcome.json") as file:
                file.write(msgspec.json.encode(found))
    finally:
        dist.destroy_process_group()


def _say(text: str) -> None:
    sys.stdout.write(f"{SAYS}{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
    end_process()
