"""Stalls of a job computed from the times of its runs, with caveats for readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wirewise.cost.stalls import COMPONENTS, Amount, DataTimes, decompose
from wirewise.profile.stalls.records import ProfiledRun
from wirewise.profile.stalls.report import StallReport

__all__ = ["report_of"]

Runs = Mapping[str, Sequence[ProfiledRun]]


def report_of(
    runs: Runs,
    *,
    ranks: int,
    **job: Any,
) -> StallReport:
    """Decompose the step time of a job into compute and stalls.

    Args:
        runs: Repeats of each run, by its name; "partial X" for the cached fraction X.
        ranks: Number of ranks of the whole job.
        job: Other fields of `StallReport`: command, hosts, steps and the like.
    """
    chain = {name: [run.step_s for run in repeats] for name, repeats in runs.items() if " " not in name}
    parts: dict[str, Any] = {f"{name}_s": amount for name, amount in decompose(chain).items()}
    facts = runs["whole"][0].facts
    rates = {
        name: float(np.mean(known))
        for name, repeats in runs.items()
        if (known := [run.lanes.hit_rate for run in repeats if run.lanes.hit_rate is not None])
    }
    report = StallReport(
        **parts,
        runs_s={name: [float(run.step_s.mean()) for run in repeats] for name, repeats in runs.items()},
        **job,
        ranks=ranks,
        facts=facts,
        data=_data_times(runs, facts, ranks),
        hit_rates=rates,
    )
    report.notes.extend(_notes(report))
    return report


def _data_times(runs: Runs, facts: dict[str, Any], ranks: int) -> DataTimes | None:
    """Times of the data pipeline's parts for the question how much to cache."""
    batch, workers = facts.get("batch"), int(facts.get("workers", 0))
    if not batch or not all(run.lanes.items for run in (*runs["cached"], *runs["cold"])):
        return None
    warm_fetch, warm_prepare = _per_batch(runs["cached"], batch)
    cold_fetch, cold_prepare = _per_batch(runs["cold"], batch)
    # Of other data sets all is counted as preparing; what cold pages add to it is fetching.
    hidden = 0.0 if facts.get("separable") else max(0.0, cold_prepare - warm_prepare)
    return DataTimes(
        step_s=_step_s(runs, next(name for name in ("network", "machine", "compute") if name in runs)),
        cached_step_s=_step_s(runs, "cached"),
        cold_step_s=_step_s(runs, "cold"),
        prep_s=warm_prepare,
        storage_s=cold_fetch + hidden,
        memory_s=warm_fetch,
        workers=workers,
        batch=batch,
        ranks=ranks,
        ahead=max(1, int(facts.get("prefetched", 0)) // max(1, workers)),
    )


def _step_s(runs: Runs, name: str) -> float:
    return float(np.median([run.step_s.mean() for run in runs[name]]))


def _per_batch(runs: Sequence[ProfiledRun], batch: int) -> tuple[float, float]:
    """Seconds of fetching and of preparing a batch."""
    items = sum(run.lanes.items for run in runs)
    fetch, prepare = sum(run.lanes.fetch_s for run in runs), sum(run.lanes.prepare_s for run in runs)
    return fetch / items * batch, prepare / items * batch


def _notes(report: StallReport) -> Iterator[str]:
    facts = report.facts
    if report.ranks == 1:
        yield "one rank: interconnect and network are not measured and 0"
    elif report.hosts == 1 and report.network != "own":
        yield "one machine: the network is not measured and 0; give --hosts or --network-command"
    if report.hosts > 1:
        yield "the hosts are emulated on one machine: links are real TCP, shaped"
    if not facts.get("map_style"):
        yield "the data set is a stream: prep holds what the page cache could not keep of fetching"
    elif not facts.get("separable"):
        yield (
            "the data set has no fetch and prepare methods: fetch is what a cold page cache costs more than a warm one"
        )
    if facts.get("prefetched", 0) > report.warmup:
        yield (
            f"workers load {facts['prefetched']} batches ahead, more than --warmup {report.warmup}: data stalls may "
            "be larger than shown"
        )
    parts: dict[str, Amount] = dict(report.rows())
    total_s = parts["total"].mean_s
    if abs(parts["residual"].mean_s) > 0.03 * total_s:
        yield "the parts miss the whole by more than 3 %: the machine was unsteady, measure more repeats"
    if any(parts[name].ci95_s[1] < -0.03 * total_s for name in COMPONENTS if name != "residual"):
        yield "a stall is below zero: a run with less to do was slower; other jobs may have run meanwhile"
