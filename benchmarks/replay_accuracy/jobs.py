"""Runs jobs on a lab and reads what they recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from workloads import Work

from common import scratch
from wirewise import cost, lab, sim, trace
from wirewise.sim.analysis import one_rank_s, slower_part_s, sum_of_parts_s

WORKER = str(Path(__file__).parent / "worker.py")


class Done(NamedTuple):
    """One job that ran."""

    work: Work
    periods: np.ndarray
    """Seconds of each recorded step, mean of ranks."""
    trace: trace.Trace | None
    """On one clock."""
    raw: trace.Trace | None
    """Trace before its clocks are aligned."""
    file_bytes: int
    """Size of the trace of rank 0."""
    ddp_overlap_s: float
    """Communication beside the backward pass, as DistributedDataParallel of rank 0 tells it."""

    @property
    def step_s(self) -> float:
        """Mean period."""
        return float(self.periods.mean())


def run(
    works: Sequence[Work],
    hosts: int,
    rate: str,
    *,
    links: dict | None = None,
    shifts: Sequence[int] = (),
    per_host: int = 1,
) -> list[Done]:
    """Jobs one after the other on a lab.

    Args:
        works: Jobs; those whose folder is "-" are not recorded.
        hosts: Number of hosts.
        rate: Rate of all links.
        links: Hosts whose rate differs.
        shifts: Seconds by which each host's clock is ahead.
        per_host: Ranks on each host.
    """
    with scratch() as folder:
        named = [
            msgspec.structs.replace(work, folder="" if work.folder == "-" else str(folder / f"run-{i}"))
            for i, work in enumerate(works)
        ]
        (folder / "works.json").write_bytes(msgspec.json.encode(named))
        with lab.Lab(hosts, rate, links or {}) as network:
            commands = [
                [WORKER, str(folder / "works.json"), *([str(shifts[h])] if shifts else [])]
                for h in range(hosts)
            ]
            done = network.run(commands, processes_per_host=per_host, launcher="direct", timeout_s=900)
        if not done.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in done.tails for line in tail)]))
        told = msgspec.json.decode((folder / "periods.json").read_bytes())
        return [
            Done(work, np.array(own), *(_read(work.folder) if work.folder else (None, None, 0)), overlap)
            for work, own, overlap in zip(named, told["periods"], told["overlaps"], strict=True)
        ]


def _read(folder: str) -> tuple[trace.Trace, trace.Trace, int]:
    raw = trace.read(folder)
    return trace.align(raw), raw, trace.rank_file(folder, 0).stat().st_size


def replayed(done: Done, what_if: str = "", links: cost.Links | None = None) -> sim.ReplayReport:
    return sim.replay_trace(done.trace, links=links, what_if=what_if)


def predicted(done: Done, what_if: str, links: cost.Links | None = None) -> float:
    """Seconds of a step with changes."""
    report = replayed(done, what_if, links)
    return report.what_if.predicted_step_s if what_if else report.predicted_step_s


def baselines(done: Done) -> dict[str, float]:
    """Mean step of each simple prediction."""
    links, number = cost.Links.fit(done.trace), done.trace.steps()
    graphs = [trace.build(done.trace, step) for step in number[:: max(len(number) // 10, 1)]]
    found = {"one rank": one_rank_s, "sum": sum_of_parts_s, "max": slower_part_s}
    return {name: float(np.mean([f(graph, links) for graph in graphs])) for name, f in found.items()}


def off(value: float, truth: float) -> float:
    """Relative error."""
    return value / truth - 1.0


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"
