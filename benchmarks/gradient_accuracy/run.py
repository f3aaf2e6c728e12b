"""Claims about what training reaches when gradients are compressed: small models, real data, two ranks.

The ranks take turns in one process; their gradients are coded, added up and decoded by the codecs as on the wire. Runs
are shared out to a process for each processor.

    python benchmarks/gradient_accuracy/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `mlp`, `cnn`, `transformer`; `TASKS` says what each learns. With --out each run is kept beside the page in
FILE.json and not made again; remove that file to start anew. Time is not measured.
"""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from common import KeptFigures, Page, arguments, scratch, verdict

WORKER = str(Path(__file__).parent / "worker.py")
RANKS = 2
WORKERS = os.cpu_count() or 1
TOGETHER = 16
"""Runs until what came of them is kept."""
D1_LOSS, D2_ACCURACY, D2_GAP, D3_LOSS = 0.02, 0.015, 0.6, 0.03
CASTS = {"fp16": {}, "bf16": {}}
LOSSY = {"efsign": {}, "topk": {}, "dgc": {}, "powersgd": {"rank": 4}}
DGCS = {
    "dgc, masked": {"codec": "dgc", "options": {"masking": True}},
    "dgc, residual alone": {"codec": "dgc", "options": {}, "alone": True},
}
TASKS = {
    "mlp": "A perceptron tells the section of a Debian package from the words of its description.",
    "cnn": "Convolutions tell which module of the standard library 32 bytes are from.",
    "transformer": "A transformer of two layers tells the section of a Debian package from the words of its "
    "description, read as a set of eight.",
}
STEPS = {"mlp": 6000, "cnn": 6000, "transformer": 5000}
RATES = {"mlp": 0.1, "cnn": 0.05, "transformer": 0.025}
# Convolutions of three seeds differ by more than a codec may lose.
PRESETS = {
    "smoke": {"seeds": {"mlp": 1}, "share": 0.005},
    "paper": {"seeds": {"mlp": 3, "cnn": 9, "transformer": 3}, "share": 1.0},
}


class Kept:
    """Results of runs, also in a file."""

    def __init__(self, path):
        self._found = KeptFigures(path)

    def all(self, jobs):
        """Loss and accuracy of each job; those that are not known are run together."""
        keys = [msgspec.json.encode(job).decode() for job in jobs]
        new = [(key, job) for key, job in zip(keys, jobs, strict=True) if key not in self._found]
        for start in range(0, len(new), TOGETHER):
            some = new[start : start + TOGETHER]
            for (key, _), found in zip(some, carry_out([job for _, job in some]), strict=True):
                self._found[key] = found
        return [self._found[key] for key in keys]


def carry_out(jobs):
    with scratch() as folder:
        (folder / "jobs.json").write_bytes(msgspec.json.encode(jobs))
        words = [sys.executable, WORKER, str(folder)]
        workers = [subprocess.Popen([*words, str(i), str(WORKERS)]) for i in range(WORKERS)]
        try:
            failed = [worker for worker in workers if worker.wait()]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        if failed:
            raise SystemExit("a worker failed; what it said stands above")
        return [msgspec.json.decode((folder / f"found-{i}.json").read_bytes()) for i in range(len(jobs))]


def wishes(model):
    """Name of each way to train, and its knobs."""
    found = {"none": {"codec": "none"}}
    found |= {name: {"codec": name, "options": options} for name, options in {**CASTS, **LOSSY}.items()}
    found |= DGCS
    found |= {
        f"{name}, no feedback": {"codec": name, "options": options, "feedback": False}
        for name, options in LOSSY.items()
    }
    # Unbiased, and with errors beyond what they code: fed back, these would grow.
    for name, options in (("qsgd", {"levels": 4}), ("terngrad", {})):
        for groups, told in ((1, "one group"), (0, "a group for each tensor")):
            knobs = {"codec": name, "options": options, "feedback": False, "block": 512, "groups": groups}
            found[f"{name}, {told}"] = knobs
    return found


def model_row(page, preset, kept, model):
    steps, rate = max(int(STEPS[model] * preset["share"]), 10), RATES[model]
    seeds = range(preset["seeds"][model])
    jobs = [
        {"model": model, "seed": seed, "steps": steps, "rate": rate, **knobs}
        for knobs in wishes(model).values()
        for seed in seeds
    ]
    found = np.array([[one["loss"], one["accuracy"]] for one in kept.all(jobs)])
    by_name = dict(zip(wishes(model), found.reshape(-1, len(seeds), 2), strict=True))
    page.add(
        f"## {model}\n\n{TASKS[model]} {steps} steps of SGD with momentum 0.9, rate {rate} after a linear warm-up and "
        "falling to 0, the same for all; DGC with both its memories has the momentum in the codec, and sends 25, 6.25 "
        "and 1.6 % in the thirds of the first fifth of the steps, as in its paper; masked, it sets the momentum of "
        f"what was sent to 0, as there. {RANKS} ranks, {len(seeds)} seeds: mean of the seeds, and the largest less the "
        "smallest. Loss: mean training loss of the last 100 steps. Accuracy: on data that was not trained on; what is "
        "lost of it with the standard error of the pairs of one seed."
    )
    with page.table("codec", "loss", "spread", "accuracy %", "spread") as row:
        for name, values in by_name.items():
            loss, accuracy = values.mean(axis=0)
            spreads = np.ptp(values, axis=0)
            row(name, f"{loss:.4f}", f"{spreads[0]:.4f}", f"{100 * accuracy:.2f}", f"{100 * spreads[1]:.2f}")
    claims(page, by_name)


def claims(page, by_name):
    """Verdicts on the loss and accuracy of each seed, [seeds, 2] of each way to train."""
    means = {name: values.mean(axis=0) for name, values in by_name.items()}
    loss = means["none"][0]
    with page.table("claim", "figure", "threshold") as row:
        for name in CASTS:
            off = means[name][0] / loss - 1
            row(f"D1 {name}: loss over that without codec", f"{off:+.4f}", verdict(abs(off), most=D1_LOSS))
        for name in (*LOSSY, *DGCS):
            pairs = by_name["none"][:, 1] - by_name[name][:, 1]
            lost, error = pairs.mean(), ""
            if len(pairs) > 1:
                error = f" +- {100 * pairs.std(ddof=1) / len(pairs) ** 0.5:.2f}"
            told = f"{100 * lost:.2f}{error} points"
            row(f"D2 {name}: accuracy lost", told, verdict(lost, most=D2_ACCURACY))
            gaps = [means[key][0] - loss for key in (name, f"{name.partition(',')[0]}, no feedback")]
            told = f"{gaps[0]:.4f} against {gaps[1]:.4f}"
            # Where nothing is lost without feedback there is nothing for it to mend.
            small = gaps[1] <= D3_LOSS * loss
            row(
                f"D2 {name}: loss gap with and without feedback", told,
                "none: no gap" if small else verdict(gaps[0] / gaps[1], most=D2_GAP),
            )  # fmt: skip
        for name in ("qsgd", "terngrad"):
            off = means[f"{name}, one group"][0] / means[f"{name}, a group for each tensor"][0] - 1
            row(
                f"D3 {name}: loss of one group over groups of one tensor",
                f"{off:+.4f}",
                verdict(off, most=D3_LOSS),
            )


ROWS = list(STEPS)


def main():
    options = arguments(__doc__, ROWS)
    preset = PRESETS[options.preset]
    facts = {"Ranks": f"{RANKS}, which take turns", "Feedback": "whatever the codec remembers"}
    page = Page("What compressed training reaches", options.preset, facts)
    kept = Kept(options.out.with_suffix(".json") if options.out else None)
    for model in options.only:
        if model in preset["seeds"]:
            model_row(page, preset, kept, model)
    page.finish(options)


if __name__ == "__main__":
    main()
