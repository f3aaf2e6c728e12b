"""Traces of data-parallel runs whose true times are known."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from wirewise.trace.records import Header, Op, Probe, RankTrace, Trace


@dataclass
class Run:
    """A trace as the ranks saw it, the same on the true clock, and each rank's true clock."""

    seen: Trace
    true: Trace
    offsets: np.ndarray
    drifts: np.ndarray

    def common(self, rank: int, t: np.ndarray) -> np.ndarray:
        """True time, on rank 0's clock, of times on a rank's clock."""
        true = (t - self.offsets[rank]) / (1.0 + self.drifts[rank])
        return true * (1.0 + self.drifts[0]) + self.offsets[0]


def make(
    ranks: int = 4,
    steps: int = 20,
    step_s: float = 0.1,
    *,
    sizes: tuple[int, ...] = (400_000, 4_000_000, 2_000_000),
    probes: int = 0,
    clock_s: float = 0.0,
    drift: float = 0.0,
    jitter: float = 0.1,
    lag_s: float = 30e-6,
    bytes_per_s: float = 250e6,
    step_jitter_s: float = 0.0,
    slowdown: dict[int, float] | None = None,
    slow_in_turns: float = 1.0,
    data_s: float = 0.0,
    seed: int = 0,
) -> Run:
    """Forward, backward of three layers whose buckets are reduced one after the other, waits, optimizer.

    `slowdown`: factors of the compute of some ranks; `slow_in_turns`: factor of one rank's in each step, of the next
    rank's in the next; `data_s`: what every step waits for its data.
    """
    draw = np.random.default_rng(seed)
    factors = np.array([(slowdown or {}).get(rank, 1.0) for rank in range(ranks)])
    offsets, drifts = draw.uniform(-clock_s, clock_s, ranks), draw.uniform(-drift, drift, ranks)
    ops: list[list[Op]] = [[] for _ in range(ranks)]
    begin = np.full(ranks, 100.0)
    for step in range(steps):
        begin = begin + draw.exponential(step_jitter_s, ranks) if step_jitter_s else begin
        turn = np.where(np.arange(ranks) == step % ranks, slow_in_turns, 1.0)
        begin = _step(
            ops, begin, step, step_s * factors * turn, data_s, sizes, jitter, lag_s, bytes_per_s, draw
        )
    groups = {"world": list(range(ranks))}
    true = Trace(
        ranks=[
            RankTrace(Header(rank=r, world_size=ranks, host=f"host{r}", groups=groups, comm_slots=1), ops[r])
            for r in range(ranks)
        ]
    )
    for r in range(1, ranks) if probes else ():
        for at in np.concatenate(
            [np.linspace(99.0, 99.5, probes), begin.max() + np.linspace(0, 0.5, probes)]
        ):
            out, back = 60e-6 + draw.exponential(20e-6), 60e-6 + draw.exponential(20e-6)
            probe = Probe(peer=0, sent_s=float(at), peer_s=float(at + out), received_s=float(at + out + back))
            true.ranks[r].header.probes.append(probe)
    return Run(shifted(true, offsets, drifts), true, offsets, drifts)


def _step(ops, begin, step, step_s, data_s, sizes, jitter, lag_s, bytes_per_s, draw):
    ranks, layers = len(ops), len(sizes)

    def compute(share):
        return step_s * share * draw.uniform(1 - jitter, 1 + jitter, ranks)

    def add(rank, name, kind, start, end, **more):
        ops[rank].append(Op(name=name, kind=kind, start_s=float(start), end_s=float(end), step=step, **more))

    now = begin.copy()
    if data_s:
        for r in range(ranks):
            add(r, "data", "data", now[r], now[r] + data_s)
        now = now + data_s
    for layer in range(layers):
        took = compute(0.25 / layers)
        for r in range(ranks):
            add(r, f"layer{layer}", "forward", now[r], now[r] + took[r])
        now = now + took + 20e-6
    done, free = [], 0.0
    for number, size in enumerate(sizes):
        took = compute(0.5 / layers)
        for r in range(ranks):
            add(r, f"layer{layers - 1 - number}", "backward", now[r], now[r] + took[r], gradient_bytes=size)
        now = now + took
        seconds = 2 * (ranks - 1) / ranks * size / bytes_per_s if ranks > 1 else 0.0
        free = max(free, now.max()) + 1e-4 + seconds
        late = np.where(draw.random(ranks) < 0.02, draw.exponential(3e-3, ranks), 0.0)
        end = free + draw.exponential(lag_s, ranks) + late
        free = end.max()
        done.append(end)
        place = {"thread": "comm", "group": "world", "seq": step * layers + number}
        for r in range(ranks):
            add(
                r, f"bucket {number}", "communication", now[r], end[r], collective="all_reduce",
                size_bytes=size, enqueued_s=float(now[r]), parameters=(f"layer{layers - 1 - number}.weight",), **place,
            )  # fmt: skip
        now = now + 10e-6
    for number, end in enumerate(done):
        until = np.maximum(now, end) + 15e-6
        for r in range(ranks):
            add(
                r, f"bucket {number}", "wait", now[r], until[r], group="world", seq=step * layers + number
            )  # fmt: skip
        now = until
    took = compute(0.1)
    for r in range(ranks):
        add(r, "optimizer", "optimizer", now[r], now[r] + took[r])
        add(r, "step", "step", begin[r], now[r] + took[r] + 50e-6)
    return now + took + 50e-6


def shifted(trace: Trace, offsets, drifts) -> Trace:
    """A trace on the true clock as ranks with wrong clocks would have recorded it."""
    ranks = []
    for r, rank in enumerate(trace.ranks):

        def local(t, r=r):
            return float(t * (1.0 + drifts[r]) + offsets[r])

        moved = [
            msgspec.structs.replace(
                op,
                start_s=local(op.start_s),
                end_s=local(op.end_s),
                enqueued_s=local(op.enqueued_s) if op.enqueued_s >= 0 else -1.0,
            )
            for op in rank.ops
        ]
        probes = [
            Probe(
                peer=p.peer,
                sent_s=local(p.sent_s),
                peer_s=local(p.peer_s, p.peer),
                received_s=local(p.received_s),
            )
            for p in rank.header.probes
        ]
        ranks.append(RankTrace(msgspec.structs.replace(rank.header, probes=probes), moved))
    return Trace(ranks=ranks)


def messages(seconds_to: dict[tuple[int, int], float], rates: dict[int, float] | None = None) -> Trace:
    """Five steps in which pairs of three hosts exchange a megabyte."""
    ops: list[list[Op]] = [[] for _ in range(3)]
    for step in range(5):
        for rank in range(3):
            at = float(step)
            ops[rank].append(Op(name="step", kind="step", start_s=at, end_s=at + 1, step=step))
        for (a, b), seconds in seconds_to.items():
            for rank, peer, what in ((a, b, "send"), (b, a, "recv")):
                ops[rank].append(
                    Op(name=what, kind="communication", start_s=step + 0.1, end_s=step + 0.1 + seconds, step=step,
                       group="all", collective=what, size_bytes=10**6, peer=peer)
                )  # fmt: skip
    headers = [
        Header(rank=r, world_size=3, host=f"h{r}", groups={"all": [0, 1, 2]},
               link_bytes_per_s=(rates or {}).get(r, 0.0))
        for r in range(3)
    ]  # fmt: skip
    return Trace([RankTrace(h, o) for h, o in zip(headers, ops, strict=True)], aligned=True)
