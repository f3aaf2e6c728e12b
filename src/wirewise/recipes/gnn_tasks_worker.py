"""One host of placed tasks: `-m wirewise.recipes.gnn_tasks_worker FOLDER`.

It carries out its part of every plan in FOLDER/job.json, in turns; host 0 writes FOLDER/outcome.json.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import numpy as np

from wirewise.errors import PeerError
from wirewise.files import atomic_file
from wirewise.recipes.gnn_tasks import Job, OpTimes, lab_links
from wirewise.recipes.launch import SAYS
from wirewise.runtime.flows import Connections, execute, meet

__all__ = ["main"]


def main(path: str) -> None:
    """Be the host that the environment names."""
    folder = Path(path)
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    measured: dict[str, list[OpTimes]] = {name: [] for name in job.plans}
    with meet(rank, world_size, address, port, timeout_s=job.timeout_s) as peers:
        for _ in range(job.turns):
            for name in job.plans:
                whole = _carry_out(job, name, peers)
                if whole is not None:
                    measured[name].append(whole)
    if rank == 0:
        with atomic_file(folder / "outcome.json") as file:
            file.write(msgspec.json.encode(measured))


def _carry_out(job: Job, name: str, peers: Connections) -> OpTimes | None:
    """Times of all ops, on host 0."""
    times = execute(job.plans[name], job.tasks, peers, lab_links(job.links))
    parts = peers.gather(np.stack(times).tobytes())
    if not parts:
        return None
    both = np.stack([np.frombuffer(part).reshape(2, -1) for part in parts])
    whole = np.nanmax(both, axis=0)
    if not np.isfinite(whole).all():
        raise PeerError(
            f"plan {name!r}: {np.isnan(whole).any(axis=0).sum()} ops never ended; see the hosts' logs"
        )
    steps = job.tasks.iterations
    sys.stdout.write(f"{SAYS}{name}: {whole[1].max() / steps:.3f} s an iteration\n")
    sys.stdout.flush()
    return OpTimes(start_s=whole[0].tolist(), end_s=whole[1].tolist())


if __name__ == "__main__":
    main(sys.argv[1])
