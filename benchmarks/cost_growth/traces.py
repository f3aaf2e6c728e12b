"""Traces of data-parallel runs in the form in which `wirewise profile trace` writes them, drawn."""

import numpy as np

from wirewise.trace.files import RankWriter, rank_file
from wirewise.trace.records import Header, Op

GROUP = "world"
STEPS = 30
LAYERS_A_BUCKET = 24
BYTES_A_LAYER = 1_000_000
RATE_BYTES_PER_S = 1.25e9


def write_run(folder, events, ranks, *, steps=STEPS, seed=0):
    """Write a run of about so many events into a folder that is made, and give their number.

    A step is the forward and backward ops of a model's layers, an all-reduce and a wait for each bucket of them, and
    the optimizer; what differs from step to step and from rank to rank is drawn.

    Args:
        folder: Folder to make.
        events: Events of all ranks and steps.
        ranks: Ranks, each on a host of its own.
        steps: Number of steps.
        seed: Seed of the times.
    """
    layers = max(2, round((events / ranks / steps - 3) / (2 + 2 / LAYERS_A_BUCKET)))
    draw, begin_us = np.random.default_rng(seed), 1e8
    folder.mkdir()
    writers = [_writer(folder, rank, ranks, layers) for rank in range(ranks)]
    count = 0
    for step in range(steps):
        rows, begin_us = _step(step, ranks, layers, begin_us, draw)
        for writer, own in zip(writers, rows, strict=True):
            writer.times(step, own)
            writer.flush()
            count += len(own)
    for writer in writers:
        writer.close()
    return count


def _buckets(layers):
    return -(-layers // LAYERS_A_BUCKET)


def _writer(folder, rank, ranks, layers):
    groups = {GROUP: list(range(ranks))}
    writer = RankWriter(
        rank_file(folder, rank),
        Header(rank=rank, world_size=ranks, host=f"host{rank}", groups=groups, run="drawn", comm_slots=1),
    )
    place = {"start_s": 0.0, "end_s": 0.0, "step": 0}
    for kind, more in (("forward", {}), ("backward", {"gradient_bytes": BYTES_A_LAYER})):
        for layer in range(layers):
            writer.form(Op(name=f"blocks.{layer}", kind=kind, **more, **place))
    for bucket in range(_buckets(layers)):
        last = layers - bucket * LAYERS_A_BUCKET
        own = range(max(0, last - LAYERS_A_BUCKET), last)
        communication = Op(
            name=f"bucket {bucket}", kind="communication", thread="comm", group=GROUP, collective="all_reduce",
            size_bytes=len(own) * BYTES_A_LAYER, dtype="float32",
            parameters=tuple(f"blocks.{layer}.weight" for layer in own), **place,
        )  # fmt: skip
        writer.form(communication)
        writer.form(Op(name=f"bucket {bucket}", kind="wait", group=GROUP, **place))
    for kind in ("optimizer", "step"):
        writer.form(Op(name=kind, kind=kind, **place))
    return writer


def _step(step, ranks, layers, begin_us, draw):
    """Rows of each rank, and when the last one is done."""
    buckets, first = _buckets(layers), 2 * layers
    took = draw.uniform(80, 120, (ranks, 2 * layers)) * draw.uniform(0.97, 1.03, (ranks, 1))
    ends = begin_us + took.cumsum(axis=1) + 2 * np.arange(2 * layers)
    starts = ends - took
    handed = ends[:, [min(layers, (b + 1) * LAYERS_A_BUCKET) + layers - 1 for b in range(buckets)]] + 1
    done, free = [], 0.0
    for bucket in range(buckets):
        size = min(LAYERS_A_BUCKET, layers - bucket * LAYERS_A_BUCKET) * BYTES_A_LAYER
        free = max(free, handed[:, bucket].max()) + 2e6 * (ranks - 1) / ranks * size / RATE_BYTES_PER_S
        done.append(free + draw.exponential(20, ranks))
        free = done[-1].max()
    rows, last_us = [], 0.0
    for rank in range(ranks):
        own = [
            (op, int(a), int(b), -1) for op, (a, b) in enumerate(zip(starts[rank], ends[rank], strict=True))
        ]
        # Backward ops are recorded from the last layer to the first.
        own[layers:] = [(3 * layers - 1 - op, a, b, seq) for op, a, b, seq in own[layers:]]
        now = ends[rank, -1] + 5
        for bucket in range(buckets):
            seq, end = step * buckets + bucket, done[bucket][rank]
            own.append((first + 2 * bucket, int(handed[rank, bucket]), int(end), seq))
            until = max(now, end) + 10
            own.append((first + 2 * bucket + 1, int(now), int(until), seq))
            now = until
        own.append((first + 2 * buckets, int(now), int(now) + 500, -1))
        own.append((first + 2 * buckets + 1, int(begin_us), int(now) + 550, -1))
        rows.append(own)
        last_us = max(last_us, now + 550)
    return rows, last_us + 1
