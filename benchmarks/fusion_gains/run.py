"""Claims about plans of data-parallel training, measured: time gained by buckets, time and memory under the passes.

    python benchmarks/fusion_gains/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `RATE-RANKS` such as `200mbit-4` (O1), `passes` (O4). With --out each measured setting is kept beside the page in
FILE.json and not measured again, so that a long run can be made in pieces; remove that file to start anew. All need a
lab; where none can be built the script says so.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from common import KeptFigures, Page, arguments, need_lab, scratch, spread, verdict
from wirewise import lab
from wirewise.cost.intervals import gain_of

WORKER = str(Path(__file__).parent / "worker.py")
O1_OPTIMUM, O1_GAIN, O1_PREDICTED = 0.02, 0.10, 0.12
O4_TIME, O4_MEMORY = 0.05, 0.06
CASES = {f"{rate}-{hosts}": (rate, hosts) for hosts in (2, 4) for rate in ("50mbit", "200mbit", "400mbit")}
MODELS = ("mlp", "cnn", "transformer", "many tensors")
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "cases": ["200mbit-2"],
        "models": ["mlp", "many tensors"],
        "gains": {"steps": 8, "pairs": 4, "window": 3},
        "passes": {"steps": 8, "rounds": 2, "window": 3},
        "stacks": ["mlp blocks"],
    },
    "paper": {
        "cases": list(CASES),
        "models": MODELS,
        "gains": {"steps": 12, "pairs": 6, "window": 3},
        "passes": {"steps": 16, "rounds": 4, "window": 4},
        "stacks": ["mlp blocks", "transformer blocks"],
    },
}


class Kept:
    """Results of jobs, also in a file."""

    def __init__(self, path: Path | None) -> None:
        self._found = KeptFigures(path)

    def job(self, rate: str, hosts: int, **job: Any) -> dict[str, Any]:
        """What rank 0 found, and the seconds that the job took."""
        key = msgspec.json.encode([rate, hosts, job]).decode()
        if key not in self._found:
            begin = time.perf_counter()
            self._found[key] = {"found": run(rate, hosts, job), "seconds": time.perf_counter() - begin}
        return self._found[key]


def run(rate: str, hosts: int, job: dict[str, Any]) -> Any:
    """A rank on each host of a lab."""
    with scratch() as folder, lab.Lab(hosts, rate) as network:
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        done = network.run([WORKER, str(folder)], launcher="direct", timeout_s=600)
        if not done.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in done.tails for line in tail)]))
        return msgspec.json.decode((folder / "result.json").read_bytes())


def gains_rows(page: Page, preset: dict, cases: list[str], kept: Kept) -> None:
    page.add(
        "## O1: plan against stock DistributedDataParallel, measured\n\nVirtual accelerators (compute is slept: "
        "emulated), real DistributedDataParallel (default caps), gloo and shaped links of a lab; one rank a host. In "
        "one job: stock DistributedDataParallel is traced, `planners.fusion.from_trace` and `dpro` make the plan, and "
        "both run in turn in windows ABBA, the plan by `runtime.data_parallel.parallel`. `wire`: one all-reduce of all "
        "gradients, `fixed`: of none, as fitted. Gain: what the step gets shorter, with the 95 % interval over pairs "
        "of windows. `over best`: simulated step of the plan over that of the best of so many other bucketings (all "
        "that there are up to 12 gradients, else 100 caps and 100 random ones), less 1. `Tuner`: what the closed loop "
        "does with the plan in a job under the buckets of stock DistributedDataParallel; `bad`: with a bucket "
        "for each of 180 tensors of 4 kB. Halo exchanges are no part of the model of the planner, "
        "so the graph network is left out."
    )
    seconds, rows = [], []
    with page.table(
        "link", "ranks", "model", "compute ms", "wire ms", "fixed ms", "buckets: ddp, plan (chunks)", "ddp ms",
        "plan ms", "measured gain %", "predicted gain %", "replay of ddp, error %", "replay of plan, error %",
        "over best % (of)", "within 2 % of best", "gain >= 10 % where 12 % predicted", "Tuner", "bad",
    ) as row:  # fmt: skip
        for case in cases:
            rate, hosts = CASES[case]
            for model in preset["models"]:
                done = kept.job(rate, hosts, kind="gains", model=model, **preset["gains"])
                seconds.append(done["seconds"])
                row(rate, hosts, model, *gains_cells(done["found"], rows))
    gains_claims(page, rows)
    page.add(f"Measuring took {sum(seconds):.0f} s.")


def gains_cells(found: dict[str, Any], rows: list) -> list[str]:
    ddp, plan = np.array(found["ddp_s"]), np.array(found["plan_s"])
    gain, interval = gain_of(ddp - plan)
    gain, low, high = (s / ddp.mean() for s in (gain, *interval))
    predicted = 1.0 - found["predicted_s"] / found["baseline_s"]
    over = found["predicted_s"] / found["best_s"] - 1.0
    rows.append((predicted, gain, low, over, found))
    due = predicted >= O1_PREDICTED
    return [
        *(f"{1e3 * found[name]:.1f}" for name in ("compute_s", "wire_s")),
        f"{1e3 * found['fixed_s']:.2f}",
        f"{found['recorded']}, {found['buckets'][0]} ({found['buckets'][1]})",
        spread(ddp, 1e3),
        spread(plan, 1e3),
        f"{100 * gain:.1f} ({100 * low:.1f} to {100 * high:.1f})",
        f"{100 * predicted:.1f}",
        f"{100 * (found['baseline_s'] / ddp.mean() - 1):+.1f}",
        f"{100 * (found['predicted_s'] / plan.mean() - 1):+.1f}",
        f"{100 * over:+.2f} ({found['tried']})",
        verdict(over, most=O1_OPTIMUM),
        verdict(gain, least=O1_GAIN) if due else "-",
        _decided(found["tuned"]),
        _decided(found["bad"]) if "bad" in found else "-",
    ]


def _decided(trial: dict[str, Any]) -> str:
    low, high = trial["ci95"]
    gain = f"{100 * trial['gain']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    return f"{'kept' if trial['kept'] else 'rolled back'}, {gain}"


def gains_claims(page: Page, rows: list) -> None:
    due = [gain for predicted, gain, *_ in rows if predicted >= O1_PREDICTED]
    rest = [low for predicted, _, low, *_ in rows if predicted < O1_PREDICTED]
    apart = [abs(predicted - gain) for predicted, gain, *_ in rows]
    bad = [found["bad"]["kept"] for *_, found in rows if "bad" in found]
    with page.table("claim", "figure", "threshold") as row:
        row("settings", len(rows), "")
        worst = max(over for *_, over, _ in rows)
        row("simulated step over the best, worst", f"{100 * worst:+.2f} %", verdict(worst, most=O1_OPTIMUM))
        row("settings with a predicted gain of 12 % or more", len(due), "")
        if due:
            row("their least measured gain", f"{100 * min(due):.1f} %", verdict(min(due), least=O1_GAIN))
        row("measured against predicted gain, mean apart", f"{100 * np.mean(apart):.1f} points", "")
        if rest:
            row("lower ends of the gains of the others, least", f"{100 * min(rest):.1f} %", "")
        row("plans that the tuner kept", f"{sum(f['tuned']['kept'] for *_, f in rows)} of {len(rows)}", "")
        if bad:
            row("bad plans that it kept", f"{sum(bad)} of {len(bad)}", verdict(sum(bad), most=0))


def passes_rows(page: Page, preset: dict, kept: Kept) -> None:
    page.add(
        "## O4: recomputation, accumulation and bfloat16, predicted and measured\n\nTwo ranks, 200 Mbit/s. Blocks "
        "with real tensors and real arithmetic on the CPU; most of their time is slept (emulated): 30 % of it "
        "whatever the batch, and half of it under bfloat16. Predicted from three traces under stock "
        "DistributedDataParallel (whole batch, a quarter of it, bfloat16) and from `profile.memory_sizes`. Measured: "
        "step time in windows in turn; memory is the peak of all live tensor storages in a step, counted exactly at "
        "every op - not resident memory: parameters, Adam, buckets, activations and temporaries. `activations`: the "
        "same less what is there all the time, on both sides."
    )
    worst = {"time": 0.0, "memory": 0.0}
    with page.table(
        "model", "decision", "modules again", "predicted ms", "measured ms", "time, error %", "predicted MB",
        "measured MB", "memory, error %", "activations, error %", "time", "memory",
    ) as row:  # fmt: skip
        for model in preset["stacks"]:
            done = kept.job("200mbit", 2, kind="passes", model=model, **preset["passes"])
            for one in done["found"]:
                row(model, one["name"], one["again"], *passes_cells(one, worst))
    with page.table("claim", "figure", "threshold") as row:
        row("largest error of a step", f"{100 * worst['time']:.1f} %", verdict(worst["time"], most=O4_TIME))
        row(
            "largest error of a peak",
            f"{100 * worst['memory']:.1f} %",
            verdict(worst["memory"], most=O4_MEMORY),
        )


def passes_cells(one: dict[str, Any], worst: dict[str, float]) -> list[str]:
    time_error = one["predicted_s"] / np.mean(one["measured_s"]) - 1.0
    memory_error = one["predicted_bytes"] / one["measured_bytes"] - 1.0
    always = one["always_bytes"]
    activations = (one["predicted_bytes"] - always) / (one["measured_bytes"] - always) - 1.0
    worst["time"] = max(worst["time"], abs(time_error))
    worst["memory"] = max(worst["memory"], abs(memory_error))
    return [
        f"{1e3 * one['predicted_s']:.1f}",
        spread(one["measured_s"], 1e3),
        f"{100 * time_error:+.1f}",
        f"{1e-6 * one['predicted_bytes']:.2f}",
        f"{1e-6 * one['measured_bytes']:.2f}",
        f"{100 * memory_error:+.1f}",
        f"{100 * activations:+.1f}",
        verdict(abs(time_error), most=O4_TIME),
        verdict(abs(memory_error), most=O4_MEMORY),
    ]


def main() -> None:
    options = arguments(__doc__, [*CASES, "passes"])
    need_lab()
    preset, kept = PRESETS[options.preset], Kept(options.out and options.out.with_suffix(".json"))
    page = Page(
        "Plans of data-parallel training, measured", options.preset, {"Ranks": "one a host of the lab"}
    )
    cases = [case for case in options.only if case in preset["cases"]]
    if cases:
        gains_rows(page, preset, cases, kept)
    if "passes" in options.only:
        passes_rows(page, preset, kept)
    page.finish(options)


if __name__ == "__main__":
    main()
