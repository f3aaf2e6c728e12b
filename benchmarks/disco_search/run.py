"""Claims about DisCo's search; all steps are simulated, only the seconds of searching are measured.

    python benchmarks/disco_search/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `random` (random training steps by size: seconds and evaluations of the search, gain over baselines), `knobs`
(E6: alpha and beta, mean of seeds), `methods` (what each kind of change is worth), `captured` (captured steps of the
six models of benchmarks/disco_steps, with operators measured here).

Random steps: layers of a matmul with a bias, pointwise operators, sums and short-cuts, forward and backward; a device
with launches of 5 us, 50 GFLOP/s and 10 GB/s; all-reduces of all gradients take 0.6 of all operators' computing, and
their latencies 0.12 of it. Captured steps: 2 ranks at 100 Mbit/s, 1 ms a collective.
"""

import importlib.util
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from common import Page, arguments, verdict
from random_steps import DEVICE, random_step
from wirewise.cost.link import LinkCost
from wirewise.planners.fusion.disco import AnalyticCosts, Knobs, StepModel, search

PRESETS = {
    # Layers and links of the random steps; seeds and layers of the knobs; models; passes over their operators.
    "smoke": {
        "layers": (3,),
        "shares": (0.6,),
        "seeds": 2,
        "knob_layers": 3,
        "stop": 50,
        "knob_stop": 50,
        "models": ("mlp",),
        "passes": 2,
    },
    "paper": {
        "layers": (3, 10, 27),
        "shares": (0.3, 0.6, 1.2),
        "seeds": 20,
        "knob_layers": 4,
        "stop": 1000,
        "knob_stop": 300,
        "models": ("mlp", "cnn", "lstm", "transformer", "gcn", "gat"),
        "passes": 7,
    },
}
LEAST_EVALUATIONS_PER_S, AT_OPERATORS = 2000, 450
LATENCY = 0.2
WIRE = LinkCost(latency_s=1e-3, s_per_byte=8 / 100e6)


def model_of(graph, share, costs):
    """All-reduces of all gradients take the share of computing, beside latencies of a fifth of that."""
    compute = sum(costs((i,), (i,)) for i in range(len(graph.operators)))
    whole = sum(graph.operators[i].output_bytes for i in graph.gradients)
    line = LinkCost(
        latency_s=LATENCY * share * compute / len(graph.gradients), s_per_byte=share * compute / whole
    )
    return StepModel(graph, costs, line)


def random_model(seed, layers, share=0.6):
    graph = random_step(seed, layers)
    return model_of(graph, share, AnalyticCosts(graph, DEVICE))


def searched(model, knobs):
    """What is found, and the processor's seconds for it, which other processes do not lengthen."""
    start = time.process_time()
    found = search(model, knobs)
    return found, time.process_time() - start


def outcome(model, found, seconds):
    """Cells that describe a search."""
    fo = found.times.full_overlap_s
    held = fo <= found.times.step_s <= found.baseline_s
    best = min(found.baselines, key=lambda name: found.baselines[name].step_s)
    return (
        f"{1e3 * found.baselines['none', 'default'].step_s:.3f}", "+".join(best), f"{1e3 * found.baseline_s:.3f}",
        f"{1e3 * found.times.step_s:.3f}", f"{100 * (found.baseline_s / found.times.step_s - 1):.1f}",
        f"{100 * (found.baseline_s / fo - 1):.1f}", len(np.unique(found.state.fusion.home)),
        len(found.state.fusion.copied), len(np.unique(found.state.bucket)), found.evaluations, f"{seconds:.2f}",
        "holds" if held else "FAILS",
    )  # fmt: skip


TITLES = (
    "eager, 25 MiB: ms", "best baseline", "ms", "search: ms", "gain %", "gain of full overlap %", "regions", "copies",
    "buckets", "evaluations", "seconds", "between full overlap and baselines (E4)",
)  # fmt: skip


def random_row(page, preset):
    page.add(
        "## Random steps\n\nBaselines: fusion (none; default: into the only reader; maximal: all that is legal) and "
        "buckets (none; default: 1 and 25 MiB; 1 MiB). Share: communication without latencies over computing without "
        "fusion. Seconds are the processor's, compilation not counted; evaluations are simulated states."
    )
    with page.table("operators", "gradients", "share", *TITLES, "evaluations a second") as row:
        for layers in preset["layers"]:
            for share in preset["shares"]:
                model = random_model(1, layers, share)
                found, seconds = searched(model, Knobs(stop=preset["stop"]))
                rate, large = found.evaluations / seconds, len(model.graph.operators) >= AT_OPERATORS
                row(
                    len(model.graph.operators), len(model.graph.gradients), share, *outcome(model, found, seconds),
                    f"{rate:.0f}" + (f" ({verdict(rate, least=LEAST_EVALUATIONS_PER_S)})" if large else ""),
                )  # fmt: skip


def knobs_row(page, preset):
    seeds = range(preset["seeds"])
    page.add(
        f"## Knobs (E6)\n\n{preset['seeds']} random steps of {preset['knob_layers']} layers, each with its own seed of "
        f"the search, which stops after {preset['knob_stop']}. "
        "Steps over those of alpha 1.05 and beta 10, geometric mean."
    )
    found = {}
    for alpha, beta in ((1.05, 10), (1.0, 10), (1.1, 10), (1.05, 1), (1.05, 5), (1.05, 30)):
        own = []
        for seed in seeds:
            knobs = Knobs(alpha=alpha, beta=beta, seed=seed, stop=preset["knob_stop"])
            own.append(searched(random_model(seed, preset["knob_layers"]), knobs))
        found[alpha, beta] = np.array([(one.times.step_s, one.evaluations, s) for one, s in own])
    base = found[1.05, 10][:, 0]
    with page.table("alpha", "beta", "step, relative", "evaluations", "seconds", "order of alpha") as row:
        for (alpha, beta), values in found.items():
            mean = float(np.exp(np.log(values[:, 0] / base).mean()))
            bounds = {1.0: {"least": 1.0}, 1.1: {"most": 1.0}}.get(alpha)
            row(
                alpha, beta, f"{mean:.4f}", f"{values[:, 1].mean():.0f}", f"{values[:, 2].mean():.2f}",
                verdict(mean, **bounds) if bounds else "none",
            )  # fmt: skip


def methods_row(page, preset):
    page.add(
        f"## What each kind of change is worth\n\n{preset['seeds']} random steps as before. Steps over those of all "
        "methods, geometric mean; DisCo's are fuse, duplicate and all_reduce."
    )
    every, own = Knobs().methods, ("fuse", "duplicate", "all_reduce")
    sets = {"all": every, "DisCo's": own, "DisCo's and cupcake": (*own, "cupcake")}
    sets |= {f"all but {name}": tuple(m for m in every if m != name) for name in every}
    steps = {
        name: [
            search(
                random_model(seed, preset["knob_layers"]),
                Knobs(methods=chosen, seed=seed, stop=preset["knob_stop"]),
            )
            for seed in range(preset["seeds"])
        ]
        for name, chosen in sets.items()
    }
    base = np.array([one.times.step_s for one in steps["all"]])
    with page.table("methods", "step, relative", "gain over the best baseline %") as row:
        for name, found in steps.items():
            relative = np.exp(np.log([one.times.step_s for one in found] / base).mean())
            gain = np.mean([one.baseline_s / one.times.step_s - 1 for one in found])
            row(name, f"{relative:.4f}", f"{100 * gain:.1f}")


def captured_row(page, preset):
    page.add(
        "## Captured steps\n\nForward and backward pass of the models of benchmarks/disco_steps, one operator after "
        "the other measured here, regions by the analytic costs that are fitted to them."
    )
    with page.table("model", "operators", "gradients", "KB", *TITLES) as row:
        for name in preset["models"]:
            graph = captured(name, preset["passes"])
            model = StepModel(graph, AnalyticCosts(graph), WIRE)
            found, seconds = searched(model, Knobs(stop=preset["stop"]))
            whole = sum(graph.operators[i].output_bytes for i in graph.gradients)
            row(
                name,
                len(graph.operators),
                len(graph.gradients),
                f"{whole / 1e3:.0f}",
                *outcome(model, found, seconds),
            )


def captured(name, passes):
    """The operators of a model's step, with measured seconds."""
    import torch

    from wirewise.profile.operators import measure_operators
    from wirewise.runtime.data_parallel.capture import capture

    torch.set_num_threads(1)
    path = Path(__file__).resolve().parents[1] / "disco_steps" / "models.py"
    spec = importlib.util.spec_from_file_location("disco_models", path)
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    module, batch = models.make(name, 0)
    found = capture(module, models.loss_of, batch)
    return measure_operators(found.module, found.inputs(module, batch), found.operators, passes=passes)


ROWS = {"random": random_row, "knobs": knobs_row, "methods": methods_row, "captured": captured_row}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page("DisCo's search", options.preset, {"Threads": "1", "Steps": "simulated"})
    search(random_model(0, 2), Knobs(stop=20))
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
