"""Rows W1 to W6: changes predicted from a trace, then made and measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jobs import Done, off, percent, predicted, run
from scipy.stats import kendalltau
from workloads import Work

from common import Page, verdict
from wirewise import cost, units
from wirewise.sim.stragglers import find_slow_host, find_straggler

MEAN, MOST = 0.05, 0.08
W2_NEAR, W4_WITHIN, W5_WITHIN, W6_TAU = 0.02, 0.05, 0.05, 0.9


def claims(page: Page, errors: Sequence[float], *, mean: float | None = MEAN, most: float = MOST) -> None:
    found = np.abs(errors)
    with page.table("claim", "figure", "threshold") as row:
        if mean is not None:
            row("mean absolute error", f"{100 * found.mean():.2f} %", verdict(found.mean(), most=mean))
        row("largest absolute error", f"{100 * found.max():.2f} %", verdict(found.max(), most=most))


def grid(page: Page, preset: dict) -> None:
    """W1, W2 and W6 share their measurements."""
    rates, caps, ranks = preset["rates"], preset["caps"], preset["grid_ranks"]
    done: dict[tuple[str, str, float], Done] = {}
    for rate in rates:
        works = [
            Work(folder="+", model=model, bucket_mb=cap, steps=preset["steps"])
            for model in preset["grid_models"]
            for cap in caps
        ]
        for one in run(works, ranks, rate):
            done[one.work.model, rate, one.work.bucket_mb] = one
    _bandwidth(page, preset, done)
    _buckets(page, preset, done)
    _order(page, preset, done)


def _bandwidth(page: Page, preset: dict, done: dict) -> None:
    page.add(
        f"## W1: another bandwidth\n\n{preset['grid_ranks']} ranks, virtual accelerators (emulated compute). From the "
        "trace at one rate the step at another; the rate that payload gets is the share of the nominal rate that the "
        "fits at two other rates found, so nothing of the predicted run is used."
    )
    rates, cap = preset["rates"], preset["caps"][1]
    errors = []
    with page.table(
        "model", "trace at", "predicted at", "share of nominal", "predicted ms", "measured ms", "error"
    ) as row:
        for model in preset["grid_models"]:
            share = {
                rate: cost.Links.fit(done[model, rate, cap].trace).bandwidth_out_bytes_per_s[0]
                / units.parse_rate(rate)
                for rate in rates
            }
            for base in rates:
                for goal in rates:
                    factor = units.parse_rate(goal) / units.parse_rate(base)
                    if not 3.9 < max(factor, 1 / factor) < 4.1:
                        continue
                    known = float(np.mean([share[r] for r in rates if r != goal]))
                    change = f"bandwidth=*:x{factor * known / share[base]:.6f}"
                    value, truth = predicted(done[model, base, cap], change), done[model, goal, cap].step_s
                    errors.append(off(value, truth))
                    row(
                        model,
                        base,
                        goal,
                        f"{known:.3f}",
                        f"{value * 1e3:.1f}",
                        f"{truth * 1e3:.1f}",
                        percent(errors[-1]),
                    )
    claims(page, errors)


def _buckets(page: Page, preset: dict, done: dict) -> None:
    page.add(
        "## W2: other bucket sizes\n\nFrom the trace at one cap the step at all others. `choice`: the measured step of "
        "the cap that the prediction likes best, against the best measured one."
    )
    base, errors = preset["caps"][1], []
    with page.table(
        "model", "link", *(f"{cap:g} MB" for cap in preset["caps"]), "choice", "threshold"
    ) as row:
        for model in preset["grid_models"]:
            for rate in preset["rates"]:
                values = [predicted(done[model, rate, base], f"bucket_mb={cap:g}") for cap in preset["caps"]]
                truth = [done[model, rate, cap].step_s for cap in preset["caps"]]
                own = [off(v, t) for v, t in zip(values, truth, strict=True)]
                errors += own
                chosen = truth[int(np.argmin(values))] / min(truth) - 1
                told = verdict(chosen, most=W2_NEAR)
                cells = [
                    f"{v * 1e3:.0f} / {t * 1e3:.0f} ({percent(e)})"
                    for v, t, e in zip(values, truth, own, strict=True)
                ]
                row(model, rate, *cells, percent(chosen), told)
    claims(page, errors)


def _order(page: Page, preset: dict, done: dict) -> None:
    page.add("## W6: order of all these settings\n\nAll predicted from one trace of each model.")
    base_rate, base_cap = preset["rates"][1], preset["caps"][1]
    with page.table("model", "settings", "Kendall's tau", "threshold") as row:
        for model in preset["grid_models"]:
            base = done[model, base_rate, base_cap]
            values, truth = [], []
            for rate in preset["rates"]:
                factor = units.parse_rate(rate) / units.parse_rate(base_rate)
                for cap in preset["caps"]:
                    values.append(predicted(base, f"bandwidth=*:x{factor:.6f},bucket_mb={cap:g}"))
                    truth.append(done[model, rate, cap].step_s)
            tau = float(kendalltau(values, truth).statistic)
            row(model, len(values), f"{tau:.3f}", verdict(tau, least=W6_TAU))


def ranks(page: Page, preset: dict) -> None:
    """W3."""
    page.add("## W3: more ranks\n\nFrom the trace of fewer ranks the step with more; virtual accelerators.")
    errors, done = [], {}
    for count in preset["rank_counts"]:
        works = [Work(folder="+", model=model, steps=preset["steps"]) for model in preset["grid_models"]]
        for one in run(works, count, "200mbit"):
            done[one.work.model, count] = one
    with page.table("model", "trace of", "predicted for", "predicted ms", "measured ms", "error") as row:
        for model in preset["grid_models"]:
            for few in preset["rank_counts"]:
                for many in preset["rank_counts"]:
                    if many > few:
                        value, truth = predicted(done[model, few], f"ranks={many}"), done[model, many].step_s
                        errors.append(off(value, truth))
                        row(model, few, many, f"{value * 1e3:.1f}", f"{truth * 1e3:.1f}", percent(errors[-1]))
    claims(page, errors, mean=None)


def stragglers(page: Page, preset: dict) -> None:
    """W4."""
    page.add(
        "## W4: a slow rank, a slow link\n\n4 ranks, virtual accelerators. `predicted`: the step with the fault, from "
        "the trace without it. Named: what the trace with the fault is said to suffer from."
    )
    count, model = 4, "transformer"
    healthy = run([Work(folder="+", model=model, steps=preset["steps"])], count, "200mbit")[0]
    errors, named, asked = [], 0, 0
    with page.table("fault", "predicted ms", "measured ms", "error", "named") as row:
        for number in range(preset["faults"]):
            rank = number % count
            slow = Work(folder="+", model=model, steps=preset["steps"], slow_rank=rank, slow_factor=1.5)
            found = run([slow], count, "200mbit")[0]
            value = predicted(healthy, f"straggler={rank}:x1.5")
            errors.append(off(value, found.step_s))
            told = find_straggler(found.trace)
            asked, named = asked + 1, named + (told is not None and told.rank == rank)
            row(
                f"rank {rank} 1.5x",
                f"{value * 1e3:.1f}",
                f"{found.step_s * 1e3:.1f}",
                percent(errors[-1]),
                told and told.rank,
            )
        for number in range(preset["faults"]):
            host = number % count
            found = run(
                [Work(folder="+", model=model, steps=preset["steps"])],
                count,
                "200mbit",
                links={host: "100mbit"},
            )[0]
            value = predicted(healthy, f"bandwidth={host}:x0.5")
            errors.append(off(value, found.step_s))
            told, right = find_slow_host(found.trace), found.trace.ranks[host].header.host
            asked, named = asked + 1, named + (told == right)
            row(
                f"link of host {host} halved",
                f"{value * 1e3:.1f}",
                f"{found.step_s * 1e3:.1f}",
                percent(errors[-1]),
                told,
            )
        row("all", "", "", "", f"{named} of {asked}, {verdict(named / asked, least=1.0)}")
    claims(page, errors, mean=None, most=W4_WITHIN)


def stalls(page: Page, preset: dict) -> None:
    """W5."""
    page.add(
        "## W5: a stall removed, predicted and done\n\n2 ranks, virtual accelerators, 20 ms for each batch."
    )
    rows = {
        "no communication": ("no_communication", {"communicate": False}, "200mbit"),
        "a link without limit": ("bandwidth=*:x1000,latency=0", {}, "20gbit"),
        "an instant loader": ("scale=data:x0", {"data_s": 0.0}, "200mbit"),
    }
    errors = []
    with page.table("model", "removed", "before ms", "predicted ms", "measured ms", "error") as row:
        for model in preset["grid_models"]:
            base = Work(folder="+", model=model, steps=preset["steps"], data_s=0.02)
            before = run([base], 2, "200mbit")[0]
            for name, (change, other, rate) in rows.items():
                without = run([Work(**{**_fields(base), "folder": "-", **other})], 2, rate)[0]
                value = predicted(before, change)
                errors.append(off(value, without.step_s))
                cells = [f"{v * 1e3:.1f}" for v in (before.step_s, value, without.step_s)]
                row(model, name, *cells, percent(errors[-1]))
    claims(page, errors, mean=None, most=W5_WITHIN)


def _fields(work: Work) -> dict:
    return {name: getattr(work, name) for name in work.__struct_fields__}
