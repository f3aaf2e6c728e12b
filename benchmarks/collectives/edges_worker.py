"""One rank: bytes over each edge of a group, one edge after the other; each rank prints what the kernel counted.

    torchrun edges_worker.py JOB.json

The job: `size_bytes` of a message, `repeats`.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from wirewise.collective import Program, Transfer
from wirewise.runtime.collective import connect
from wirewise.trials.rank import join_job


def over(source, target, ranks):
    """One message over one edge; the other ranks have no part in it."""
    return Program(
        name="one edge",
        collective="broadcast",
        ranks=ranks,
        chunks=1,
        root=source,
        members=tuple(sorted((source, target))),
        transfers=(Transfer(0, source, target, 0),),
    )


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with join_job(), connect() as group:
        tensor = torch.zeros(job["size_bytes"] // 4)
        for source, target in itertools.permutations(range(group.size), 2):
            program = over(source, target, group.size)
            for _ in range(job["repeats"]):
                dist.barrier()
                if group.rank in program.members:
                    group.broadcast(tensor, root=source, program=program)
                else:
                    group.relay(program, tensor.numel(), tensor.dtype)
        dist.barrier()
        edges = [
            {"edge": [e.source, e.target], "bytes_per_s": e.bytes_per_s, "round_trip_s": e.round_trip_s}
            for e in group.statistics()
            if e.source == group.rank
        ]
        print(json.dumps({"edges": edges}), flush=True)


if __name__ == "__main__":
    main()
