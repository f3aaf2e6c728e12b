"""Claims about steps under plans of compressed gradients: predicted and measured on shaped links.

    python benchmarks/gradient_steps/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `RATE-RANKS` such as `100mbit-4` (C1, C2), `c3` (gains), `c4` (do no harm), `MODEL-RATE` such as `resnet50-1gbit`
(recorded models, from $WIREWISE_DATA/gradient-traces), `bytes` (C5, of all that was measured for the other rows).
With --out each measured setting is kept beside the page in FILE.json and not measured again, so that a long run can
be made in pieces; remove that file to start anew. All need a lab; where none can be built the script says so.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from common import KeptFigures, Page, arguments, need_lab, scratch, verdict
from wirewise.lab.replayed import scale_trace
from wirewise.planners.fusion.cupcake import LEAST_GAIN
from wirewise.trace.gradients import GradientTensor, GradientTrace, read_gradient_trace
from wirewise_papers.cupcake.experiment import CupcakeJob, run
from wirewise_papers.cupcake.records import CompressionRun, PlanRecord

RATES = ("50mbit", "100mbit", "200mbit", "500mbit")
CASES = {f"{rate}-{hosts}": (rate, hosts) for hosts in (2, 4) for rate in RATES}
CODECS = ("none", "fp16", "efsign", "topk")
METHODS = ("layer-wise", "even:1", "even:4", "cupcake")
C1 = tuple(f"{codec}:{method}" for codec in CODECS for method in METHODS)
C2 = ("none:bucket:1", "none:bucket:25", "auto:layer-wise", *(f"auto:even:{y}" for y in (1, 2, 4, 8, 16)))
PLAIN = ("none:bucket:1", "none:bucket:25", "none:layer-wise", *(f"none:even:{y}" for y in (2, 4, 8, 16)))
C3 = {("100mbit", 4): (1.5, 1.3), ("100mbit", 2): (1.3, 1.2)}
MODELS = ("cupcake", "none:cupcake", *(f"{c}:{m}" for c in CODECS[2:] for m in ("cupcake", "layer-wise")))
LAYER_WISE, UNCOMPRESSED = 1.79, 2.03
ROUNDS = 4
"""Windows of a plan where gains of single plans are asked for, of 4 steps each; half as many for C1 and C2."""
TRIALS = 2
"""Windows in which Cupcake tries its plans with each codec, where it may choose."""
MESSAGE_BYTES, SHARD_BYTES, PER_BYTE = 770, 580, 0.01
"""Sent besides the payload: for a message, for one of an all-to-all and the all-gather after it, and for each byte."""
RECORDED = {
    f"{name}-{rate}": (name, rate, scale)
    for rate in ("1gbit", "100mbit")
    for name, scale in (
        ("resnet50", 16),
        ("resnet101", 16),
        ("vgg16", 64),
        ("bert", 64),
        ("gpt2", 64),
        ("lstm", 100),
    )
}
"""Model, rate and scale by row."""
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"cases": ("200mbit-2",), "models": ("lstm-1gbit",), "hosts": 2, "gains": False},
    "paper": {
        "cases": tuple(CASES),
        "models": tuple(name for name in RECORDED if not name.startswith("lstm")),
        "hosts": 4,
        "gains": True,
    },
}


def uniform() -> GradientTrace:
    """64 tensors, 0.9 M elements, 200 ms of back-propagation."""
    tensors = (GradientTensor(name=f"t{i}", elements=14_062, gap_us=3_125) for i in range(64))
    return GradientTrace(tensors=tuple(tensors), model="64 equal tensors")


def recorded(name: str, scale: int) -> GradientTrace:
    path = Path(os.environ["WIREWISE_DATA"]) / "gradient-traces" / f"{name}.json"
    return scale_trace(read_gradient_trace(path), scale)


class Kept:
    """Results of jobs, also in a file."""

    def __init__(self, path: Path | None) -> None:
        self.found = KeptFigures(path)

    def job(self, name: str, job: CupcakeJob) -> CompressionRun:
        """What rank 0 wrote; `name` is that of the trace."""
        settings = (job.hosts, job.link, job.plans, job.scale, job.steps, job.rounds)
        settings += (job.least_gain, job.trials) if job.least_gain else ()
        key = msgspec.json.encode([name, *settings]).decode()
        if key not in self.found:
            begin = time.perf_counter()
            with scratch() as folder:
                found = run(job, folder, lambda text: print(f"  {name}: {text}", file=sys.stderr, flush=True))
            seconds = time.perf_counter() - begin
            self.found[key] = {"found": found, "seconds": seconds}
        return msgspec.convert(self.found[key]["found"], CompressionRun)

    @property
    def seconds(self) -> float:
        return sum(one["seconds"] for one in self.found.values())

    def runs(self) -> list[CompressionRun]:
        return [msgspec.convert(one["found"], CompressionRun) for one in self.found.values()]


def small(
    rate: str, hosts: int, plans: tuple[str, ...], least_gain: float = 0.0, rounds: int = 2
) -> CupcakeJob:
    return CupcakeJob(
        trace=uniform(),
        link=rate,
        hosts=hosts,
        plans=plans,
        forward_share=0.0,
        steps=4,
        rounds=rounds,
        least_gain=least_gain,
        # In C1 and C2 plans are taken as predicted.
        trials=TRIALS if least_gain else 0,
    )


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def cases_rows(page: Page, cases: list[str], kept: Kept) -> None:
    page.add(
        "## C1: predicted and measured steps\n\n64 equal tensors, 0.9 M elements, 200 ms of back-propagation (slept: "
        "emulated); codecs, groups, gloo and shaped links are real; a rank a host. In one job: the model is traced, "
        "codecs and collectives are measured, all plans are made, then carried out in windows that take turns (ABBA). "
        "Medians of 8 steps, slowest rank. A codec before a plan is that of all its groups."
    )
    errors, chosen = [], []
    with page.table(
        "link",
        "ranks",
        *(f"{plan} ms (error %)" for plan in METHODS),
        "codec",
    ) as row:
        for case in cases:
            rate, hosts = CASES[case]
            found = kept.job("uniform", small(rate, hosts, (*C1, *C2, "cupcake")))
            chosen.append((rate, hosts, found))
            for codec in CODECS:
                plans = [found.plans[f"{codec}:{method}"] for method in METHODS]
                errors += [abs(plan.error) for plan in plans]
                row(rate, hosts, *(f"{ms(p.step_s)} ({100 * p.error:+.1f})" for p in plans), codec)
    with page.table("claim", "figure", "threshold") as row:
        median, high = np.median(errors), np.percentile(errors, 95)
        row("steps", len(errors), "")
        row("median error", f"{100 * median:.1f} %", verdict(median, most=0.10))
        row("95th percentile of errors", f"{100 * high:.1f} %", verdict(high, most=0.20))
        row("largest error", f"{100 * max(errors):.1f} %", "")
    chosen_rows(page, chosen)


def chosen_rows(page: Page, chosen: list[tuple[str, int, CompressionRun]]) -> None:
    page.add(
        "## C2: the chosen plan against others, measured\n\nChosen: Cupcake with the choice among fp16, topk, efsign "
        "and none, however little it gains. Others: uncompressed buckets of 1 and 25 MiB; each tensor alone and 1 to "
        "16 even groups, with the codec that the model says is best."
    )
    with page.table(
        "link", "ranks", "chosen ms", "groups", "ways", "best other", "its ms", "over it %", "within 5 %"
    ) as row:
        for rate, hosts, found in chosen:
            own, best = found.plans["cupcake"], min(C2, key=lambda name: found.plans[name].step_s)
            over = own.step_s / found.plans[best].step_s - 1
            row(
                rate, hosts, ms(own.step_s), len(own.groups), ways(own), best, ms(found.plans[best].step_s),
                f"{100 * over:+.1f}", verdict(over, most=0.05),
            )  # fmt: skip


def ways(plan: PlanRecord) -> str:
    found = (g.scheme if g.codec == "none" else f"{g.codec} by {g.scheme}" for g in plan.groups)
    return ", ".join(dict.fromkeys(found))


def fastest(found: CompressionRun, names: tuple[str, ...]) -> str:
    return min(names, key=lambda name: found.plans[name].step_s)


def c3_rows(page: Page, kept: Kept) -> None:
    page.add(
        "## C3: fused signs against uncompressed buckets and layer-wise signs\n\nThe model of C1. Uncompressed: "
        f"the best of {', '.join(PLAIN)}. Fused: Cupcake with efsign for all groups. From here on medians of "
        f"{4 * ROUNDS} steps."
    )
    with page.table(
        "link", "ranks", "uncompressed ms", "which", "layer-wise ms", "fused ms", "predicted ms", "groups",
        "bound ms", "over uncompressed", "over layer-wise", "which the bound allows",
    ) as row:  # fmt: skip
        for (rate, hosts), (plain_gain, layer_gain) in C3.items():
            plans = (*PLAIN, "efsign:layer-wise", "efsign:cupcake")
            found = kept.job("uniform", small(rate, hosts, plans, rounds=ROUNDS))
            name, fused = fastest(found, PLAIN), found.plans["efsign:cupcake"]
            layer = found.plans["efsign:layer-wise"].step_s
            gains = (found.plans[name].step_s / fused.step_s, layer / fused.step_s)
            row(
                rate, hosts, ms(found.plans[name].step_s), name, ms(layer), ms(fused.step_s),
                ms(fused.predicted_step_s), len(fused.groups), ms(fused.lower_bound_s),
                f"{gains[0]:.2f} ({verdict(gains[0], least=plain_gain)})",
                f"{gains[1]:.2f} ({verdict(gains[1], least=layer_gain)})", f"{layer / fused.lower_bound_s:.2f}",
            )  # fmt: skip


def c4_rows(page: Page, kept: Kept) -> None:
    page.add(
        "## C4: do no harm\n\nThe model of C1, 2 ranks, 1 Gbit/s; Cupcake with the choice among fp16, topk, efsign and "
        f"none, tried in {TRIALS} windows; none is taken unless codecs save {100 * LEAST_GAIN:.0f} % of a step."
    )
    with page.table(
        "best uncompressed",
        "its ms",
        "layer-wise efsign ms",
        "chosen ms",
        "ways",
        "none or fp16",
        "within 3 %",
    ) as row:
        found = kept.job(
            "uniform", small("1gbit", 2, (*PLAIN, "efsign:layer-wise", "cupcake"), LEAST_GAIN, ROUNDS)
        )
        name, own = fastest(found, PLAIN), found.plans["cupcake"]
        over = own.step_s / found.plans[name].step_s - 1
        harmless = {group.codec for group in own.groups} <= {"none", "fp16"}
        row(
            name, ms(found.plans[name].step_s), ms(found.plans["efsign:layer-wise"].step_s), ms(own.step_s),
            ways(own), "holds" if harmless else "FAILS", f"{100 * over:+.1f} %, {verdict(over, most=0.03)}",
        )  # fmt: skip


def models_rows(page: Page, chosen: list[str], hosts: int, kept: Kept) -> None:
    page.add(
        "## Recorded models\n\nGradients as recorded on a V100 (the forward pass is assumed to take half of the "
        f"backward pass; both slept), {hosts} ranks. Scale divides the elements of each gradient. Chosen: "
        "Cupcake with the choice among fp16, topk, efsign and none: the fastest of its plans with all of them and with "
        f"each alone in a trial of {TRIALS} windows, before the windows that are reported. Uncompressed: buckets of "
        "DistributedDataParallel, 25 MiB divided as the gradients are, and the best groups. Compressed layer-wise and "
        "fused: the faster of efsign and topk 1 %, for all groups. The papers' headline gains are due where the bound "
        "of the planner's model allows them: where the measured step without the plan is as many times the bound."
    )
    with page.table(
        "model", "link", "scale", "buckets ms", "uncompressed ms", "layer-wise ms", "fused ms", "chosen ms",
        "predicted ms", "error %", "ways", "groups", "bound ms", "over buckets", "over uncompressed",
        "over layer-wise", "beyond the best %, within 5 %", "at least 0.97 of uncompressed",
    ) as row:  # fmt: skip
        for name, rate, scale in (RECORDED[one] for one in chosen):
            trace = recorded(name, scale)
            job = CupcakeJob(
                trace=trace,
                link=rate,
                hosts=hosts,
                scale=scale,
                plans=(*MODELS, ddp_buckets(scale)),
                trace_steps=7,
                steps=4,
                rounds=ROUNDS,
                trials=TRIALS,
            )
            row(name, rate, scale, *models_cells(kept.job(name, job), ddp_buckets(scale)))


def ddp_buckets(scale: int) -> str:
    """Plan of DistributedDataParallel's buckets, as large a share of the gradients as they are of whole ones."""
    return f"none:bucket:{25 / scale:g}"


def models_cells(found: CompressionRun, buckets: str) -> list[object]:
    own, none, best_none = (found.plans[name] for name in ("cupcake", buckets, "none:cupcake"))
    layer, fused = (
        found.plans[fastest(found, tuple(f"{c}:{m}" for c in CODECS[2:]))].step_s
        for m in ("layer-wise", "cupcake")
    )
    gains = []
    for step_s, least in ((none.step_s, UNCOMPRESSED), (best_none.step_s, UNCOMPRESSED), (layer, LAYER_WISE)):
        due = own.lower_bound_s > 0 and step_s / own.lower_bound_s >= least
        gain = step_s / own.step_s
        gains.append(f"{gain:.2f} ({verdict(gain, least=least) if due else 'bound below'})")
    over = own.step_s / min(plan.step_s for plan in found.plans.values()) - 1
    return [
        *map(ms, (none.step_s, best_none.step_s, layer, fused, own.step_s, own.predicted_step_s)),
        f"{100 * own.error:+.1f}", ways(own), len(own.groups), ms(own.lower_bound_s), *gains,
        f"{100 * over:+.1f}, {verdict(over, most=0.05)}",
        verdict(min(none.step_s, best_none.step_s) / own.step_s, least=0.97),
    ]  # fmt: skip


def bytes_rows(page: Page, kept: Kept) -> None:
    page.add(
        "## C5: bytes\n\nOf a rank in a step, of the plans of all jobs on this page: the payload by the plan, and what "
        "the kernel counted at the interface of a host. Predicted: the payload, "
        f"{MESSAGE_BYTES} bytes for each message (gloo announces each one; packets and what acknowledges them have "
        f"headers), {SHARD_BYTES} where an all-gather follows an all-to-all, whose messages cost less, and "
        f"{100 * PER_BYTE:.0f} % (headers in and acknowledgements of long messages). They were fitted to the plans of "
        "C1. Messages of a group: one to each other rank in an all-gather, two in the other schemes."
    )
    runs = [found for found in kept.runs() if all(p.bytes_sent is not None for p in found.plans.values())]
    plans = [(found.hosts, plan) for found in runs for plan in found.plans.values()]
    shares: dict[str, list[tuple[float, float]]] = {}
    for hosts, plan in plans:
        codec = "+".join(sorted({group.codec for group in plan.groups}))
        over = plan.bytes_sent / plan.payload_bytes - 1
        shares.setdefault(codec, []).append((over, plan.bytes_sent / predicted_bytes(hosts, plan) - 1))
    with page.table(
        "codecs of a plan", "plans", "over the payload %: median, most", "over the predicted %: least, most"
    ) as row:
        for codec, both in sorted(shares.items()):
            payload, predicted = np.array(both).T * 100
            told = f"{np.median(payload):+.1f}, {payload.max():+.1f}"
            row(codec, len(both), told, f"{predicted.min():+.1f}, {predicted.max():+.1f}")
    with page.table("claim", "figure", "threshold") as row:
        worst = max((abs(error) for both in shares.values() for _, error in both), default=None)
        told = "-" if worst is None else f"{100 * worst:.2f} %"
        row("counted bytes against the predicted, worst plan", told, verdict(worst, most=0.05))


def predicted_bytes(hosts: int, plan: PlanRecord) -> float:
    headers = 0
    for group in plan.groups:
        messages = (hosts - 1) * (1 if group.scheme == "all_gather" else 2)
        headers += messages * (SHARD_BYTES if group.scheme == "divisible" else MESSAGE_BYTES)
    return plan.payload_bytes * (1 + PER_BYTE) + headers


def main() -> None:
    options = arguments(__doc__, [*CASES, "c3", "c4", *RECORDED, "bytes"])
    need_lab()
    preset, kept = PRESETS[options.preset], Kept(options.out and options.out.with_suffix(".json"))
    page = Page(
        "Steps under plans of compressed gradients", options.preset, {"Ranks": "one a host of the lab"}
    )
    cases = [case for case in options.only if case in preset["cases"]]
    if cases:
        cases_rows(page, cases, kept)
    if "c3" in options.only and preset["gains"]:
        c3_rows(page, kept)
    if "c4" in options.only and preset["gains"]:
        c4_rows(page, kept)
    if models := [name for name in options.only if name in preset["models"]]:
        models_rows(page, models, preset["hosts"], kept)
    if "bytes" in options.only:
        bytes_rows(page, kept)
    page.add(f"Settings were measured one by one, in {kept.seconds:.0f} s.")
    page.finish(options)


if __name__ == "__main__":
    main()
