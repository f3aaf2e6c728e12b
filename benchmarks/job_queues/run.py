"""Schedulers of a queue of jobs, simulated: the learned policy against rules.

    python benchmarks/job_queues/run.py --preset paper --out benchmarks/results/job_queues_MACHINE.md

Rows: `schedulers` (S1, S3: all planners on TapFinger's queues), `shifts` (S4: load that swings, paces that nobody sees,
kinds that no training saw), `latency` (S7: seconds of a round of decisions, measured), `real` (S9: real jobs on
clusters of the lab, against their simulation).

Mean slots from arrival to end, with 95 % intervals over seeds; stopping and moving is free of cost. `threshold` and
`tiresias` have amounts that were tuned on ten other queues; the policy was trained on others still.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from scipy import stats

from common import Page, arguments, verdict
from wirewise.planners.jobs import REALLOTTING, RULES, problem_of
from wirewise.planners.jobs.policy import Game, decide
from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights
from wirewise.recipes.tapfinger import completions, run_real
from wirewise.recipes.tapfinger_job import TapFingerJob
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue, edge_kinds
from wirewise.trace import JobKind

ROWS = ("schedulers", "shifts", "latency", "real")
PRESETS = {
    "smoke": {"seeds": 2, "jobs": 40, "rounds": 3, "real": {"real_jobs": 3, "size_s": 4.0}, "turns": 1},
    "paper": {"seeds": 10, "jobs": None, "rounds": 200, "real": {}, "turns": 1},
}
CLUSTERS = {"three equal": (EVEN, 3.0, 4.3), "six unequal": (UNEVEN, 6.0, 4.9)}
"""Processors and accelerators, jobs a slot, and what is published of TapFinger, rounded up."""
REAL = ("tapfinger", "optimus")
"""Schedulers of real jobs: one that lets jobs end, and one that stops and resizes them."""


def unseen_kinds():
    """A kind that accelerators slow down where processors are few, one that has no use for them, a slow one."""
    rows = range(17)
    starved = tuple(
        tuple(0.05 * min(c, 8) / 8 * (1 + min(g, 2 * c)) if g else 0.02 for g in rows) for c in rows
    )
    processors = tuple((0.04 * min(c, 12),) * 17 for c in rows)
    slow = tuple(tuple(0.02 * g**0.8 for g in rows) for _ in rows)
    return edge_kinds() | {
        "starved": JobKind(progress=starved, cpus=1, gpus=1),
        "processors": JobKind(progress=processors, cpus=1),
        "slow": JobKind(progress=slow, cpus=1, gpus=2),
    }


def times(problems):
    """Mean slots of each queue, by planner."""
    return {name: np.array([one.mean() for one in found]) for name, found in completions(problems).items()}


def drawn(preset, clusters, rate, **more):
    """Pairs of a queue to tune on and one to judge by."""
    return [
        tuple(
            problem_of(draw_queue(clusters, rate, jobs=preset["jobs"], seed=first + seed, **given), kept=1.0)
            for first, given in ((100, {k: v for k, v in more.items() if k == "kinds"}), (0, more))
        )
        for seed in range(preset["seeds"])
    ]


def interval(values):
    """Mean and half of the 95 % interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.2f} ± {half:.2f}"


def schedulers_row(page, preset):
    for name, (clusters, rate, most) in CLUSTERS.items():
        found = times(drawn(preset, clusters, rate))
        page.add(
            f"## TapFinger's queues, {name} clusters (S1, S3)\n\n{rate:g} jobs a slot, {preset['seeds']} seeds."
        )
        with page.table("planner", "mean slots", "reallots") as row:
            for planner, values in sorted(found.items(), key=lambda item: item[1].mean()):
                row(planner, interval(values), "yes" if planner in REALLOTTING else "no")
        mean = {planner: values.mean() for planner, values in found.items()}
        with page.table("claim", "figure", "threshold") as row:
            row(f"S3: policy, {name}", f"{mean['tapfinger']:.2f}", verdict(mean["tapfinger"], most=most))
            over = mean["tapfinger"] / mean["threshold"]
            row(f"S3: policy over the tuned threshold, {name}", f"{over:.3f}", verdict(over, most=1.0))
            for rival in ("equal-share", "marginal-gain"):
                less = 1 - mean["tapfinger"] / mean[rival]
                row(f"S3: below {rival}, {name}", f"{less:.2f}", verdict(less, least=0.4))


def shifts_row(page, preset):
    page.add(
        "## Where fixed rules fail (S4)\n\nThree equal clusters. The best of the rules in the mean, with amounts tuned "
        "on ordinary queues of the same kinds, against the policy, paired by seed; a positive figure is a shorter time."
    )
    shifts = {
        "load swings by 80 %": {"rate": 2.5, "swing": 0.8},
        "paces spread by 50 %": {"rate": 2.5, "noise": 0.5},
        "both": {"rate": 2.5, "swing": 0.8, "noise": 0.5},
        "three kinds that no training saw": {"rate": 1.5, "kinds": unseen_kinds()},
    }
    with page.table("queues", "best rule", "its mean", "policy", "shorter by", "claim") as row:
        for name, more in shifts.items():
            found = times(drawn(preset, EVEN, more["rate"], **{k: v for k, v in more.items() if k != "rate"}))
            best = min(RULES, key=lambda rule: found[rule].mean())
            shorter = 1 - found["tapfinger"] / found[best]
            row(
                name, best, interval(found[best]), interval(found["tapfinger"]), interval(100 * shorter) + " %",
                verdict(shorter.mean(), least=0.1),
            )  # fmt: skip


def latency_row(page, preset):
    page.add(
        f"## Seconds of a decision (S7)\n\nMeasured on one core: a round of all clusters, 10 jobs in each window, "
        f"median of {preset['rounds']}."
    )
    torch.set_num_threads(1)
    network = read_weights(SHIPPED)
    with page.table("clusters", "milliseconds", "claim") as row:
        for clusters, most in ((6, 10.0), (20, 40.0)):
            problem = problem_of(draw_queue(((16, 16),) * clusters, 30.0 * clusters, jobs=60 * clusters))
            took = []
            for _ in range(preset["rounds"] + 1):
                game = Game(problem)
                start_s = time.perf_counter()
                decide(network, [game])
                took.append(time.perf_counter() - start_s)
            middle = 1e3 * statistics.median(took[1:])
            row(clusters, f"{middle:.1f}", verdict(middle, most=most))


def real_row(page, preset):
    job = TapFingerJob(**preset["real"])
    page.add(
        f"## Real jobs (S9)\n\n{job.real_jobs} jobs on {job.clusters} clusters of {job.cpus} processors, each "
        f"{job.processor:g} of a real one, and {job.gpus} accelerators, whose computing is slept; slots of "
        f"{job.slot_s:g} s. Simulated before the run from measured seconds of steps, starts and stops; each turn "
        "measures them anew."
    )
    errors = {planner: [] for planner in REAL}
    with page.table(
        "turn", "scheduler", "simulated s", "measured s", "error", "stops", "start s", "stop s"
    ) as row:
        for turn in range(preset["turns"]):
            with tempfile.TemporaryDirectory() as folder:
                for found in run_real(job, Path(folder), REAL, print):
                    errors[found.planner].append(found.error)
                    stops = len(found.executed.stops_s)
                    row(
                        turn + 1, found.planner, f"{found.predicted_jct_s:.2f}", f"{found.measured_jct_s:.2f}",
                        f"{100 * found.error:+.1f} %", stops, f"{found.start_s:.2f}", f"{found.stop_s:.2f}",
                    )  # fmt: skip
    with page.table("claim", "figure", "threshold") as row:
        for planner, found in errors.items():
            middle = abs(statistics.median(found))
            row(
                f"S9: error under {planner}, median of {len(found)}",
                f"{middle:.3f}",
                verdict(middle, most=0.1),
            )


def main():
    options = arguments(__doc__, ROWS)
    preset = PRESETS[options.preset]
    page = Page(
        "Jobs of clusters", options.preset, {"Schedulers": "simulated; latency and real jobs measured"}
    )
    makers = {"schedulers": schedulers_row, "shifts": shifts_row, "latency": latency_row, "real": real_row}
    for name in options.only:
        makers[name](page, preset)
    page.finish(options)


if __name__ == "__main__":
    main()
