"""Claims about the planners of gradient buckets; all steps are simulated, only the seconds of searches are measured.

    python benchmarks/fusion_planners/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `exhaustive` (O1: the search against all bucketings of random chains of up to ten gradients), `rules` (O2: each
rule against a replay of both choices), `short_cuts` (O3: ops simulated by the search on ResNet50 with and without
its short-cuts), `models` (steps and search seconds of all planners on recorded models).

Models come from $WIREWISE_DATA/gradient-traces: elements of each tensor and the time since the one before, recorded
on a V100. Assumed: float32 gradients; a gap is the time of the backward op that ends it; the forward pass takes half
of the time of the backward pass, the optimizer 2 ms; hosts with a rank each, alike, 20 us apart; rings.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from recorded import read_gradients

from common import Page, arguments, verdict
from wirewise.cost import Links
from wirewise.planners.fusion import BucketSpan, Decision, FusionProblem, Module, Scorer
from wirewise.planners.fusion.dpro import random_search, search
from wirewise.planners.fusion.exhaustive import try_all
from wirewise.planners.fusion.rules import (
    apply_rules,
    best_chunks,
    op_fusion_pays,
    stages,
    sync_s,
    tensor_fusion_pays,
)
from wirewise.planners.fusion.score import step_of
from wirewise.planners.fusion.search import baseline, capped, dynamic
from wirewise.sim import replay
from wirewise.trace.modules import Overhead

PRESETS = {
    # Random problems of each kind; models; rates in Gbit/s; ranks of the short-cuts.
    "smoke": {"problems": 5, "chains": 100, "models": ("resnet50",), "rates": (40,), "ranks": (8,)},
    "paper": {
        "problems": 20,
        "chains": 1000,
        "models": ("resnet50", "resnet101", "vgg16", "bert", "gpt2"),
        "rates": (10, 40),
        "ranks": (8, 16),
    },
}
KINDS = ("latency", "bandwidth")
PASSES = ("tensor_fusion", "partition")
MARGIN = 0.01


def chain(seed, kind, gradients, *, slots=1, stages=False, launch=False):
    """Random modules; "latency": the fixed cost of an all-reduce is about as long as a backward op."""
    random = np.random.default_rng([seed, gradients, slots])
    modules = [
        Module(
            name=f"m{i}",
            forward_s=1e-3 * random.random(),
            backward_s=2e-3 * random.random(),
            gradient_bytes=4e6 * random.random() ** 3 + 1e3,
        )
        for i in range(gradients)
    ]
    ranks, whole = 4, sum(m.gradient_bytes for m in modules)
    busy = sum(m.backward_s for m in modules) * random.uniform(0.5, 2.0)
    rate, latency = 2 * (ranks - 1) / ranks * whole / busy, 1e-6
    if kind == "latency":
        rate, latency = 4 * rate, busy / gradients / (2 * (ranks - 1)) * random.uniform(0.5, 2.0)
    per_byte = busy / whole
    return FusionProblem(
        modules=modules,
        hosts=range(ranks),
        links=Links.uniform(ranks, rate, latency),
        comm_slots=slots,
        overhead=Overhead(
            1e-4 * launch, 2e-5 * stages, 0.3 * per_byte * stages, 2e-5 * stages, 0.2 * per_byte * stages
        ),
    )


def model(name, ranks, gbit, slots):
    path = Path(os.environ["WIREWISE_DATA"]) / "gradient-traces" / f"{name}.json"
    return FusionProblem(
        modules=read_gradients(path),
        hosts=range(ranks),
        links=Links.uniform(ranks, gbit * 1e9 / 8, 20e-6),
        optimizer_s=2e-3,
        comm_slots=slots,
    )


def exhaustive_row(page, preset):
    page.add(
        "## Search against all bucketings (O1, simulated)\n\nRandom chains of 4 to 10 gradients on 4 ranks. Step over "
        "that of the best of all bucketings, less 1; buckets only, whole."
    )
    with page.table(
        "bound by", "at once", "overheads", "problems", "search, worst %", "dynamic programme, worst %",
        "rules, worst %", "25 MiB, worst %", "search within 2 %",
    ) as row:  # fmt: skip
        for kind in KINDS:
            for slots in (1, 2):
                for extra in ((), ("launch",), ("stages",)):
                    options = {"slots": slots, **dict.fromkeys(extra, True)}
                    gaps = np.array(
                        [gaps_of(chain(i, kind, 4 + i % 7, **options)) for i in range(preset["problems"])]
                    )
                    worst = [f"{100 * gap:.2f}" for gap in gaps.max(axis=0)]
                    name = ", ".join(extra) or "none"
                    row(kind, slots, name, len(gaps), *worst, verdict(float(gaps[:, 0].max()), most=0.02))


def gaps_of(problem):
    scorer, plain = Scorer(problem), baseline(problem)
    found = search(problem, scorer=scorer, passes=("tensor_fusion",)).step_s
    best = try_all(problem).step_s
    others = (dynamic(problem, plain, partition=False), apply_rules(problem, plain, partition=False), plain)
    return [seconds / best - 1.0 for seconds in (found, *map(scorer, others))]


def rules_row(page, preset):
    page.add(
        "## Rules against replay of both choices (O2)\n\nRandom chains of 2 to 6 ops; only cases in which the two "
        "steps differ by more than 1 %."
    )
    with page.table("rule", "at once", "cases", "agrees %", "claimed") as row:
        for slots in (1, 2):
            agree, _ = agreement(preset["chains"], lambda seed, s=slots: tensor_case(seed, s))
            claimed = verdict(float(np.mean(agree)), least=0.95) if slots == 1 else "none"
            row("tensor fusion", slots, len(agree), f"{100 * np.mean(agree):.1f}", claimed)
        agree, pays = agreement(preset["chains"], op_case)
        row("op fusion", 1, len(agree), f"{100 * np.mean(agree):.1f}", "none")
        row("op fusion where it fuses", 1, int(pays.sum()), f"{100 * np.mean(agree[pays]):.1f}", "none")
        for kind in KINDS:
            good = [chunk_case(seed, kind) for seed in range(max(preset["chains"] // 20, 10))]
            row(
                f"chunks k*, bound by {kind}", 1, len(good), f"{100 * np.mean(good):.1f}",
                verdict(float(np.mean(good)), least=1.0),
            )  # fmt: skip


def agreement(count, case):
    found = [case(seed) for seed in range(count)]
    clear = [(pays == faster, pays) for pays, faster, margin in found if margin > MARGIN]
    return np.array(clear, dtype=bool).T


def compared(problem, apart, together):
    scorer = Scorer(problem)
    times = scorer(apart), scorer(together)
    return times[1] < times[0], abs(times[1] - times[0]) / min(times)


def tensor_case(seed, slots):
    random = np.random.default_rng([seed, slots])
    count = int(random.integers(2, 7))
    problem = chain(seed, KINDS[seed % 2], count, slots=slots)
    cuts = [*(random.random(count - 2) < 0.7), True]
    lasts = [i for i in range(count - 1) if cuts[i]] + [count - 1]
    apart = tuple(BucketSpan(a + 1, b) for a, b in zip([-1, *lasts], lasts, strict=False))
    together = (*apart[:-2], BucketSpan(apart[-2].first, count - 1))
    result = replay(step_of(problem, Decision(apart), simulated=[0]), problem.links)
    sent = np.flatnonzero(result.dataflow.size_bytes > 0)
    through = stages(problem)
    pays = tensor_fusion_pays(
        float(result.end_s[sent[-2]]),
        sum(m.forward_s + m.backward_s for m in problem.modules),
        sync_s(problem.size_of(together[-1]), 1, through),
        sync_s(problem.size_of(apart[-1]), 1, through),
    )
    return pays, *compared(problem, Decision(apart), Decision(together))


def op_case(seed):
    random = np.random.default_rng(seed)
    problem = chain(seed, KINDS[seed % 2], 2)
    first, last = (replace(m, forward_s=0.0) for m in problem.modules)
    fused = (first.backward_s + last.backward_s) * random.uniform(0.3, 1.0)
    problem = replace(problem, modules=[first, last], fused_s={(0, 1): (0.0, fused)})
    sync = sync_s(problem.sizes[0], 1, stages(problem))
    pays = op_fusion_pays(sync, last.backward_s, first.backward_s, fused)
    apart = Decision((BucketSpan(0, 0), BucketSpan(1, 1)))
    return pays, *compared(problem, apart, Decision((BucketSpan(0, 1),), fused=((0, 1),)))


def chunk_case(seed, kind):
    problem = chain(seed, kind, 1, stages=True)
    scorer = Scorer(problem)
    seconds = [scorer(Decision((BucketSpan(0, 0, chunks),))) for chunks in range(1, 65)]
    chosen, best = best_chunks(problem.sizes[0], stages(problem)), int(np.argmin(seconds)) + 1
    return abs(chosen - best) <= 1 or seconds[chosen - 1] <= 1.01 * seconds[best - 1]


def short_cuts_row(page, preset):
    page.add(
        "## Ops simulated by the search on ResNet50, with and without short-cuts (O3)\n\nThe same search; without: "
        "every tensor's ops on all ranks, from the beginning, for each candidate."
    )
    with page.table(
        "ranks", "Gbit/s", "at once", "ops with", "ops without", "fewer", "seconds with", "seconds without",
        "step without ms", "step with / without", "fewer, claimed", "step, claimed",
    ) as row:  # fmt: skip
        for ranks in preset["ranks"]:
            for gbit in preset["rates"]:
                for slots in (1, 2):
                    problem = model("resnet50", ranks, gbit, slots)
                    fast = search(problem, passes=PASSES)
                    whole = Scorer(problem, coarsen=False, one_rank=False)
                    full = search(problem, scorer=whole, passes=PASSES, time_budget_s=600.0)
                    fewer, ratio = full.events / fast.events, whole(fast.decision) / full.step_s
                    row(
                        ranks, gbit, slots, fast.events, full.events, f"{fewer:.0f}x", f"{fast.seconds:.2f}",
                        f"{full.seconds:.2f}", f"{1e3 * full.step_s:.2f}", f"{ratio:.4f}",
                        verdict(fewer, least=20.0), verdict(ratio, most=1.01),
                    )  # fmt: skip


def models_row(page, preset):
    page.add(
        "## Planners on recorded models, 8 ranks\n\nSimulated steps; seconds of searches. `caps`: the best of 40 caps "
        "from 64 KiB to the whole. `mcmc`: what ten seconds find. One tensor: no buckets."
    )
    with page.table(
        "model", "Gbit/s", "at once", "compute ms", "one tensor ms", "25 MiB ms", "caps ms", "mcmc ms", "dpro ms",
        "dpro over 25 MiB", "buckets", "caps s", "mcmc s", "dpro s", "dpro within 0.01 % of the best other",
    ) as row:  # fmt: skip
        for name in preset["models"]:
            for gbit in preset["rates"]:
                for slots in (1, 2):
                    row(name, gbit, slots, *compare(model(name, 8, gbit, slots)))


def compare(problem):
    scorer = Scorer(problem)
    compute = sum(m.forward_s + m.backward_s for m in problem.modules) + problem.optimizer_s
    plain, single = scorer(baseline(problem)), scorer(capped(problem, 1.0))
    caps = np.geomspace(2**16, sum(problem.sizes), 40).tolist()
    runs = {
        "caps": lambda: try_all(problem, caps=caps),
        "mcmc": lambda: random_search(problem, passes=PASSES, time_budget_s=10.0, steps=100_000),
        "dpro": lambda: search(problem, passes=PASSES),
    }
    found, took = {}, {}
    for name, action in runs.items():
        start = time.perf_counter()
        found[name] = action()
        took[name] = f"{time.perf_counter() - start:.2f}"
    steps = {name: one.step_s for name, one in found.items()}
    others = min(single, plain, steps["caps"], steps["mcmc"])
    return (
        *(f"{1e3 * s:.2f}" for s in (compute, single, plain, steps["caps"], steps["mcmc"], steps["dpro"])),
        f"{100 * (steps['dpro'] / plain - 1):+.1f} %",
        len(found["dpro"].decision.buckets),
        *took.values(),
        "holds" if steps["dpro"] <= 1.0001 * others else "FAILS",
    )


ROWS = {
    "exhaustive": exhaustive_row,
    "rules": rules_row,
    "short_cuts": short_cuts_row,
    "models": models_row,
}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page("Planners of gradient buckets", options.preset, {"Threads": "1", "Steps": "simulated"})
    search(chain(0, "latency", 4))
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
