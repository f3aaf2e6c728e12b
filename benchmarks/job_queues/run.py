"""Schedulers of a queue of jobs, simulated: the learned policy against rules.

    python benchmarks/job_queues/run.py --preset paper --out benchmarks/results/job_queues_MACHINE.md

Rows: `schedulers` (S1, S3: all planners on TapFinger's queues), `shifts` (S4: load that swings, paces that nobody sees,
kinds that no training saw), `ahead` (S4: looking ahead over rules), `latency` (S7: seconds of a round of decisions,
measured), `real` (S9: real jobs on clusters of the lab, against their simulation), `several` (S5: several jobs of a
cluster in one decision), `ablations` (S6: without the pointer, without Bayes' rule), `matching` (the
best matching of clusters and jobs in place of Bayes' rule), `attention` (S6: without layers over the graph; trains two
networks, for minutes), `logs` (S8: a log in the form of Helios), `shapes` (what `plan jobs --with tapfinger` gives on
queues of five shapes that no training saw, against the best of the rules that it looks at).

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
from wirewise.planners import PLANNERS
from wirewise.planners.jobs import REALLOTTING, RULES, mean_slots, problem_of, tune
from wirewise.planners.jobs.attention import TapFinger
from wirewise.planners.jobs.lookahead import LOOKED_AT, TUNED, LookAhead, follow_policy
from wirewise.planners.jobs.policy import ABLATIONS, Episode, decide, run_episodes
from wirewise.planners.jobs.problem import simulate_rule
from wirewise.planners.jobs.rules import expected_queue, knowledge
from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue, edge_kinds, numbered_clusters
from wirewise.trace import JobKind
from wirewise.trace.queue_logs import HELIOS_LIKE, read_queue_log
from wirewise_papers.tapfinger.experiment import completions, run_real
from wirewise_papers.tapfinger.job import TapFingerJob
from wirewise_papers.tapfinger.policy_training import TrainingSettings, imitate, paper_queues

ROWS = (
    "schedulers",
    "shifts",
    "ahead",
    "latency",
    "real",
    "several",
    "ablations",
    "matching",
    "attention",
    "logs",
    "shapes",
)
PRESETS = {
    "smoke": {
        "seeds": 2,
        "jobs": 40,
        "rounds": 3,
        "imitated": 320,
        "real": {"real_jobs": 3, "size_s": 4.0},
        "turns": 1,
        "unseen": 1,
    },
    "paper": {
        "unseen": 8,
        "seeds": 10,
        "jobs": None,
        "rounds": 200,
        "imitated": 8000,
        "real": {},
        "turns": 1,
    },
}
CLUSTERS = {"three equal": (EVEN, 3.0, 4.3), "six unequal": (UNEVEN, 6.0, 4.9)}
"""Processors and accelerators, jobs a slot, and what is published of TapFinger, rounded up."""
LAST = 5000
"""Slot at which the policy is stopped."""
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


SHIFTS = {
    "load swings by 80 %": {"rate": 2.5, "swing": 0.8},
    "paces spread by 50 %": {"rate": 2.5, "noise": 0.5},
    "both": {"rate": 2.5, "swing": 0.8, "noise": 0.5},
    "three kinds that no training saw": {"rate": 1.5, "kinds": unseen_kinds()},
}


def shifted(preset, rate, **more):
    return drawn(preset, EVEN, rate, **more)


def shifts_row(page, preset):
    page.add(
        "## Where fixed rules fail (S4)\n\nThree equal clusters. The best of the rules in the mean, with amounts tuned "
        "on ordinary queues of the same kinds, against the policy alone, paired by seed; a positive figure is a "
        "shorter time."
    )
    with page.table("queues", "best rule", "its mean", "policy", "shorter by", "claim") as row:
        for name, more in SHIFTS.items():
            found = times(shifted(preset, **more))
            best = min(RULES, key=lambda rule: found[rule].mean())
            shorter = 1 - found["tapfinger"] / found[best]
            row(
                name, best, interval(found[best]), interval(found["tapfinger"]), interval(100 * shorter) + " %",
                verdict(shorter.mean(), least=0.1),
            )  # fmt: skip


def ahead_row(page, preset):
    page.add(
        "## Looking ahead (S4)\n\nThree equal clusters. In each slot what each rule would do now, and the best of four "
        "from the next slot on, is simulated for the jobs that have come, with the paces that progress has shown; the "
        "best is followed. This is how `tapfinger` is kept safe; here without the policy, against the best of all "
        "rules in the mean and against the tuned threshold; amounts are tuned on ordinary queues of the same kinds. "
        "Paired by seed; a positive figure is a shorter time."
    )
    with page.table(
        "queues", "best rule", "its mean", "looking ahead", "shorter by", "than the threshold", "claim"
    ) as row:
        for name, more in (SHIFTS | {"as in S3": {"rate": 3.0}}).items():
            pairs = shifted(preset, **more)
            known = knowledge(expected_queue(pairs[0][1].arrays))
            tuned = {rule: tune([other for other, _ in pairs], rule) for rule in TUNED}
            found = {
                rule: np.array([mean_slots([one], rule, tuned.get(rule, known)) for _, one in pairs])
                for rule in RULES
            }
            ahead = np.array(
                [
                    (
                        follow_policy(one, LookAhead(one, tuned=tuned).decide, LAST).finish
                        - one.arrays.arrival
                    ).mean()
                    for _, one in pairs
                ]
            )
            best = min(RULES, key=lambda rule: found[rule].mean())
            shorter, safe = (1 - ahead / found[rule] for rule in (best, "threshold"))
            least = 0.0 if name == "as in S3" else 0.1
            row(
                name, best, interval(found[best]), interval(ahead), interval(100 * shorter) + " %",
                interval(100 * safe) + " %", verdict(shorter.mean(), least=least),
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
                game = Episode(problem)
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


def mean_slots_of(network, problems, **how):
    """Mean slots of each queue under the policy."""
    states = run_episodes(network, problems, LAST, **how)
    pairs = zip(states, problems, strict=True)
    return np.array(
        [np.where(state.finish < 0, LAST, state.finish - one.arrays.arrival).mean() for state, one in pairs]
    )


def several_row(page, preset):
    network = read_weights(SHIPPED)
    page.add(
        f"## Several jobs in one decision (S5)\n\n{preset['seeds']} seeds. A round is one pass of attention over "
        "clusters and jobs; with several jobs in one each cluster picks job after job until it lets one wait, and the "
        "slot passes. Between picks, clusters are told by their own features only."
    )
    rounds, looked = [0], network.embeddings

    def counted(seen):
        rounds[0] += len(seen.cluster)
        return looked(seen)

    with page.table(
        "clusters", "one job a round", "several", "longer by", "rounds over rounds", "claim"
    ) as row:
        for name, (clusters, rate, _) in CLUSTERS.items():
            problems = [one for _, one in drawn(preset, clusters, rate)]
            found, made = [], []
            network.embeddings = counted
            for several in (False, True):
                rounds[0] = 0
                found.append(mean_slots_of(network, problems, several=several))
                made.append(rounds[0])
            network.embeddings = looked
            longer, fewer = found[1].mean() / found[0].mean() - 1, made[0] / made[1]
            row(
                name, interval(found[0]), interval(found[1]), f"{100 * longer:.2f} %: {verdict(longer, most=0.02)}",
                f"{fewer:.2f}", verdict(fewer, least=2.0),
            )  # fmt: skip


def without(row, name, part, less, base):
    """A row for what is longer without a part, paired by seed."""
    longer = 100 * (less / base - 1)
    low = longer.mean() - stats.t.ppf(0.975, len(longer) - 1) * longer.std(ddof=1) / np.sqrt(len(longer))
    row(name, part, interval(less), interval(longer), f"lower end {low:.2f}: {verdict(low, least=0.0)}")


LESS = ("clusters", "without", "mean slots", "longer by %, 95 % interval", "claim")


def ablations_row(page, preset):
    network = read_weights(SHIPPED)
    page.add(
        f"## Without parts of the policy (S6)\n\n{preset['seeds']} seeds, paired; the weights that come along. "
        "Without the pointer the oldest job is picked; without Bayes' rule clusters that picked one job take turns."
    )
    with page.table(*LESS) as row:
        for name, (clusters, rate, _) in CLUSTERS.items():
            problems = [one for _, one in drawn(preset, clusters, rate)]
            whole = mean_slots_of(network, problems)
            for part in ABLATIONS:
                without(row, name, part, mean_slots_of(network, problems, without=(part,)), whole)


def matching_row(page, preset):
    network = read_weights(SHIPPED)
    page.add(
        f"## The best matching in place of Bayes' rule\n\n{preset['seeds']} seeds, paired; the weights that come "
        "along. In each round clusters get different jobs, so that the logarithms of room and probability are greatest "
        "in all. A positive figure is what the rule is longer by."
    )
    with page.table("clusters", "Bayes' rule", "matching", "longer by %, 95 % interval") as row:
        for name, (clusters, rate, _) in CLUSTERS.items():
            problems = [one for _, one in drawn(preset, clusters, rate)]
            ruled, matched = (mean_slots_of(network, problems, matching=one) for one in (False, True))
            row(name, interval(ruled), interval(matched), interval(100 * (ruled / matched - 1)))


def attention_row(page, preset):
    page.add(
        f"## Without attention over the graph (S6)\n\n{preset['seeds']} seeds, paired; two networks that learned from "
        f"{preset['imitated']} rounds of `heft` alone, one without layers over the graph."
    )
    learned = []
    for layers in (2, 0):
        torch.manual_seed(0)
        learned.append(TapFinger(layers=layers))
        settings = TrainingSettings(imitated=preset["imitated"])
        list(imitate(learned[-1], [paper_queues(0), paper_queues(1)], settings))
        learned[-1].eval()
    with page.table(*LESS) as row:
        for name, (clusters, rate, _) in CLUSTERS.items():
            problems = [one for _, one in drawn(preset, clusters, rate)]
            whole, less = (mean_slots_of(one, problems) for one in learned)
            without(row, name, "attention", less, whole)


def stepped(most, exponent, least=1):
    """A kind that splits over powers of two only, and makes no progress with other numbers of accelerators."""
    powers = {least * 2**n for n in range(8)}
    row = tuple(0.06 * g**exponent if g in powers and g <= most else 0.0 for g in range(17))
    return JobKind(progress=((0.0,) * 17, row), cpus=1, gpus=least)


def saturating(scale, half):
    """A kind whose progress saturates, as where communication grows with the ranks."""
    row = tuple(scale * g / (1 + (g / half) ** 2) for g in range(17))
    return JobKind(progress=((0.0,) * 17, row), cpus=1, gpus=1)


SHAPES = {
    "steps: 1, 2, 4, 8 accelerators": {
        "clusters": [(8, 8), (8, 8), (16, 16)],
        "rate": 1.5,
        "kinds": {"a": stepped(8, 0.9), "b": stepped(4, 0.7), "c": stepped(16, 1.0, least=2)},
    },
    "saturating kinds": {
        "clusters": [(16, 16), (8, 8)],
        "rate": 1.2,
        "kinds": {"a": saturating(0.10, 6), "b": saturating(0.25, 2), "c": saturating(0.04, 12)},
    },
    "few long jobs among short ones": {
        "clusters": [(16, 16), (16, 16)],
        "rate": 0.6,
        "kinds": {"short": saturating(0.5, 4), "long": stepped(16, 0.85), "longer": saturating(0.02, 10)},
    },
    "swings and paces of their own": {
        "clusters": EVEN,
        "rate": 1.4,
        "swing": 0.8,
        "noise": 0.5,
        "kinds": {"a": stepped(8, 0.8), "b": saturating(0.12, 5)},
    },
    "all at once on unlike clusters": {
        "clusters": [(4, 2), (8, 6), (16, 16), (32, 12)],
        "rate": float("inf"),
        "kinds": {"a": saturating(0.10, 6), "b": stepped(8, 0.95), "c": saturating(0.3, 3)},
    },
}
"""Queues of kinds and clusters that no training saw."""


def shapes_row(page, preset):
    page.add(
        "## Queues that no training saw\n\n"
        f"{len(SHAPES)} shapes, {preset['unseen']} queues of 48 jobs each, drawn by seeds from 7,000 on. Times under "
        f"`tapfinger`, over those under the best of {', '.join(LOOKED_AT)} alone, chosen for each queue when its ends "
        "are known. Planners do not know the paces of jobs."
    )
    worst = 0.0
    with page.table(
        "queues", "best rule (times)", "its mean", "tapfinger", "over the best: mean", "worst"
    ) as row:
        for name, more in SHAPES.items():
            best, over, means, own = [], [], [], []
            for seed in range(preset["unseen"]):
                problem = problem_of(draw_queue(jobs=48, seed=7_000 + seed, **more))
                plans = {rule: PLANNERS["jobs"][rule](problem) for rule in LOOKED_AT}
                first = min(plans, key=lambda rule: plans[rule].mean_completion_s)
                best.append(first)
                means.append(plans[first].mean_completion_s)
                own.append(PLANNERS["jobs"]["tapfinger"](problem).mean_completion_s)
                over.append(own[-1] / means[-1])
            worst = max(worst, *over)
            counts = ", ".join(
                f"{rule} ({best.count(rule)})" for rule in sorted(set(best), key=best.count)[::-1]
            )
            row(
                name,
                counts,
                interval(means),
                interval(own),
                f"{statistics.mean(over):.3f}",
                f"{max(over):.3f}",
            )
    with page.table("claim", "figure", "threshold") as row:
        row("over the best rule at most, all queues", f"{worst:.3f}", verdict(worst, most=1.02))


def logs_row(page, preset):
    network = read_weights(SHIPPED)
    clusters = ((32, 32),)
    queue = read_queue_log("helios", HELIOS_LIKE, numbered_clusters(clusters), jobs=preset["jobs"])
    page.add(
        f"## A log in the form of Helios (S8)\n\n{len(queue.queue)} drawn jobs on a cluster of "
        f"{clusters[0][0]} processors and {clusters[0][1]} accelerators, slots of {queue.slot_s:g} s; "
        "what is stopped loses nothing. Planners know the median of jobs that ask as much; an oracle knows each job."
    )
    problems = [problem_of(queue, kept=1.0, oracle=oracle) for oracle in (False, True)]

    def hours(states):
        slots = [
            (state.finish - one.arrays.arrival).mean() for state, one in zip(states, problems, strict=True)
        ]
        return [one * queue.slot_s / 3600 for one in slots]

    known = knowledge(expected_queue(problems[0].arrays))
    found = {
        name: hours([simulate_rule(one, name, known) for one in problems])
        for name in ("threshold", "sjf", "heft", "srpt", "tiresias", "optimus", "gavel", "min")
    }
    found["tapfinger, the policy alone"] = hours([run_episodes(network, [one], LAST)[0] for one in problems])
    with page.table("planner", "mean hours", "with an oracle") as row:
        for name, values in sorted(found.items(), key=lambda item: item[1][0]):
            row(NAMED.get(name, name), *(f"{one:.3f}" for one in values))
    with page.table("claim", "figure", "threshold") as row:
        less = min(blind for blind, _ in found.values())
        row(
            "S8: the bound over the best planner",
            f"{found['srpt'][1] / less:.3f}",
            verdict(found["srpt"][1] / less, most=1.0),
        )


NAMED = {"threshold": "first in, first out (threshold, not tuned)", "srpt": "srpt; with an oracle the bound"}


def main():
    options = arguments(__doc__, ROWS)
    preset = PRESETS[options.preset]
    page = Page(
        "Jobs of clusters", options.preset, {"Schedulers": "simulated; latency and real jobs measured"}
    )
    for name in options.only:
        globals()[f"{name}_row"](page, preset)
    page.finish(options)


if __name__ == "__main__":
    main()
