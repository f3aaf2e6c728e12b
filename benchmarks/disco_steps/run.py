"""Steps of six models at 100 Mbit/s, measured: DisCo's plans against what frameworks do, and against its simulator.

    python benchmarks/disco_steps/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `steps-MODEL` (E5: two ranks in a lab; eager mode, torch.compile, and plans carried out, in windows in turn) and
`simulator-MODEL` (E3: the simulated step against the measured one, and the order of ten plans). Measurements go next to
FILE as FILE.json; what is there is not measured again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.stats import spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import KeptFigures, Page, arguments, need_lab, scratch, spread, verdict
from wirewise import lab
from wirewise.cost.link import LinkCost
from wirewise.planners.fusion.disco import plan_of, plan_operators
from wirewise.planners.fusion.disco.model import StepModel
from wirewise.planners.fusion.disco.search import Knobs, capped
from wirewise.plans import FusionPlan
from wirewise.sim.region_costs import AnalyticCosts
from wirewise.trace import FusionGraph

WORKER = str(Path(__file__).parent / "worker.py")
RATE, HOSTS = "100mbit", 2
MODELS = ("mlp", "cnn", "lstm", "transformer", "gcn", "gat")
STOCK = ("eager + DDP", "Inductor + DDP 25 MiB", "Inductor + DDP 1 MiB")
REGIONS, WHOLE = "DisCo, regions", "DisCo's buckets, one graph"
E1_APART, E3_ERROR, E3_ORDER, E5_GAIN, E5_MODELS = 1e-5, 0.2, 0.8, 0.05, 2
MARGIN = 0.02
"""A plan replaces the stock way if it is faster by this share at least: less is noise."""
DRAWN = 400
"""Bucketings of which ten are measured."""
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "models": ("mlp",),
        "passes": 2,
        "repeats": 2,
        "windows": 2,
        "window": 1,
        "stop": 50,
        "ten": (1, 1),
    },
    "paper": {
        "models": MODELS,
        "passes": 30,
        "repeats": 9,
        "windows": 8,
        "window": 2,
        "stop": 1000,
        "ten": (24, 2),
    },
}


class Kept:
    """Results of jobs, also in a file."""

    def __init__(self, path: Path | None) -> None:
        self._found = KeptFigures(path)

    def job(self, label: str, **job: Any) -> Any:
        """What rank 0 found, and the seconds that the job took."""
        return self.once(label, lambda: run(job))

    def once(self, label: str, make: Callable[[], Any]) -> Any:
        """What was made for the label, and how long that took; made if nothing was."""
        if label not in self._found:
            begin = time.perf_counter()
            self._found[label] = {"found": make(), "seconds": time.perf_counter() - begin}
        return self._found[label]["found"]


def run(job: dict[str, Any]) -> Any:
    """A rank on each host of a lab."""
    with scratch() as folder, lab.Lab(HOSTS, RATE) as network:
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        done = network.run([WORKER, str(folder)], launcher="direct", timeout_s=3600)
        if not done.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in done.tails for line in tail)]))
        return msgspec.json.decode((folder / "result.json").read_bytes())


def profiled(
    model: str, preset: dict[str, Any], kept: Kept, label: str = "profile"
) -> tuple[StepModel, float, float]:
    """The model's step for the simulator, and the seconds of the optimizer and of buffers that follow rank 0."""
    found = kept.job(f"{label} {model}", kind="profile", model=model, passes=preset["passes"])
    graph = msgspec.convert(found["graph"], FusionGraph)
    step = StepModel(graph, AnalyticCosts(graph), wire(preset, kept), overlap_rate=found["overlap_rate"])
    return step, found["optimizer_s"], found["buffers_s"]


def wire(preset: dict[str, Any], kept: Kept) -> LinkCost:
    """Seconds of an all-reduce by bytes.

    Weights are for a variance that grows with the time: of relative errors, small sizes would decide on the rate too
    and make it faster than the wire; of absolute ones, one large size on the latency.
    """
    found = kept.job("all-reduces", kind="all_reduces", repeats=preset["repeats"])
    slope, base = np.polyfit(found["sizes"], found["seconds"], 1, w=np.array(found["seconds"]) ** -0.5)
    return LinkCost(latency_s=max(float(base), 0.0), s_per_byte=max(float(slope), 0.0))


def planned(model: str, preset: dict[str, Any], kept: Kept) -> list[dict[str, Any]]:
    """DisCo's plan, carried out region by region, and its buckets with one graph that Inductor cuts itself."""
    plan = kept.once(f"plan {model}", lambda: _searched(model, preset, kept))
    return [
        {"name": REGIONS, "plan": plan, "rest": "eager"},
        {"name": WHOLE, "plan": {**plan, "regions": ()}, "rest": "compiled"},
    ]


def _searched(model: str, preset: dict[str, Any], kept: Kept) -> Any:
    step, *others_s = profiled(model, preset, kept)
    found = plan_operators(step, other_s=sum(others_s), knobs=Knobs(stop=preset["stop"]))
    return msgspec.to_builtins(found.plan)


def steps_rows(page: Page, preset: dict[str, Any], kept: Kept) -> None:
    page.add(
        "## E5: measured steps\n\nForward, backward, all-reduce and SGD; gloo, one thread and one rank a host, 100 "
        "Mbit/s. Windows in turn, forth and back; milliseconds, median and quartiles, mean of ranks. "
        f"`{REGIONS}`: each region of the searched plan is compiled by itself, operators alone are eager. `{WHOLE}`: "
        "between two all-reduces Inductor decides what to fuse; the buckets are those of the searched plan. Closed "
        "loop: of all ways the one with the best median in the first half of the turns, each time over the mean of "
        f"its turn, a plan only if it is {100 * MARGIN:.0f} % faster than all stock ways; the gain is the median over "
        "the turns of the second half, against the stock way that is best in it. Where a stock way is kept, the gain "
        "is 0 by that choice. `gradients apart`: largest difference between an "
        "element of the first step's mean gradients under the two plans and in eager mode (E1), over the largest "
        "element; `rounding`: the same in eager mode alone when inputs change by 1e-7 of themselves, which "
        "switches rectifiers as rounding does; twice that is allowed where it is more than 1e-5."
    )
    gains = []
    with page.table(
        "model",
        "gradients MB",
        "buckets",
        "parts",
        *STOCK,
        REGIONS,
        WHOLE,
        "gradients apart",
        "rounding",
        "apart",
        "closed loop keeps",
        "gain %",
        "gain >= 0",
    ) as row:
        for model in preset["models"]:
            ways = planned(model, preset, kept)
            done = kept.job(
                f"steps {model}",
                kind="steps",
                model=model,
                stock=STOCK,
                plans=ways,
                windows=preset["windows"],
                window=preset["window"],
            )
            seconds = done["seconds"]
            name, gain = closed_loop(seconds)
            gains.append(gain)
            plan = msgspec.convert(ways[0]["plan"], FusionPlan)
            parts = ", ".join(_parts(done["told"][way]) for way in (REGIONS, WHOLE))
            times = [spread(seconds[way], 1e3) for way in (*STOCK, REGIONS, WHOLE)]
            apart, rounding = (
                max(done["told"][way][name] for way in (REGIONS, WHOLE)) for name in ("apart", "rounding")
            )
            megabytes = f"{plan.size_bytes / 1e6:.2f}"
            row(
                model,
                megabytes,
                done["told"][REGIONS]["buckets"],
                parts,
                *times,
                f"{apart:.1e}",
                f"{rounding:.1e}",
                verdict(apart, most=E1_APART),
                name,
                f"{100 * gain:.1f}",
                verdict(gain, least=0.0),
            )
    with page.table("claim", "figure", "threshold") as row:
        row("least gain over the best stock way", f"{100 * min(gains):.1f} %", verdict(min(gains), least=0.0))
        count = sum(gain >= E5_GAIN for gain in gains)
        row(
            "models with 5 % or more",
            f"{count} of {len(gains)}",
            verdict(count, least=min(E5_MODELS, len(gains))),
        )


def _parts(told: dict[str, Any]) -> str:
    failed = len(told["fallbacks"])
    return f"{told['parts']} ({failed} without compiler)" if failed else str(told["parts"])


def closed_loop(seconds: dict[str, list[float]]) -> tuple[str, float]:
    """The way that is kept, and its gain over the best stock way, from windows that did not choose it."""
    half = len(seconds[WHOLE]) // 2
    ways = dict(zip(seconds, by_turn(seconds), strict=True))
    trial = {
        way: (1.0 + MARGIN * (way not in STOCK)) * np.median(turns[:half]) for way, turns in ways.items()
    }
    chosen = min(trial, key=trial.__getitem__)
    best = min(STOCK, key=lambda way: np.median(ways[way][half:]))
    return chosen, 0.0 if chosen in STOCK else float(1.0 - np.median(ways[chosen][half:] / ways[best][half:]))


def by_turn(seconds: dict[str, list[float]]) -> np.ndarray:
    """Each time over the mean of its turn, [ways, turns]: what disturbs a turn disturbs all its ways."""
    turns = np.array(list(seconds.values()))
    return turns / turns.mean(axis=0)


def ten_plans(step: StepModel, seed: int = 0) -> list[Any]:
    """Plans without fusion: each gradient alone, all together, buckets of DistributedDataParallel, and seven drawn.

    Those are as far apart as possible in the simulated step, so that noise does not decide on the order.
    """
    random, alone = np.random.default_rng(seed), step.alone()
    order = [gradient for group in step.buckets(alone) for gradient in group]
    states = [alone, step.with_buckets(alone, [order]), capped(step, alone, None)]
    drawn = [step.with_buckets(alone, _drawn(order, random)) for _ in range(DRAWN)]
    taken = [step.times(state).step_s for state in states]
    left = {number: step.times(state).step_s for number, state in enumerate(drawn)}
    while len(states) < 10:
        number = max(left, key=lambda number: min(abs(left[number] - other) for other in taken))
        states.append(drawn[number])
        taken.append(left.pop(number))
    return [msgspec.to_builtins(plan_of(step, state, planner="cuts")) for state in states]


def in_turn(step: StepModel, compute_s: float, all_reduce_s: float) -> StepModel:
    """The model with operators, and messages, that take together what they took in turn with the plans.

    Args:
        step: Step with operators and messages measured one by one, minutes before.
        compute_s: Seconds of all operators.
        all_reduce_s: All gradients as one message.
    """
    slower = compute_s / sum(one.time_s for one in step.graph.operators)
    operators = tuple(
        msgspec.structs.replace(one, time_s=slower * one.time_s) for one in step.graph.operators
    )
    graph = msgspec.structs.replace(step.graph, operators=operators)
    longer = all_reduce_s / step.all_reduce.seconds(float(step.arrays.size_bytes.sum()))
    line = LinkCost(
        latency_s=longer * step.all_reduce.latency_s, s_per_byte=longer * step.all_reduce.s_per_byte
    )
    return StepModel(graph, AnalyticCosts(graph), line, overlap_rate=step.overlap_rate)


def simulated_s(step: StepModel, plan: Any) -> float:
    """The simulated step of the plan's buckets, operator by operator."""
    operators = step.graph.operators
    number = {operators[one].gradient: place for place, one in enumerate(step.graph.gradients)}
    groups = [[number[name] for name in bucket["parameters"]] for bucket in plan["buckets"]]
    return step.times(step.with_buckets(step.alone(), groups)).step_s


def _drawn(order: list[int], random: np.random.Generator) -> list[list[int]]:
    """Neighbours in the order of readiness; or any gradients, so that buckets wait for late ones."""
    if random.random() < 0.5:
        cuts = np.flatnonzero(random.random(len(order) - 1) < random.uniform(0.0, 0.6)) + 1
        return [group.tolist() for group in np.split(np.array(order), cuts)]
    drawn = random.integers(random.integers(2, 6), size=len(order))
    return [np.flatnonzero(drawn == one).tolist() for one in set(drawn.tolist())]


def simulator_rows(page: Page, preset: dict[str, Any], kept: Kept) -> None:
    page.add(
        "## E3: simulated against measured steps\n\nThe captured step run operator by operator (what the measured "
        "operator times are of) under ten bucketings. Simulated: the operators' times, a straight line of all-reduce "
        "seconds by bytes (in a queue of up to eight, as buckets are), the optimizer, buffers that follow rank 0, and "
        "how fast ranks compute while gradients travel, each measured by itself. In turn with the ten also the step "
        "without communication and all gradients as one message: all operators' times are multiplied so that they sum "
        "up to the one, and the line so that it passes through the other. Bucketings: each gradient alone, all "
        f"together, DistributedDataParallel's, and of {DRAWN} random ones the seven that lie farthest apart in the "
        "simulated step. Order: Spearman's coefficient over the ten, of the simulated step and the median of measured "
        "ones, each over the mean of its turn."
    )
    worst, least = 0.0, 1.0
    with page.table(
        "model", "operators", "compute ms", "its rate beside all-reduces", "all-reduce of all ms",
        "DDP's buckets: simulated ms", "measured ms",
        "error %", "largest error of ten %", "error <= 20 %", "best to worst of ten: simulated %", "measured %",
        "Spearman", "order",
    ) as row:  # fmt: skip
        for model in preset["models"]:
            step, optimizer_s, buffers_s = profiled(model, preset, kept, "simulator profile")
            plans = kept.once(f"ten plans {model}", partial(ten_plans, step))
            done = kept.job(
                f"simulator {model}",
                kind="steps",
                model=model,
                stock=(),
                plans=[{"name": str(i), "plan": plan, "compiler": "none"} for i, plan in enumerate(plans)],
                windows=preset["ten"][0],
                window=preset["ten"][1],
                parts=True,
            )
            measured = {name: float(np.median(seconds)) for name, seconds in done["seconds"].items()}
            all_reduce_s, compute_s = measured.pop("all-reduce"), measured.pop("compute")
            step = in_turn(step, compute_s - optimizer_s, all_reduce_s)
            simulated = np.array([simulated_s(step, plan) + optimizer_s + buffers_s for plan in plans])
            relative = np.median(by_turn({name: done["seconds"][name] for name in measured}), axis=1)
            errors = simulated / [*measured.values()] - 1.0
            order = float(spearmanr(simulated, relative).statistic)
            worst, least = max(worst, abs(errors[2])), min(least, order)
            row(
                model, len(step.graph.operators), f"{1e3 * compute_s:.1f}", f"{step.overlap_rate:.2f}",
                f"{1e3 * all_reduce_s:.1f}",
                f"{1e3 * simulated[2]:.1f}",
                spread(done["seconds"]["2"], 1e3), f"{100 * errors[2]:+.1f}", f"{100 * max(abs(errors)):.1f}",
                verdict(abs(errors[2]), most=E3_ERROR), f"{100 * (simulated.max() / simulated.min() - 1):.0f}",
                f"{100 * (relative.max() / relative.min() - 1):.0f}", f"{order:.2f}", verdict(order, least=E3_ORDER),
            )  # fmt: skip
    with page.table("claim", "figure", "threshold") as row:
        row("largest error of a model", f"{100 * worst:.1f} %", verdict(worst, most=E3_ERROR))
        row("least Spearman", f"{least:.2f}", verdict(least, least=E3_ORDER))


SECTIONS = {"steps": steps_rows, "simulator": simulator_rows}


def main() -> None:
    options = arguments(__doc__, [f"{section}-{model}" for section in SECTIONS for model in MODELS])
    need_lab()
    preset = PRESETS[options.preset]
    kept = Kept(options.out and options.out.with_suffix(".json"))
    page = Page("DisCo's plans, measured", options.preset, {"Ranks": "one a host of the lab, 100 Mbit/s"})
    for section, rows in SECTIONS.items():
        models = [model for model in preset["models"] if f"{section}-{model}" in options.only]
        if models:
            rows(page, {**preset, "models": models}, kept)
    page.finish(options)


if __name__ == "__main__":
    main()
