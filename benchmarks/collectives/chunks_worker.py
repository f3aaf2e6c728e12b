"""One rank: tunes the chunk size of a program, then runs a grid of sizes and the tuned ones interleaved.

    torchrun chunks_worker.py JOB.json

The job: `program` (a file), `size_bytes`, `least_bytes` of a chunk, `tunings`, `turns`. Rank 0 prints the seconds of
each number of segments, and of each tuning its segments, probes and seconds; a time is that of the slowest rank.
"""

import json
import sys
import time
from pathlib import Path

import torch

from wirewise.collective import load
from wirewise.runtime.collective import connect, tune_chunk_size
from wirewise.runtime.collective.chunks import segments_of
from wirewise.trials.rank import join_job


def grid_of(program, size_bytes, least_bytes):
    """Numbers of segments: chunks of `least_bytes`, twice as much and so on, and one whole chunk."""
    found, chunk_bytes = [], least_bytes
    while not found or found[-1] > 1:
        found.append(segments_of(program, size_bytes, chunk_bytes))
        chunk_bytes *= 2
    return sorted(set(found))


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with join_job(), connect() as group:
        program, size_bytes = load(job["program"]), job["size_bytes"]
        tensor = torch.zeros(size_bytes // 4)
        call = getattr(group, program.collective)
        tuned = [tune_chunk_size(group, program, size_bytes) for _ in range(job["tunings"])]
        grid = {segments: [] for segments in grid_of(program, size_bytes, job["least_bytes"])}
        own = [[] for _ in tuned]
        for turn in range(job["turns"] + 1):
            ways = [
                *grid.items(),
                *((one.program.segments, times) for one, times in zip(tuned, own, strict=True)),
            ]
            for segments, times in ways:
                took = timed(group, lambda s=segments: call(tensor, program=program, segments=s))
                if turn:
                    times.append(took)
        if group.rank == 0:
            tunings = [
                {"segments": one.program.segments, "probes": len(one.probes), "seconds": times}
                for one, times in zip(tuned, own, strict=True)
            ]
            print(json.dumps({"grid": grid, "tunings": tunings}), flush=True)


def timed(group, call):
    """Seconds of a call on the slowest rank."""
    group.barrier()
    start = time.perf_counter()
    call()
    took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    group.all_reduce(took, op="max")
    return took.item()


if __name__ == "__main__":
    main()
