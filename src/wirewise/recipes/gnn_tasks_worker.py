"""One host of placed tasks: `-m wirewise.recipes.gnn_tasks_worker FOLDER`.

It carries out its part of every plan in FOLDER/job.json, in turns; host 0 writes FOLDER/outcome.json.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from wirewise.decoding import decode_json
from wirewise.errors import PeerError
from wirewise.files import write_json
from wirewise.recipes.gnn_tasks import PlacementJob, lab_links
from wirewise.runtime.flows import Connections, execute, meet
from wirewise.sim.flows.measured import OpTimes
from wirewise.trials.log import Text, write_line
from wirewise.trials.start import JOB, OUTCOME
from wirewise.trials.windows import turns

__all__ = ["main"]


def main(path: str) -> None:
    """Be the host that the environment names."""
    folder = Path(path)
    job = decode_json((folder / JOB).read_bytes(), PlacementJob)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    measured: dict[str, list[OpTimes]] = {name: [] for name in job.plans}
    with meet(rank, world_size, address, port, timeout_s=job.timeout_s) as peers:
        for _, name in turns(list(job.plans), job.turns):
            whole = _carry_out(job, name, peers)
            if whole is not None:
                measured[name].append(whole)
    if rank == 0:
        write_json(folder / OUTCOME, measured)


def _carry_out(job: PlacementJob, name: str, peers: Connections) -> OpTimes | None:
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
    write_line(Text(f"{name}: {whole[1].max() / steps:.3f} s an iteration"))
    return OpTimes(start_s=whole[0].tolist(), end_s=whole[1].tolist())


if __name__ == "__main__":
    main(sys.argv[1])
