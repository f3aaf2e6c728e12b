"""Claims about Cupcake's planner; all steps are simulated, only the seconds of planning are measured.

    python benchmarks/compression_planners/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `time` (B2: seconds of planning by the number of tensors), `models` (B4: recorded models against rules), `random`
(how much the best groups gain over rules on random chains), `pieces` (giant tensors in several groups).

Models come from $WIREWISE_DATA/gradient-traces: elements of each tensor and the time since the one before, recorded
on a V100. Assumed: times of codecs are Espresso's V100 constants, flat up to 2^20 elements and linear above; 150 us a
collective; the forward pass takes half of the time of the backward pass; payloads are decoded in the collective's
slot; hosts with a rank each.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from common import Page, arguments, verdict
from wirewise.cost.curve import ZERO, Curve
from wirewise.cost.gradients import V100
from wirewise.cost.links import Links
from wirewise.planners.fusion.cupcake import (
    CompressionProblem,
    GradientGroup,
    Option,
    by_rule,
    compression_problem,
    plan_groups,
    solve,
    step_s,
)
from wirewise.trace.gradients import GradientTensor, GradientTrace, read_gradient_trace

PRESETS = {
    # Models; Gbit/s; codecs; tensors of the timed problems; random chains; models and Gbit/s of pieces.
    "smoke": {
        "models": ("lstm", "vgg16"),
        "rates": (10,),
        "codecs": ("dgc",),
        "tensors": (50,),
        "chains": 5,
        "giants": ("vgg16",),
        "links": (1,),
    },
    "paper": {
        "models": ("resnet50", "resnet101", "vgg16", "bert", "gpt2", "lstm"),
        "rates": (5, 10, 25),
        "codecs": ("dgc", "efsign"),
        "tensors": (161, 314, 1000),
        "chains": 200,
        "giants": ("vgg16", "bert", "gpt2"),
        "links": (0.1, 1, 10),
    },
}
RANKS = 8
PIECE_RANKS = 4
LIMITS_S = {314: 1.0, 1000: 15.0}
LEAST = {
    ("resnet50", "dgc"): 1.3,
    ("resnet101", "dgc"): 1.3,
    ("resnet50", "efsign"): 2.0,
    ("resnet101", "efsign"): 2.0,
}


def trace_of(name):
    return read_gradient_trace(Path(os.environ["WIREWISE_DATA"]) / "gradient-traces" / f"{name}.json")


def of_tensors(count):
    """ResNet101's gradients, again from the front where it has too few."""
    own = trace_of("resnet101").tensors
    tensors = tuple(
        GradientTensor(name=str(i), elements=own[i % len(own)].elements, gap_us=own[i % len(own)].gap_us)
        for i in range(count)
    )
    return GradientTrace(tensors=tensors)


def planned(problem):
    """The solution, and the processor's seconds for it, which other processes do not lengthen."""
    start = time.process_time()
    found = solve(problem)
    return found, time.process_time() - start


def time_row(page, preset):
    page.add(
        "## Seconds of planning (B2, measured)\n\nGradients of ResNet101, cut off or repeated; 8 ranks, 10 Gbit/s. "
        "Processor's seconds of one thread, compilation not counted. Proved: whether the search or the bound shows "
        "that no plan is better; the gap is that to the bound."
    )
    choices = {
        "dgc": ["dgc"],
        "efsign": ["efsign"],
        "dgc or none": ["dgc", "none"],
        "any": [*V100.codecs, "none"],
    }
    with page.table(
        "tensors", "codec", "ways", "groups", "labels", "gap %", "proved", "seconds", "claimed"
    ) as row:
        for count in preset["tensors"]:
            for name, codecs in choices.items():
                problem = compression_problem(
                    of_tensors(count), Links.uniform(RANKS, 10e9 / 8), codec=codecs, costs=V100
                )
                found, seconds = planned(problem)
                limit = LIMITS_S.get(count)
                row(
                    count, name, len(problem.options), len(found.groups), found.labels, f"{100 * found.gap:.3f}",
                    "yes" if found.optimal else "no", f"{seconds:.2f}",
                    verdict(seconds, most=limit) if limit else "none",
                )  # fmt: skip


def flat(problem):
    """The problem without schemes of two stages, which the papers that are compared do not have."""
    kept = tuple(option for option in problem.options if option.scheme in ("all_reduce", "all_gather"))
    return replace(problem, options=kept)


def models_row(page, preset):
    page.add(
        "## Recorded models against rules, 8 ranks (B4, simulated)\n\nMilliseconds a step. Uncompressed: the best of "
        "single tensors, 25 MiB, 2 to 32 even groups and MG-WFBP; compressed by the same rules with the codec for all "
        "groups. Cupcake: the best groups with the codec for all; or none: each group with it or without, by any "
        "scheme."
    )
    with page.table(
        "model", "Gbit/s", "codec", "uncompressed", "layer-wise", "one group", "even, best", "MergeComp", "MG-WFBP",
        "Cupcake", "groups", "gap %", "or none", "gap %", "layer-wise / Cupcake", "never worse",
    ) as row:  # fmt: skip
        for name in preset["models"]:
            for gbit in preset["rates"]:
                for codec in preset["codecs"]:
                    row(name, gbit, codec, *compare(name, codec, gbit))


def compare(name, codec, gbit):
    links = Links.uniform(RANKS, gbit * 1e9 / 8)
    problem, plain, free = (
        compression_problem(trace_of(name), links, codec=codecs, costs=V100)
        for codecs in ([codec], ["none"], [codec, "none"])
    )
    problem = flat(problem)
    evens = [f"even:{count}" for count in (2, 3, 4, 6, 8, 12, 16, 24, 32)]
    none = min(step_s(plain, by_rule(plain, rule)) for rule in ("layer-wise", "bucket:25", "mg-wfbp", *evens))
    steps = [step_s(problem, by_rule(problem, rule)) for rule in ("layer-wise", "even:1")]
    steps.append(min(step_s(problem, by_rule(problem, rule)) for rule in evens))
    steps += [step_s(problem, by_rule(problem, rule)) for rule in ("mergecomp", "mg-wfbp")]
    best, any_best = solve(problem), solve(free)
    gain, wanted = steps[0] / best.step_s, LEAST.get((name, codec)) if gbit == 10 else None
    held = best.step_s <= min(steps) * (1 + 1e-9) and any_best.step_s <= min(none, best.step_s) * (1 + 1e-9)
    return (
        *(f"{1e3 * s:.1f}" for s in (none, *steps, best.step_s)), len(best.groups), f"{100 * best.gap:.3f}",
        f"{1e3 * any_best.step_s:.1f}", f"{100 * any_best.gap:.3f}",
        f"{gain:.2f}" + (f" ({verdict(gain, least=wanted)})" if wanted else ""), "holds" if held else "FAILS",
    )  # fmt: skip


def chain(seed):
    """20 to 80 random tensors; encoding and sending cost straight lines, together about as much as computing."""
    random = np.random.default_rng(seed)
    n = int(random.integers(20, 81))
    elements = np.maximum(1, 1e6 * random.random(n) ** 3).astype(int)
    busy, whole = 1e-3 * n, float(elements.sum())
    alpha_h, alpha_g = random.uniform(0, 1e-3, 2)
    encode = Curve.line(alpha_h, random.uniform(0.05, 0.3) * busy / whole)
    send = Curve.line(alpha_g, random.uniform(0.3, 1.5) * busy / whole)
    return CompressionProblem(
        elements=elements.tolist(),
        gaps_s=(2e-3 * random.random(n)).tolist(),
        options=(Option("codec", "all_gather", "inline", encode, send, ZERO),),
        forward_s=0.5 * busy,
    )


def random_row(page, preset):
    page.add(
        f"## Random chains (simulated)\n\n{preset['chains']} chains of 20 to 80 tensors with costs on straight lines. "
        "Step over the best one, less 1, in %."
    )
    rules = {name: name for name in ("layer-wise", "even:1", "mg-wfbp", "mergecomp")}
    found = {name: [] for name in ("best two groups", *rules)}
    groups = []
    for seed in range(preset["chains"]):
        problem = chain(seed)
        best, n = solve(problem), len(problem.elements)
        groups.append(len(best.groups))
        cuts = ([GradientGroup(0, cut - 1, 0), GradientGroup(cut, n - 1, 0)] for cut in range(1, n))
        steps = {"best two groups": min(step_s(problem, two) for two in cuts)}
        steps |= {name: step_s(problem, by_rule(problem, rule)) for name, rule in rules.items()}
        for name, seconds in steps.items():
            found[name].append(100 * (seconds / best.step_s - 1))
    page.add(f"Groups of the best plans: {np.mean(groups):.1f} on average.")
    with page.table("rule", "mean %", "worst %", "not the best, share", "never better") as row:
        for name, over in found.items():
            row(
                name, f"{np.mean(over):.1f}", f"{max(over):.1f}", f"{np.mean(np.array(over) > 1e-6):.2f}",
                "holds" if min(over) > -1e-7 else "FAILS",
            )  # fmt: skip


def pieces_row(page, preset):
    page.add(
        f"## Giant tensors in pieces, {PIECE_RANKS} ranks (simulated)\n\nMilliseconds a step of the best groups of "
        "whole tensors, and of those that may hold pieces of larger tensors, where that gains 2 % (`--split auto`). "
        "Any: each group with any of the codecs or none. The last gain is that of the best of 1/8, 1/32 and 1/128 of "
        "all elements as the limit of a piece, however little it is."
    )
    with page.table(
        "model", "Gbit/s", "codec", "whole", "auto", "tensors cut", "members", "groups", "gap %", "gain %", "at most %",
        "never worse",
    ) as row:  # fmt: skip
        for name in preset["giants"]:
            for gbit in preset["links"]:
                for codecs in (["none"], ["dgc"], ["efsign"], [*V100.codecs, "none"]):
                    label = codecs[0] if len(codecs) == 1 else "any"
                    row(name, gbit, label, *in_pieces(name, gbit, codecs))


def in_pieces(name, gbit, codecs):
    problem = compression_problem(
        trace_of(name), Links.uniform(PIECE_RANKS, gbit * 1e9 / 8), codec=codecs, costs=V100
    )
    plan, elements = plan_groups(problem, split="auto"), sum(problem.elements)
    whole_s, step = plan.unsplit_step_s, plan.predicted_step_s
    limits = [elements // share for share in (8, 32, 128)]
    least = min(plan_groups(problem, split=limit).predicted_step_s for limit in limits)
    return (
        f"{1e3 * whole_s:.1f}", f"{1e3 * step:.1f}", len(plan.splits),
        sum(len(bucket.parameters) for bucket in plan.buckets), len(plan.buckets),
        f"{100 * max(step / plan.lower_bound_s - 1, 0):.3f}", f"{100 * (1 - step / whole_s):.1f}",
        f"{100 * max(1 - least / whole_s, 0):.1f}", "holds" if step <= whole_s else "FAILS",
    )  # fmt: skip


ROWS = {"time": time_row, "models": models_row, "random": random_row, "pieces": pieces_row}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page("Planners of compressed groups", options.preset, {"Threads": "1", "Steps": "simulated"})
    solve(
        compression_problem(
            trace_of("lstm"), Links.uniform(RANKS, 10e9 / 8), codec=["dgc", "none"], costs=V100
        )
    )
    solve(chain(0))
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
