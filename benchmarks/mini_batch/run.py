"""Claims about mini-batch training over partitioned features (SALIENT++): machines are hosts of a lab on shaped links.

    python benchmarks/mini_batch/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `modes` (the claim; N1, N4, N5, and the cache of N2), `even` (N2: the pipeline where link and processors take
equally long), `alphas` (N3), `slower` (the claim on slower links), `accuracy` (N4, D6). With --out each run is kept
beside the page in FILE.json and not made again; remove that file to start anew.

The model beside each epoch: `link` is what the busiest machine's bytes take at the link's rate, with headers;
`processors` what all machines computed, over the processors that they share here. In a pipeline an epoch takes the
longer of both, and otherwise their sum.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from common import Page, arguments, scratch, verdict
from wirewise import lab
from wirewise.codec.layout import row_bytes
from wirewise.files import atomic_file
from wirewise.recipes.salientpp import Job, run
from wirewise.results import MiniBatchRun

SMALL = "block:nodes=1500,classes=4,features=64,noise=1.0,train=0.3"
PRESETS = {
    "smoke": {
        "job": {"dataset": SMALL, "workers": 2, "fanouts": (6, 4), "batch_size": 32, "epochs": 2, "hidden": 16},
        "train_share": 1.0, "tested": 100, "alphas": (0.1, 0.5), "slower": ("50mbit",), "even": "900mbit",
        "modes": {}, "accuracy": {"epochs": 3, "seeds": (0,), "tested": 300, "train_share": 1.0},
    },
    "paper": {
        "job": {"dataset": "debian", "workers": 4, "epochs": 4}, "train_share": 0.05, "tested": 64,
        "alphas": (0.05, 0.1, 0.2, 0.5, 1.0), "slower": ("50mbit", "25mbit"), "even": "900mbit",
        "modes": {"train_share": 0.13, "epochs": 3},
        "accuracy": {"epochs": 15, "seeds": (0,), "tested": 8_000, "train_share": 0.08},
    },
}  # fmt: skip
LINK = "100mbit"
MODES = ("base", "pipeline", "cache", "bf16", "int8", "gradients")
SPEED, CACHE_GAIN, PIPELINE_GAIN, UTILISATION, BYTES, POINTS, MONOTONE = 7.1, 2.8, 1.5, 0.9, 0.56, 0.3, 0.03
CODECS = ("int8, gradients by powersgd", "int8, gradients by bf16")
PREDICTED = (0.95, 1.25)


class Kept:
    """Results of runs, also in a file."""

    def __init__(self, path: Path | None, preset: dict) -> None:
        self._path, self._preset = path, preset
        self._found = msgspec.json.decode(path.read_bytes()) if path and path.exists() else {}

    def run(self, **knobs: object) -> MiniBatchRun:
        """Carry out a job, unless it has been."""
        preset = self._preset
        settings = {
            **preset["job"],
            "train_share": preset["train_share"],
            "tested": preset["tested"],
            **knobs,
        }
        job = Job(**{"link": LINK, **settings})
        key = msgspec.json.encode(job).decode()
        if key not in self._found:
            with scratch() as folder:
                found = run(job, folder, lambda text: print(text, file=sys.stderr, flush=True))
            self._found[key] = msgspec.to_builtins(found)
            if self._path is not None:
                with atomic_file(self._path) as file:
                    file.write(msgspec.json.encode(self._found))
        return msgspec.convert(self._found[key], MiniBatchRun)


TITLES = (
    "mode", "epoch s, median", "least s", "speed", "link s", "processors s", "model s", "measured / model",
    "rows an epoch", "sent", "gradients", "hits", "longest stage",
)  # fmt: skip


def cells(name, one):
    stage = max((s for s in one.stage_s if s != "train" or not one.pipelined), key=lambda s: one.stage_s[s])
    return (
        name, f"{one.epoch_s:.2f}", f"{min(one.epochs_s):.2f}", f"{one.speedup:.2f}", f"{one.link_s:.2f}",
        f"{one.cpu_s:.2f}", f"{one.predicted_s:.2f}", f"{one.epoch_s / one.predicted_s:.2f}",
        one.remote_rows, f"{one.bytes_sent / 1e6:.1f} MB", f"{one.gradient_bytes / 1e6:.1f} MB",
        f"{one.hit_rate:.0%}", stage,
    )  # fmt: skip


def steady(found):
    """The first epoch, in which kernels load and connections open, left out."""
    records = {
        name: msgspec.structs.replace(
            one, epochs_s=one.epochs_s[1:], epoch_s=float(np.median(one.epochs_s[1:]))
        )
        for name, one in found.modes.items()
    }
    first = next(iter(records.values()))
    return {
        name: msgspec.structs.replace(one, speedup=first.epoch_s / one.epoch_s)
        for name, one in records.items()
    }


def limits(one, base):
    """What the model allows over the base mode."""
    return base.predicted_s / one.predicted_s


def shown(page, found):
    records = steady(found)
    with page.table(*TITLES) as row:
        for name, one in records.items():
            row(*cells(name, one))
    return records


def described(found):
    return (
        f"{found.dataset}, {found.workers} machines at {found.link}, alpha {found.alpha:g}, policy {found.policy}; "
        f"{found.batches} batches an epoch. The plan expects {found.predicted_remaining:.3f} of the remote rows to be "
        "left."
    )


def modes_row(page, preset, kept):
    found = kept.run(modes=MODES, **preset["modes"])
    page.add(
        f"## Modes at {LINK}\n\n{described(found)} Each mode adds to the one before (bf16 stands beside it): base "
        "fetches float32 rows when they are asked for; pipeline makes batches ahead; cache keeps rows by the plan; "
        f"int8 quantizes fetched rows; gradients sends those by {found.codec}. Epochs after the first."
    )
    records = shown(page, found)
    base = records["base"]
    with page.table("claim", "figure", "the model allows", "threshold") as row:
        for name in ("int8", "gradients"):
            one, most = records[name], limits(records[name], base)
            row(
                f"{name} over base, epoch time", f"{one.speedup:.2f}x", f"{most:.2f}x",
                verdict(one.speedup, least=min(SPEED, most * 0.9)),
            )  # fmt: skip
        for name, one in records.items():
            ratio = one.epoch_s / one.predicted_s
            bound = (
                verdict(ratio, least=PREDICTED[0], most=PREDICTED[1])
                if one.link_s >= 2 * one.cpu_s
                else "none"
            )
            row(f"N1 {name}: measured / model", f"{ratio:.2f}", "1", bound)
        gain = records["pipeline"].epoch_s / records["cache"].epoch_s
        most = limits(records["cache"], records["pipeline"])
        row(
            f"N2 cache over pipeline, alpha {found.alpha:g}",
            f"{gain:.2f}x",
            f"{most:.2f}x",
            verdict(gain, least=CACHE_GAIN),
        )
        width = (records["int8"].bytes_sent, records["bf16"].bytes_sent)
        row(
            "N4 bytes of int8 over bf16",
            f"{width[0] / width[1]:.3f}",
            "",
            verdict(width[0] / width[1], most=BYTES),
        )
        for name in ("pipeline", "cache"):
            busy = records[name].link_s / records[name].epoch_s
            row(f"N5 {name}: link in use", f"{busy:.1%}", "100 %", verdict(busy, least=UTILISATION))
        for name, one in records.items():
            error = one.bytes_sent / one.bytes_predicted - 1
            row(f"{name}: bytes sent against the plan's", f"{error:+.1%}", "", "none")


def even_row(page, preset, kept):
    found = kept.run(modes=("base", "pipeline"), link=preset["even"])
    page.add(f"## Pipeline where link and processors take equally long (N2)\n\n{described(found)}")
    records = shown(page, found)
    gain, most = records["pipeline"].speedup, limits(records["pipeline"], records["base"])
    with page.table("claim", "figure", "the model allows", "threshold") as row:
        row("pipeline over base", f"{gain:.2f}x", f"{most:.2f}x", verdict(gain, least=PIPELINE_GAIN))


def alphas_row(page, preset, kept):
    page.add(f"## Speed by alpha (N3)\n\nFloat32 rows in a pipeline at {LINK}.")
    before, worst = None, 0.0
    with page.table("alpha", "left by the plan", *TITLES[1:]) as row:
        for alpha in preset["alphas"]:
            found = kept.run(modes=("cache",), alpha=alpha)
            one = steady(found)["cache"]
            row(f"{alpha:g}", f"{found.predicted_remaining:.3f}", *cells("cache", one)[1:])
            worst = max(worst, one.epoch_s / before - 1 if before else 0.0)
            before = min(before or one.epoch_s, one.epoch_s)
    with page.table("claim", "figure", "threshold") as row:
        row("largest loss of a larger alpha", f"{worst:.1%}", verdict(worst, most=MONOTONE))


def slower_row(page, preset, kept):
    for link in preset["slower"]:
        found = kept.run(modes=("base", "int8", "gradients"), link=link, epochs=3)
        page.add(f"## The claim at {link}\n\n{described(found)}")
        records = shown(page, found)
        with page.table("claim", "figure", "the model allows", "threshold") as row:
            for name in ("int8", "gradients"):
                one, most = records[name], limits(records[name], records["base"])
                row(
                    f"{name} over base",
                    f"{one.speedup:.2f}x",
                    f"{most:.2f}x",
                    verdict(one.speedup, least=SPEED),
                )


def accuracy_row(page, preset, kept):
    knobs = preset["accuracy"]
    page.add(
        f"## Accuracy (N4, D6)\n\n{knobs['epochs']} epochs, at most {knobs['tested']} test nodes; alone is one machine "
        "with batches as large as those of all machines together. Links are wide here: nothing is timed."
    )
    workers = preset["job"]["workers"]
    size = preset["job"].get("batch_size", 64)
    shared = {name: knobs[name] for name in ("epochs", "tested", "train_share")}
    shared |= {"link": "10gbit", "codec": "powersgd"}
    points = {name: [] for name in ("alone", "base", "int8", *CODECS)}
    with page.table("seed", *points) as row:
        for seed in knobs["seeds"]:
            alone = kept.run(modes=("base",), seed=seed, **shared, workers=1, batch_size=size * workers)
            many = kept.run(modes=("base", "int8", "gradients"), seed=seed, **shared)
            cast = kept.run(modes=("gradients",), seed=seed, **{**shared, "codec": "bf16"})
            points["alone"].append(100 * alone.modes["base"].accuracy)
            found = many.modes["base"], many.modes["int8"], many.modes["gradients"], cast.modes["gradients"]
            for name, one in zip(("base", "int8", *CODECS), found, strict=True):
                points[name].append(100 * one.accuracy)
            row(seed, *(f"{values[-1]:.2f} %" for values in points.values()))
        row("mean", *(f"{np.mean(values):.2f} %" for values in points.values()))
    with page.table("claim", "points", "threshold") as row:
        for name, reference, least in (
            ("int8", "base", -POINTS), (CODECS[1], "base", -POINTS), (CODECS[0], "base", None),
            ("base", "alone", -0.5),
        ):  # fmt: skip
            gap = float(np.mean(points[name]) - np.mean(points[reference]))
            row(
                f"{name} over {reference}",
                f"{gap:+.2f}",
                "none" if least is None else verdict(gap, least=least),
            )


ROWS = {
    "modes": modes_row, "even": even_row, "alphas": alphas_row, "slower": slower_row, "accuracy": accuracy_row,
}  # fmt: skip


def main():
    options = arguments(__doc__, list(ROWS))
    possible, reason = lab.available()
    if not possible:
        raise SystemExit(f"no lab can be built here: {reason}")
    preset = PRESETS[options.preset]
    kept = Kept(options.out and options.out.with_suffix(".json"), preset)
    facts = {
        "Machines": "hosts of the lab, a process each, all on the processors of this machine",
        "Bytes": f"a row of the Debian graph is {row_bytes(1000, 32)} B, {row_bytes(1000, 8)} B quantized",
    }
    page = Page("Mini-batches over partitioned features", options.preset, facts)
    for name in options.only:
        ROWS[name](page, preset, kept)
    page.finish(options.out)


if __name__ == "__main__":
    main()
