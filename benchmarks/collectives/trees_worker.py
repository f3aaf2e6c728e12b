"""One rank of a broadcast along a tree: event-driven, and with waits after every segment, interleaved.

    torchrun trees_worker.py JOB.json

The job: `program` (a file, with segments), `size_bytes`, `turns`, `calls` in a turn, `windows`, and windows `one` for
a third way that waits, over connections of its own, or none. Each rank prints its own seconds of a call, and those of
the slowest rank.
"""

import json
import sys
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from wirewise.collective import load
from wirewise.runtime.collective import connect
from wirewise.trials.rank import join_job


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with (
        join_job(),
        connect(windows=chosen(job, "windows")) as group,
        connect(windows=chosen(job, "one")) as other,
    ):
        program = load(job["program"])
        whole = msgspec.structs.replace(program, segments=1)
        tensor = torch.zeros(job["size_bytes"] // 4)
        pieces = tensor.tensor_split(program.segments)

        def waiting(group):
            """Tree in which the next segment starts when the last one is received and sent to all children."""
            for piece in pieces:
                group.broadcast(piece, program=whole)

        ways = {"event": lambda: group.broadcast(tensor, program=program), "waiting": lambda: waiting(group)}
        if "one" in job:
            ways["one"] = lambda: waiting(other)
        own, slowest = ({name: [] for name in ways} for _ in range(2))
        for call in ways.values():
            call()
        print("ready", flush=True)
        for _ in range(job["turns"]):
            for name, call in ways.items():
                mean, most = measured(call, job["calls"])
                own[name].append(mean)
                slowest[name].append(most)
        print(json.dumps({"rank": group.rank, "own": own, "slowest": slowest}), flush=True)


def chosen(job, name):
    """Bytes at the sender and at the receiver; None: as the kernel sees fit."""
    found = job.get(name)
    return found and tuple(found)


def measured(call, calls):
    """Mean seconds of a call on this rank, and of the whole turn on the slowest one."""
    mine = 0.0
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        before = time.perf_counter()
        call()
        mine += time.perf_counter() - before
    took = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return mine / calls, took.item()


if __name__ == "__main__":
    main()
