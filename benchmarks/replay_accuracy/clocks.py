"""Rows C1, C2 and C4: clocks of ranks that differ by known times."""

from __future__ import annotations

import msgspec
import numpy as np
from jobs import off, percent, replayed, run
from workloads import Work

from common import Page, verdict
from wirewise import sim, trace
from wirewise.trace.align import align
from wirewise.trace.records import Trace

C1_MEDIAN, C1_MOST, C2_MOST, C4_TIMES = 50e-6, 150e-6, 500e-6, 3.0
SHIFTS = (0, 7, 1234, 86_400)


def clocks(page: Page, preset: dict) -> None:
    page.add(
        "## C1, C2, C4: clocks\n\n4 ranks on hosts of a lab, each in a time namespace whose monotonic clock "
        f"is ahead by {', '.join(map(str, SHIFTS))} s. `probes`: from round trips and collectives. `collectives`: "
        "round trips taken out. C4: step of a replay with clocks moved by up to 50 ms, aligned and not."
    )
    model = "transformer"
    done = run(
        [Work(folder="+", model=model, steps=preset["steps"])] * preset["clock_runs"],
        4,
        "200mbit",
        shifts=SHIFTS,
    )
    with page.table("run", "from", "errors us", "threshold") as row:
        for number, one in enumerate(done):
            for name, raw in (("probes", one.raw), ("collectives", _without_probes(one.raw))):
                errors = np.array(
                    [_offset(fit) + shift for fit, shift in zip(align(raw).offsets, SHIFTS, strict=True)]
                )[1:]
                most = C1_MOST if name == "probes" else C2_MOST
                told = verdict(float(np.abs(errors).max()), most=most)
                if name == "probes":
                    told += "; median " + verdict(float(np.median(np.abs(errors))), most=C1_MEDIAN)
                row(number, name, ", ".join(f"{1e6 * e:+.0f}" for e in errors), told)
    _skewed(page, done)


def _offset(fit: trace.ClockFit) -> float:
    return fit.offset_s


def _without_probes(raw: Trace) -> Trace:
    return Trace(
        [
            trace.RankTrace(msgspec.structs.replace(r.header, probes=[], clock_pairs=[]), r.ops, r.complete)
            for r in raw.ranks
        ]
    )


def _skewed(page: Page, done: list) -> None:
    random = np.random.default_rng(0)
    with page.table("run", "measured ms", "aligned", "not aligned", "threshold") as row:
        for number, one in enumerate(done):
            good = replayed(one)
            shifted = _moved(one.trace, random.uniform(-0.05, 0.05, 4))
            again = sim.replay_trace(align(shifted))
            links = None
            try:
                bad = sim.replay_trace(Trace(shifted.ranks, aligned=True), links=links)
                wrong = off(bad.predicted_step_s, one.step_s)
            except Exception as error:
                wrong = None
                told = f"refused: {str(error)[:60]}"
            error = off(again.predicted_step_s, one.step_s)
            worse = None if wrong is None else abs(wrong) / max(abs(error), 1e-9)
            row(
                number,
                f"{good.measured_step_s * 1e3:.1f}",
                percent(error),
                told if wrong is None else percent(wrong),
                verdict(abs(error), most=0.05)
                + ("" if worse is None else f"; {worse:.1f} times, {verdict(worse, least=C4_TIMES)}"),
            )


def _moved(aligned: Trace, by: np.ndarray) -> Trace:
    """The trace as ranks with wrong clocks would have recorded it."""
    by = by - by[0]
    ranks = []
    for rank, seconds in zip(aligned.ranks, by.tolist(), strict=True):
        ops = [
            msgspec.structs.replace(
                op,
                start_s=op.start_s + seconds,
                end_s=op.end_s + seconds,
                enqueued_s=op.enqueued_s + seconds if op.enqueued_s != -1.0 else -1.0,
            )
            for op in rank.ops
        ]
        ranks.append(trace.RankTrace(msgspec.structs.replace(rank.header, probes=[]), ops))
    return Trace(ranks)
