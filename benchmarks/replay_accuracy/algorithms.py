"""Row R7: gradients summed by each algorithm, replayed message by message, and one predicted from another."""

from __future__ import annotations

from functools import partial

import numpy as np
from jobs import Done, off, percent, replayed, run
from workloads import Work

from common import Page, verdict
from wirewise import cost, sim, trace

R7_MAX = 0.06
APART = [("ring", 1), ("tree", 1), ("ps", 1), ("ps", 2), ("top-k", 1), ("int8", 1)]
"""On hosts with one rank each."""
TOGETHER = [("ring", 1), ("hierarchical", 1)]
"""On hosts with two ranks each."""


def algorithms(page: Page, preset: dict) -> None:
    """R7."""
    rate = preset["algorithms_rate"]
    page.add(
        f"## R7: algorithms\n\nVirtual accelerators (compute is slept: emulated), real gradients, 4 ranks, {rate}. A "
        "thread of each rank sums every bucket by messages between two ranks each (`runtime.data_parallel.AllReduce`), "
        "or by an all-gather of codes (top-k with 1 % of the elements, int8 with a scale for 256). Links are fitted "
        "from the messages of the same trace. `a step`: mean absolute error of single steps."
    )
    layouts = {"4 x 1": (APART, 4, 1), "2 x 2": (TOGETHER, 2, 2)}
    done: dict[tuple[str, str, str], Done] = {}
    for layout, (cases, hosts, per_host) in layouts.items():
        works = [
            Work(folder="+", model=model, algorithm=name, servers=servers, steps=preset["steps"])
            for model in preset["algorithm_models"]
            for name, servers in cases
        ]
        for one in run(works, hosts, rate, per_host=per_host):
            done[layout, one.work.model, told(one.work)] = one
    _replays(page, done)
    _others(page, done)


def told(work: Work) -> str:
    return f"{work.algorithm}:{work.servers}" if work.algorithm == "ps" else work.algorithm


def _replays(page: Page, done: dict[tuple[str, str, str], Done]) -> None:
    errors = []
    titles = ("hosts x ranks", "model", "algorithm", "fitted MB/s", "measured ms", "predicted ms", "error")
    with page.table(*titles, "a step", "threshold") as row:
        for (layout, model, name), one in done.items():
            report = replayed(one)
            single = [abs(off(s.predicted_s, s.measured_s)) for s in report.per_step if not s.outlier]
            errors.append(abs(report.error))
            row(
                layout,
                model,
                name,
                f"{cost.Links.fit(one.trace).bandwidth_out_bytes_per_s.min() / 1e6:.1f}",
                f"{report.measured_step_s * 1e3:.1f}",
                f"{report.predicted_step_s * 1e3:.1f}",
                percent(report.error),
                f"{100 * np.mean(single):.1f} %",
                verdict(errors[-1], most=R7_MAX),
            )
        row("all", "", "", "", "", "", f"{100 * max(errors):.2f} %", "", verdict(max(errors), most=R7_MAX))


def _others(page: Page, done: dict[tuple[str, str, str], Done]) -> None:
    page.add(
        "### One algorithm from the trace of another\n\nFrom the trace of the ring, whose sums count as single "
        "all-reduces (`trace.collapse_algorithms`). `as one`: what-if `algorithm=...`, all bytes of a sum flow at "
        "once. `hop by hop`: the graph with every hop of the other algorithm (`trace.build(algorithm=..., "
        "expand=True)`). No threshold."
    )
    titles = ("hosts x ranks", "model", "predicted", "measured ms", "as one ms", "error", "hop by hop ms")
    with page.table(*titles, "error") as row:
        for (layout, model, name), one in done.items():
            if one.work.algorithm in ("ring", "top-k", "int8"):
                continue
            base, truth = done[layout, model, "ring"].trace, one.step_s
            values = [f(base, one.work) for f in (_as_one, _hop_by_hop)]
            cells = [cell for v in values for cell in (f"{v * 1e3:.1f}", percent(off(v, truth)))]
            row(layout, model, name, f"{truth * 1e3:.1f}", *cells)


def _as_one(base: trace.Trace, work: Work) -> float:
    links, change = cost.Links.fit(base), f"algorithm={told(work)}"
    return sim.replay_trace(
        trace.collapse_algorithms(base), links=links, what_if=change
    ).what_if.predicted_step_s


def _hop_by_hop(base: trace.Trace, work: Work) -> float:
    build = partial(trace.build, algorithm=work.algorithm, servers=work.servers, expand=True)
    return sim.replay_trace(trace.collapse_algorithms(base), build, cost.Links.fit(base)).predicted_step_s
