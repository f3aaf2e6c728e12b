"""Claims about pipelines: timetables and two versions of the weights, timed in a lab; losses under delayed gradients.

    python benchmarks/pipelines/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `timetables` (S3: eager 1F1B on shaped links against its prediction, 1F1B and torch's own schedules), `split`
(S4: the gain of gradients of inputs that leave first), `versions` (B3: 2BW over a flush), `replicas` (B4: exchanges
hidden behind the next update), `losses` (B6: delayed gradients against synchronous ones at equal updates), `planning`
(B7: seconds of the search for 1,024 ranks).

Timed rows run on four hosts, a rank on each. Computing is slept: 40 ms forward, 80 ms backward, half of it for weights.
Messages and links are real. `losses` computes on one process, under the runtime's own recurrence; `planning` on one
core.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import torch
from losses import RATES, graph_losses, stiff_losses, text_losses
from torch import nn

from common import Page, arguments, scratch, verdict
from wirewise import sim
from wirewise.cost import Links
from wirewise.planners.pipeline import problem_of, search
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline.weights import Weights
from wirewise.trace.stages import StageModule, StageTrace
from wirewise.trials.start import open_network

ROWS = ("timetables", "split", "versions", "replicas", "losses", "planning")
PRESETS = {
    "smoke": {
        "turns": 1,
        "updates": 1,
        "microbatches": 6,
        "forward_s": 0.01,
        "text": 12,
        "graph": 20,
        "seeds": 1,
    },
    "paper": {
        "turns": 2,
        "updates": 2,
        "microbatches": 16,
        "forward_s": 0.04,
        "text": 90,
        "graph": 300,
        "seeds": 3,
    },
}
WORKER = str(Path(__file__).resolve().parent / "worker.py")
HOSTS, LINK = 4, "200mbit"
FAST = "10gbit"
"""A rate at which messages take no time beside the passes."""


def case(style, microbatches, preset, *, values=256, parameters=64, stages=HOSTS, engine="own", **more):
    """What a rank has to know of a case."""
    forward_s = preset["forward_s"]
    found = {
        "engine": engine,
        "microbatches": microbatches,
        "values": values,
        "parameters": parameters,
        "forward_s": forward_s,
        "backward_s": 2 * forward_s,
        "weight_s": forward_s,
    }
    if engine == "own":
        names = [str(number) for number in range(stages)]
        plan = StagePlan.from_cuts(names, range(1, stages), style=style, microbatches=microbatches, **more)
        found["plan"] = msgspec.to_builtins(plan)
    return found


def predicted_s(one, link):
    plan = StagePlan.from_json(json.dumps(one["plan"]))
    modules = tuple(
        StageModule(
            name=name,
            forward_s=(one["forward_s"],),
            backward_s=(one["backward_s"],),
            weight_gradient_s=(one["weight_s"],),
            output_bytes=4.0 * one["values"],
            parameter_bytes=4.0 * one["parameters"],
        )
        for stage in plan.stages
        for name in stage.modules
    )
    links = Links.of_lab([link] * plan.world_size)
    return sim.predict(plan, StageTrace(modules=modules), links).step_s


def timed(cases, link, preset, hosts=HOSTS):
    """Seconds of an update in each case, median over turns; cases take turns in one job."""
    with scratch() as folder, open_network("lab", hosts, link) as network:
        job = {"cases": cases, "turns": preset["turns"], "updates": preset["updates"]}
        (folder / "job.json").write_text(json.dumps(job))
        done = network.run([WORKER, str(folder)], launcher="direct", timeout_s=400)
        if not done.ok:
            sys.exit(f"worker failed: {done.tails}")
        found = json.loads((folder / "result.json").read_text())
    return {name: statistics.median(values) for name, values in found.items()}


def message_values(share, preset, link=LINK):
    """Number of float32 values whose message takes a share of a forward pass."""
    rate = Links.of_lab([link] * 2).interface_bytes_per_s
    return round(share * preset["forward_s"] * rate / 4)


class Errors:
    """Predicted over measured seconds of all rows."""

    def __init__(self):
        self.found = []

    def of(self, predicted, measured):
        self.found.append(predicted / measured - 1)
        return f"{self.found[-1]:+.1%}"


def timetables_row(page, preset, errors):
    m = preset["microbatches"]
    page.add(
        f"## Eager 1F1B on shaped links (S3)\n\nFour hosts at {LINK}, {m} microbatches. A message takes the given "
        "share of a forward pass, with headers. In units of forward passes; all cases of a message size in one job."
    )
    limits = {0.5: (1.06, 1.40, None), 1.0: (1.15, 1.45, 1.10)}
    with page.table("message", "case", "measured", "predicted", "error", "claim") as row:
        for share, (over, gain, torch_gain) in limits.items():
            values = message_values(share, preset)
            cases = {style: case(style, m, preset, values=values) for style in ("eager", "1f1b")}
            cases |= {
                e: case("", m, preset, values=values, engine=e) for e in ("torch 1F1B", "torch interleaved")
            }
            found = timed(cases, LINK, preset)
            unit = preset["forward_s"]
            for name, seconds in found.items():
                claims, told = [], ["-", "-"]
                if name in ("eager", "1f1b"):
                    predicted = predicted_s(cases[name], LINK)
                    told = [f"{predicted / unit:.1f}", errors.of(predicted, seconds)]
                if name == "eager":
                    claims.append(
                        f"over predicted {seconds / predicted:.3f}, {verdict(seconds / predicted, most=over)}"
                    )
                else:
                    ratio = seconds / found["eager"]
                    least = {"torch 1F1B": gain, "torch interleaved": torch_gain}.get(name)
                    judged = f", {verdict(ratio, least=least)}" if least else ""
                    claims.append(f"eager is {ratio:.2f}x as fast{judged}")
                row(f"{share:g} F", name, f"{seconds / unit:.1f}", *told, "; ".join(claims))


def split_row(page, preset, errors):
    m = preset["microbatches"]
    page.add(
        f"## Gradients of inputs first (S4)\n\nFour hosts at {LINK}, {m} microbatches, messages of two forward passes. "
        "In units of forward passes. That gradients are equal is a test."
    )
    cases = {s: case(s, m, preset, values=message_values(2.0, preset)) for s in ("eager", "eager-split")}
    found = timed(cases, LINK, preset)
    with page.table("case", "measured", "predicted", "error", "claim") as row:
        for name, seconds in found.items():
            predicted, unit = predicted_s(cases[name], LINK), preset["forward_s"]
            gain = found["eager"] / seconds - 1
            claim = f"{gain:.1%} faster, {verdict(gain, least=0.08)}" if name != "eager" else "-"
            row(
                name, f"{seconds / unit:.1f}", f"{predicted / unit:.1f}", errors.of(predicted, seconds), claim
            )


def versions_row(page, preset, errors):
    page.add(
        f"## Two versions of the weights (B3)\n\nFour hosts at {FAST}. Ideal: (m + p - 1) / m. Rate: microbatches in "
        "the time of a forward and a backward pass."
    )
    with page.table(
        "microbatches", "case", "an update", "predicted", "error", "rate", "over flush", "claim"
    ) as row:
        for m, least in ((4, 1.65), (16, 1.15)):
            cases = {style: case(style, m, preset) for style in ("gpipe", "1f1b", "zero-bubble", "2bw")}
            found = timed(cases, FAST, preset)
            for name, seconds in found.items():
                predicted, gain = predicted_s(cases[name], FAST), found["gpipe"] / seconds
                rate = m * 3 * preset["forward_s"] / seconds
                claim = "-"
                if name == "2bw":
                    claim = f"over flush {verdict(gain, least=least)}; rate {verdict(rate, least=0.97)}"
                if name == "2bw" and m == 4:
                    step_s = seconds
                row(
                    m, name, f"{seconds:.3f} s", f"{predicted:.3f} s", errors.of(predicted, seconds),
                    f"{rate:.3f}", f"{gain:.2f}x", claim,
                )  # fmt: skip
    switch_s, advance_s, size = switch_times()
    share = 2 * 4 * switch_s / step_s
    page.add(
        f"Weights of {size / 1e6:.0f} MB (B2): a switch of the version takes {1e3 * switch_s:.3f} ms and copies "
        f"nothing, two for each of 4 microbatches {share:.2%} of the update above. An update copies the weights once "
        f"before the optimizer steps on the copy, {1e3 * advance_s:.0f} ms."
    )
    with page.table("switches", "share of an update", "claim") as row:
        row("two a microbatch", f"{share:.2%}", verdict(share, most=0.01))


def switch_times():
    """Seconds to exchange the version in use, and to begin an update, of 100 MB in 50 tensors; medians of 30."""
    model = nn.ModuleList(nn.Linear(700, 714, bias=False) for _ in range(50))
    weights = Weights({"stage": model}, 2)
    weights.copy_versions()
    weights.advance()
    switches, advances = [], []
    for number in range(30):
        start_s = time.perf_counter()
        weights.use(weights.newest - number % 2)
        switches.append(time.perf_counter() - start_s)
        weights.originals()
    for _ in range(30):
        start_s = time.perf_counter()
        weights.advance()
        advances.append(time.perf_counter() - start_s)
    return statistics.median(switches), statistics.median(advances), sum(p.nbytes for p in model.parameters())


def replicas_row(page, preset, errors):
    m, stages = 4, 2
    slack_s = (m - stages + 1) * 3 * preset["forward_s"]
    rate = Links.of_lab([LINK] * 2).interface_bytes_per_s
    parameters = round(0.75 * slack_s * rate / 4)
    page.add(
        f"## Exchanges behind the next update (B4)\n\nTwo stages, {m} microbatches, hosts at {LINK}; {parameters:,} "
        f"parameters a stage, whose exchange between two replicas takes three quarters of {slack_s:.2f} s. One "
        "replica: the same stages on two hosts, which exchange nothing."
    )
    shared = {"parameters": parameters, "stages": stages}
    alone = timed({"one replica": case("2bw", m, preset, **shared)}, LINK, preset, hosts=stages)
    cases = {
        name: case("2bw", m, preset, replicas=2, exchange=place, **shared)
        for name, place in {"two, hidden": "hidden", "two, at the end": "end"}.items()
    }
    found = alone | timed(cases, LINK, preset)
    cases["one replica"] = case("2bw", m, preset, **shared)
    with page.table("replicas", "an update", "predicted", "error", "over one replica", "claim") as row:
        for name, seconds in found.items():
            predicted, over = predicted_s(cases[name], LINK), seconds / found["one replica"]
            claim = {
                "two, hidden": verdict(over, most=1.03),
                "two, at the end": f"over hidden {verdict(seconds / found['two, hidden'], least=1.2)}",
            }.get(name, "-")
            row(
                name,
                f"{seconds:.3f} s",
                f"{predicted:.3f} s",
                errors.of(predicted, seconds),
                f"{over:.3f}",
                claim,
            )


def losses_row(page, preset):
    page.add(
        "## Losses with delayed gradients (B6)\n\nMean loss of the last tenth of the updates, mean of "
        f"{preset['seeds']} seeds; the delayed training takes every gradient one update late, as the runtime does. "
        f"Text: a language model of 0.92 million parameters over characters, {preset['text']} updates. Graph: "
        f"GraphSAGE on a block model, {preset['graph']} updates. Rates warm up, and fall to zero."
    )
    limits = {"sgd": 0.01, "adamw": 0.02}
    with page.table(
        "task", "optimizer", "rate", "synchronous", "delayed", "with error feedback", "claim"
    ) as row:
        for task, optimizer, rate in ((*case, rate) for case, rates in RATES.items() for rate in rates):
            found = {"text": text_losses, "graph": graph_losses}[task](
                optimizer, rate, preset[task], preset["seeds"]
            )
            before = found["synchronous"]
            differs = {name: found[name] / before - 1 for name in ("delayed", "corrected")}
            claim = (
                verdict(differs["delayed"], most=limits[optimizer]) if optimizer in limits else "not judged"
            )
            told = [f"{found[name]:.4f} ({differ:+.2%})" for name, differ in differs.items()]
            row(task, optimizer, rate, f"{before:.4f}", *told, claim)
    page.add(
        "A stiff case: least squares with curvatures from 1 to 1,000 under Adam at a rate that suits the synchronous "
        "training. Recovered: share of the gap that a correction closes."
    )
    with page.table("correction", "loss", "over synchronous", "recovered", "claim") as row:
        found = stiff_losses(preset["seeds"], preset["graph"])
        gap = found["none"] - found["synchronous"]
        recovered = {n: 1 - (found[n] - found["synchronous"]) / gap for n in ("nesterov", "error_feedback")}
        best = max(recovered, key=recovered.get)
        for name, loss in found.items():
            over, claim = loss / found["synchronous"] - 1, "-"
            if name == "none":
                claim = verdict(over, least=0.05)
            elif name == best:
                claim = verdict(recovered[name], least=2 / 3)
            share = f"{recovered[name]:.0%}" if name in recovered else "-"
            row(name, f"{loss:.4g}", f"{over:+.1%}", share, claim)


def planning_row(page):
    page.add(
        "## Planning for 1,024 ranks (B7)\n\n128 hosts of eight ranks, 4,096 samples an update, blocks alike: every "
        "division into stages and replicas, samples a microbatch and recomputation. Median of 10 searches; the "
        "first, which loads or compiles kernels, is not counted."
    )
    links = Links.uniform(128, 1e9, 1e-5, ranks_per_host=8, intra_bytes_per_s=1e11)
    with page.table("blocks", "shapes compared", "seconds", "claim") as row:
        for blocks in (48, 2240):
            modules = tuple(
                StageModule(
                    name=f"block{number}", forward_s=(1e-3, 1.6e-3), backward_s=(2e-3, 3.4e-3), output_bytes=4e6,
                    saved_bytes=2e7, parameter_bytes=5e7,
                )
                for number in range(blocks)
            )  # fmt: skip
            seconds = []
            for _ in range(11):
                problem = problem_of(StageTrace(modules=modules, sizes=(1, 2)), links, batch=4096)
                start_s = time.perf_counter()
                found = search(problem)
                seconds.append(time.perf_counter() - start_s)
            took = statistics.median(seconds[1:])
            row(blocks, len(found.found), f"{took:.3f}", verdict(took, most=0.1))


def main():
    options = arguments(__doc__, ROWS)
    preset = PRESETS[options.preset]
    torch.set_num_threads(1)
    page = Page(
        "Pipelines", options.preset, {"Hosts": f"{HOSTS} namespaces of a lab; computing slept but for losses"}
    )
    errors = Errors()
    makers = {
        "timetables": timetables_row,
        "split": split_row,
        "versions": versions_row,
        "replicas": replicas_row,
    }
    for name in options.only:
        if name == "losses":
            losses_row(page, preset)
        elif name == "planning":
            planning_row(page)
        else:
            makers[name](page, preset, errors)
    if errors.found:
        sizes = [abs(one) for one in errors.found]
        page.add(
            f"## Predictions\n\nPredicted over measured seconds of the {len(sizes)} predicted rows above."
        )
        with page.table("error", "share", "claim") as row:
            row("mean", f"{statistics.fmean(sizes):.1%}", verdict(statistics.fmean(sizes), most=0.05))
            row("largest", f"{max(sizes):.1%}", verdict(max(sizes), most=0.08))
    page.finish(options)


if __name__ == "__main__":
    main()
