"""Rows about plans of deployment, simulated: unseen clusters, and tree search against enumeration."""

import itertools
import time
from math import inf, isfinite

import numpy as np
from scipy import stats

from common import verdict
from wirewise.errors import PlanError
from wirewise.planners.placement.tag import PLANNERS, StrategyTimes, tree_search
from wirewise.planners.placement.tag.network import shipped_policy
from wirewise_papers.tag.random_models import random_problem


def interval(quotients):
    """Geometric mean and both ends of its 95 % interval."""
    logs = np.log(quotients)
    half = stats.t.ppf(0.975, len(logs) - 1) * np.std(logs, ddof=1) / np.sqrt(len(logs))
    return np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])


def unseen_row(page, preset):
    count = preset["clusters"]
    page.add(
        f"## {count} clusters and models that no training saw\n\nTwo to four machines of one to four devices, types, "
        "ports, models and batches drawn (`drawn.random_problem`, seeds from 0). All planners under one simulator; "
        f"flexflow, heterog and tag simulate at most {preset['simulations']} strategies each. Quotients: step of a "
        "planner over that of tag, geometric mean, where both fit into the memory."
    )
    seconds = {name: [] for name in PLANNERS}
    planning = {name: [] for name in PLANNERS}
    worse = 0
    with page.table("seed", "model", "devices", "batch", *(f"{name} s" for name in PLANNERS)) as row:
        for seed in range(count):
            problem = random_problem(seed)
            # What all planners share is made before clocks run.
            problem.spread(problem.baseline())
            for name, planner in PLANNERS.items():
                begin = time.perf_counter()
                try:
                    found = planner(problem, simulations=preset["simulations"], seed=seed).predicted_step_s
                except PlanError:
                    found = inf
                seconds[name].append(found)
                planning[name].append(time.perf_counter() - begin)
            worse += seconds["tag"][-1] > seconds["data-parallel"][-1] * (1 + 1e-9)
            row(
                seed, problem.trace.model, len(problem.devices), problem.batch,
                *(f"{seconds[name][-1]:.4g}" if isfinite(seconds[name][-1]) else "no room" for name in PLANNERS),
            )  # fmt: skip
    with page.table(
        "planner", "its step over tag's", "95 % interval", "fits", "median planning s", "claim"
    ) as row:
        for name in PLANNERS:
            both = [
                theirs / own
                for theirs, own in zip(seconds[name], seconds["tag"], strict=True)
                if isfinite(theirs) and isfinite(own)
            ]
            mean, low, high = interval(both)
            fits = sum(map(isfinite, seconds[name]))
            claim = "" if name == "tag" else verdict(low, least=1.0)
            row(
                name, f"{mean:.3f}", f"{low:.3f} to {high:.3f}", fits, f"{np.median(planning[name]):.2f}", claim
            )  # fmt: skip
    fitting = sum(any(isfinite(seconds[name][i]) for name in PLANNERS) for i in range(count))
    with page.table("claim", "figure", "threshold") as row:
        row("clusters on which tag is slower than data-parallel", worse, verdict(worse, most=0))
        without = fitting - sum(map(isfinite, seconds["tag"]))
        row("F4: clusters where a planner's plan fits and tag's does not", without, verdict(without, most=0))


def slow_link_row(page, preset):
    from wirewise.planners.placement.tag import problem_of
    from wirewise.topology import UnequalHost, unequal_hosts
    from wirewise_papers.tag.random_models import KINDS, random_model

    page.add("## Two devices, speeds 1 to 4, 50 Mbit/s between them (F4, simulated)\n\nBatches of 32 rows.")
    cluster = unequal_hosts([UnequalHost(1, "slow", 0.25, 6.25e6), UnequalHost(1, "fast", 1.0, 6.25e6)])
    with page.table("model", "data-parallel s", "tag s", "faster", "threshold") as row:
        for kind in KINDS:
            problem = problem_of(random_model(1, kind), cluster, batch=32)
            found = PLANNERS["tag"](problem, simulations=preset["simulations"])
            gain = found.baseline_step_s / found.predicted_step_s
            row(
                kind, f"{found.baseline_step_s:.4g}", f"{found.predicted_step_s:.4g}", f"{gain:.2f}",
                verdict(gain, least=1.2),
            )  # fmt: skip


def tree_row(page, preset):
    count, policy = preset["trees"], shipped_policy()
    page.add(
        "## Tree search against enumeration (F3)\n\nFour op groups, two machines of a device each, seeds from 100 on, "
        "all strategies simulated. Playouts until a strategy takes at most 1/0.98 of the time of the best one, at most "
        "500."
    )
    close, playouts = 0, {"uniform": [], "learned": []}
    with page.table("seed", "strategies", "best s", "uniform, playouts", "learned, playouts") as row:
        for seed in range(100, 100 + count):
            problem = random_problem(seed, hosts=2, most_devices=1, groups=4)
            every = StrategyTimes(problem)
            best = min(
                every.of(one) for one in itertools.product(*(range(len(own)) for own in problem.actions))
            )
            if not isfinite(best):
                row(seed, len(every.known), "no room", "", "")
                continue
            for name, guide in (("uniform", None), ("learned", policy)):
                times = StrategyTimes(problem)
                times.known.update(every.known)
                found = tree_search(times, playouts=500, policy=guide, seed=seed, until_s=best / 0.98)
                playouts[name].append(len(found.trail))
                close += name == "uniform" and found.seconds <= best / 0.98
            row(seed, len(every.known), f"{best:.4g}", playouts["uniform"][-1], playouts["learned"][-1])
    with page.table("claim", "figure", "threshold") as row:
        share = close / max(len(playouts["uniform"]), 1)
        row(
            f"share of {len(playouts['uniform'])} seeds within 500 playouts", f"{share:.2f}",
            verdict(share, least=0.9),
        )  # fmt: skip
        fewer = np.mean(playouts["learned"]) / max(np.mean(playouts["uniform"]), 1e-9)
        row(
            f"mean playouts, learned over uniform ({np.mean(playouts['learned']):.1f} and "
            f"{np.mean(playouts['uniform']):.1f})", f"{fewer:.2f}", verdict(fewer, most=0.5),
        )  # fmt: skip


ROWS = {"unseen": unseen_row, "slow-link": slow_link_row, "tree": tree_row}
