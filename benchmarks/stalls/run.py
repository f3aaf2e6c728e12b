"""Claims about `wirewise profile stalls`: injected stalls are found, what-ifs and recommendations come true.

    python benchmarks/stalls/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `s1` and `s1-pairs` (injected stalls, singly and in pairs; with s2, the parts and the total), `s3` (a part
of the items cached), `s4` (stall over reductions and bytes), `s5` (the cheapest of emulated instances).

All on one machine: computing is slept, links and the loopback are shaped, storage has a
fixed rate. Injected
communication is what a ring carries over TCP's share, 0.957, of the shaped rate of a link.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from macro_model import fit_macro

from common import Page, arguments, scratch, verdict
from wirewise import lab
from wirewise.cost.instances import Instance, Prices, choose
from wirewise.trials.stalls import StallJob, measure, run_once, workload
from wirewise.units import parse_rate

HERE = Path(__file__).resolve().parent
ROWS = ("s1", "s1-pairs", "s3", "s4", "s5")
EFFICIENCY = 0.957
BATCH, ITEM_BYTES, LINK, LOOPBACK = 8, 20_000, "100mbit", "400mbit"
LOOPBACK_BURST = 70 * 1024
"""Burst with which the script shapes loopback."""
PARAMETERS, MACRO_LINK = 125_000, "100mbit"
PRESETS = {
    "smoke": {"steps": 10, "warmup": 2, "repeats": 1, "cases": ["prep + network"], "macro_steps": 3},
    "paper": {"steps": 15, "warmup": 2, "repeats": 3, "cases": None, "macro_steps": 8},
}
CASES = {
    "prep": {"prep": 0.03},
    "fetch": {"fetch": 0.04},
    "interconnect": {"interconnect": LOOPBACK},
    "network": {"network": LINK},
    "prep + fetch": {"prep": 0.05, "fetch": 0.02},
    "prep + network": {"prep": 0.06, "network": LINK},
    "fetch + network": {"fetch": 0.03, "network": LINK},
    "interconnect + network": {"interconnect": LOOPBACK, "network": LINK},
}
"""Seconds of a batch, or rates."""


def job(words, preset, ranks=2, **options):
    command = ["torchrun", f"--nproc-per-node={ranks}", str(HERE / "train.py"), *map(str, words)]
    return StallJob(
        command=command,
        **{
            "steps": preset["steps"],
            "warmup": preset["warmup"],
            "repeats": preset["repeats"],
            "launcher": "direct",
            "in_lab": True,
            "cached_items": 128,
            **options,
        },
    )


def injected(case):
    """Script arguments, options of the job, and the true seconds of each part."""
    words, truth = [], dict.fromkeys(("prep", "fetch", "interconnect", "network"), 0.0)
    if prep := case.get("prep"):
        words, truth["prep"] = [*words, "--prep-s", prep / BATCH], prep
    if fetch := case.get("fetch"):
        words, truth["fetch"] = [*words, "--storage-rate", BATCH * ITEM_BYTES / fetch], fetch
    size = 4 * PARAMETERS
    if "interconnect" in case or "network" in case:
        words += ["--parameters", PARAMETERS]
    if loopback := case.get("interconnect"):
        words += ["--loopback", loopback]
        # Both ranks send all over the one loopback, in frames of 64 KiB whose headers are nothing; what the
        # bucket holds after a pause passes at once.
        truth["interconnect"] = (2 * size - LOOPBACK_BURST) / parse_rate(loopback)
    if link := case.get("network"):
        truth["network"] = size / (parse_rate(link) * EFFICIENCY) - truth["interconnect"]
    return words, {"hosts": 2, "link": case["network"]} if "network" in case else {}, truth


def s1(page, preset, pairs=False):
    page.add(
        f"## {'s1-pairs' if pairs else 's1'}, s2: injected stalls\n\n"
        "Two ranks, computing 90 ms a step, a loader without workers. Parts in ms: injected, "
        "measured with its 95 % interval. A part may miss by 10 % of itself or 3 % of the step; the "
        "parts may miss the whole by 3 %."
    )
    titles = (
        "case",
        "step ms",
        "part",
        "injected",
        "measured",
        "95 % interval",
        "error / allowed",
        "threshold",
    )
    with page.table(*titles) as row:
        for name in preset["cases"] or [name for name in CASES if ("+" in name) == pairs]:
            words, options, truth = injected(CASES[name])
            words += ["--compute-s", 0.09]
            found = measure(job(words, preset, **options))
            total = found.total_s.mean_s
            for part, true in truth.items():
                amount = getattr(found, f"{part}_s")
                allowed = max(0.1 * true, 0.03 * total)
                error = abs(amount.mean_s - true) / allowed
                row(
                    name,
                    f"{total * 1e3:.1f}",
                    part,
                    *shown(true, amount),
                    f"{error:.2f}",
                    verdict(error, most=1),
                )
            share = abs(found.residual_s.mean_s) / total
            limit = verdict(share, most=0.03)
            row(
                name,
                f"{total * 1e3:.1f}",
                "residual",
                *shown(0.0, found.residual_s),
                f"{share:.3f} of step",
                limit,
            )


def s1_pairs(page, preset):
    s1(page, preset, pairs=True)


def shown(true, amount):
    low, high = (1e3 * end for end in amount.ci95_s)
    return f"{1e3 * true:.1f}", f"{1e3 * amount.mean_s:.1f}", f"{low:.1f} to {high:.1f}"


def s3(page, preset):
    page.add(
        "## s3: a part of the items cached\n\nTwo ranks on loopback, batches of 8 items that take 5 ms to fetch and "
        "2.5 ms to prepare. Predicted from the runs with nothing and with everything cached; 0 and 100 % are "
        "measured again. All passes over the data are whole, so that the hit rate must be the cached fraction."
    )
    items, epochs = 160, 6
    timing = {"steps": 10 * epochs - 6, "warmup": 5, "repeats": 2}
    fractions = (0.0, 0.25, 0.5, 0.75, 1.0)
    errors = {"ours": [], "published": []}
    titles = ("workers", "cached", "hit rate", "measured ms", "ours ms", "error", "DS-Analyzer ms", "error")
    with page.table(*titles, "threshold") as row:
        for workers in (0, 1):
            words = ["--items", items, "--prep-s", 0.0025, "--storage-rate", ITEM_BYTES / 0.005]
            words += ["--workers", workers]
            found = measure(
                job(words, preset, fractions=fractions, in_lab=False, cached_items=items, **timing)
            )
            for x in fractions:
                measured = np.mean(found.runs_s[f"partial {x:g}"])
                ours, published = found.data.predicted_step_s(x), found.data.published_step_s(x)
                error = abs(ours / measured - 1)
                errors["ours"].append(error)
                errors["published"].append(abs(published / measured - 1))
                hits = found.hit_rates[f"partial {x:g}"]
                row(
                    workers,
                    f"{x:.0%}",
                    f"{hits:.4f}",
                    f"{measured * 1e3:.1f}",
                    f"{ours * 1e3:.1f}",
                    f"{error:.1%}",
                    f"{published * 1e3:.1f}",
                    f"{errors['published'][-1]:.1%}",
                    verdict(error, most=0.08) + "; hits " + verdict(abs(hits - x), most=1e-9),
                )
    with page.table("formula", "mean error", "threshold") as row:
        for name, values in errors.items():
            limit = verdict(float(np.mean(values)), most=0.05) if name == "ours" else "none: shown"
            row(name, f"{np.mean(values):.1%}", limit)


def s4(page, preset):
    page.add(
        "## s4: stall over reductions L and bytes G\n\nTwo hosts at 100 Mbit/s, no computing to hide behind, "
        "reductions one after another as on a stream of NCCL. The model is fitted to every other of 4 x 4 points "
        "and judged on the rest."
    )
    sizes = (200_000, 400_000, 800_000, 1_600_000)
    points = {
        "per tensor": [(tensors, tensors, size) for size in sizes for tensors in (4, 16, 48, 96)],
        "96 tensors, bucketed": [(96, buckets, size) for size in sizes for buckets in (1, 4, 12, 32)],
    }
    with scratch() as folder, lab.Lab(2, MACRO_LINK) as network:
        command = [str(HERE / "macro.py"), str(folder / "out.json"), str(preset["macro_steps"])]
        result = network.run([*command, json.dumps(points)], launcher="direct")
        if not result.ok:
            raise SystemExit("\n".join(line for tail in result.tails for line in tail))
        rows = json.loads((folder / "out.json").read_text())
    titles = ("reductions", "points", "c0 ms", "alpha ms", "beta ns/B", "beta by the link", "fit", "held out")
    with page.table(*titles, "threshold", "signs") as row:
        for name, found in rows.items():
            measured = [(count, size, stall) for count, stall, size in found]
            # Checkerboard: both halves hold every number of tensors and every size.
            odd = [(k // 4 + k % 4) % 2 == 1 for k in range(len(measured))]
            fitted = [m for m, held in zip(measured, odd, strict=True) if not held]
            model = fit_macro(fitted)
            errors = [
                abs(model.seconds(count, size) / stall - 1)
                for (count, size, stall), held in zip(measured, odd, strict=True)
                if held
            ]
            least = min(model.s_per_reduction, model.s_per_byte)
            row(
                f"{name}, L {min(m[0] for m in measured)} to {max(m[0] for m in measured)}",
                len(measured),
                f"{model.fixed_s * 1e3:.2f}",
                f"{model.s_per_reduction * 1e3:.3f}",
                f"{model.s_per_byte * 1e9:.1f}",
                f"{1e9 / (parse_rate(MACRO_LINK) * EFFICIENCY):.1f}",
                f"{model.mape:.1%}",
                f"{np.mean(errors):.1%}",
                verdict(float(np.mean(errors)), most=0.1),
                "alpha, beta > 0: " + ("holds" if least > 0 else "FAILS"),
            )


INSTANCES = [
    Instance(name="one", price_per_hour=3.0, accelerators=1, link="100mbit", counts=[1, 2, 4]),
    Instance(name="slow-link", price_per_hour=2.4, accelerators=1, link="50mbit", counts=[2, 4]),
    Instance(name="fast-link", price_per_hour=3.9, accelerators=1, link="400mbit", counts=[2, 4]),
]


def s5(page, preset):
    page.add(
        "## s5: the cheapest machines within a budget\n\nEmulated instances: their links are shaped, their prices "
        "are made up. All times are predicted from one measurement on two hosts at 200 Mbit/s; then every choice "
        "is measured. The job is 100,000 samples."
    )
    words = ["--parameters", PARAMETERS, "--prep-s", 0.001]
    stalls = measure(job(words, preset, hosts=2, link="200mbit", repeats=1))
    load, prices = workload(stalls, 100_000), Prices(date="2026-11-21", instance=INSTANCES)
    measured = {}
    with page.table(
        "machines", "predicted ms", "measured ms", "error", "predicted cost", "measured cost"
    ) as row:
        for choice in choose(prices, load):
            kind = next(i for i in INSTANCES if i.name == choice.instance)
            step = measured_step_s(words, preset, kind, choice.count)
            time = choice.time_s * step / choice.step_s
            measured[choice.instance, choice.count] = (time, time / 3600 * kind.price_per_hour * choice.count)
            error = abs(choice.step_s / step - 1)
            row(
                f"{choice.count} x {choice.instance}",
                f"{choice.step_s * 1e3:.1f}",
                f"{step * 1e3:.1f}",
                f"{error:.1%}",
                f"{choice.cost:.3f}",
                f"{measured[choice.instance, choice.count][1]:.3f}",
            )
    times = sorted(time for time, _ in measured.values())
    with page.table("budget min", "recommended", "measured cheapest", "cost over it", "threshold") as row:
        for budget in (times[-1] * 1.1, (times[1] + times[2]) / 2, (times[3] + times[4]) / 2):
            pick = choose(prices, load, budget)[0]
            within = {key: cost for key, (time, cost) in measured.items() if time <= budget}
            best = min(within, key=within.__getitem__)
            over = within.get((pick.instance, pick.count), np.inf) / within[best] - 1
            names = [f"{pick.count} x {pick.instance}", f"{best[1]} x {best[0]}"]
            row(f"{budget / 60:.1f}", *names, f"{over:.1%}", verdict(over, most=0.03))


def measured_step_s(words, preset, instance, count):
    options = {"hosts": count, "link": instance.link} if count > 1 else {}
    ranks = instance.accelerators * count
    return float(run_once(job(words, preset, ranks=ranks, **options)).step_s.mean())


def main():
    options = arguments(__doc__, ROWS)
    preset = PRESETS[options.preset]
    facts = {"Steps": f"{preset['steps']} after {preset['warmup']}, {preset['repeats']} repeats"}
    page = Page("Stalls of training steps", options.preset, facts)
    for name in options.only:
        globals()[name.replace("-", "_")](page, preset)
    page.finish(options)


if __name__ == "__main__":
    main()
