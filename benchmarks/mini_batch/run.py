"""Claims about mini-batch training over partitioned features (SALIENT++): machines are hosts of a lab on shaped links.

    python benchmarks/mini_batch/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `own` (the claim; N1, N4, N5, and the cache of N2, with processors of their own: emulated; and with caches that
spare the busiest link), `modes` (the same, all machines on the processors of this one), `even` (N2: the pipeline where
link and computing take equally long, on an emulated accelerator and on the processors), `alphas` (N3), `slower` (the
claim on slower links), `accuracy` (D6), `codecs` (N4: accuracy with rows and gradients of fewer bits), `sage` (D6: what
three layers reach on one machine). The last three time nothing and run on loopback.

`own` and `modes` train `words`, the Debian graph, whose rows are bags of words, zeros and ones, which travel as the
columns of their ones in every mode, base among them; and `vectors`, the same graph with real numbers: a row is the mean
of 128-dimensional vectors of its words, drawn at random, as those of ogbn-arxiv are means of learnt ones. They travel
dense unless a mode rounds them. `own` repeats both with another seed, and also trains `blocks`, a generated graph of 40
communities with 128 real numbers a node. `even`, `alphas` and `slower` take `vectors`, `codecs` takes both graphs of
real numbers. With --out each run is kept beside the page in FILE.json and not made again; remove that file to start
anew.

The model beside each epoch: `link` is what the busiest machine's bytes take at the link's rate, with headers;
`processors` what all machines computed, over the processors that they share here. In a pipeline an epoch takes the
longer of both, and otherwise their sum. Of each mode the first epoch is left out, in which kernels load and connections
open, and of a pipeline the last one, too, behind which no rows of a next epoch travel.
"""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np
from scipy.sparse import csr_array

from common import KeptFigures, Page, arguments, need_lab, scratch, verdict
from wirewise.graph import load, write_graph
from wirewise_papers.salientpp.experiment import MiniBatchJob, run
from wirewise_papers.salientpp.records import MiniBatchRun

SMALL = "block:nodes=1500,classes=4,features=64,noise=1.0,train=0.3"
BLOCKS = "block:nodes=60000,classes=40,features=128,mean_degree=14,p_in=0.7,noise=3.0,train=0.1"
VECTORS, DIMENSIONS = "debian, word vectors", 128
MODES = ("base", "pipeline", "cache", "bf16", "int8", "gradients")
SPEEDS = ("base", "cache", "int8", "gradients")
PRESETS = {
    "smoke": {
        "job": {"workers": 2, "fanouts": (6, 4), "batch_size": 32, "epochs": 2, "hidden": 16, "tested": 100},
        "graphs": {"vectors": {"dataset": SMALL, "train_share": 1.0}}, "again": (), "balanced": ("vectors",),
        "alphas": (0.1, 0.5), "slower": ("50mbit",),
        "even": ({"link": "100mbit", "step_s": 0.01}, {"link": "900mbit"}),
        "own": {"vectors": {"epochs": 3, "modes": MODES}}, "modes": {"vectors": {"epochs": 3}},
        "accuracy": {"epochs": 3, "seeds": (0,), "tested": 300, "train_share": 1.0, "fanouts": (6, 4)},
        "codecs": {"vectors": {"epochs": 3, "codecs": (), "train_share": 1.0, "fanouts": (6, 4)}},
        "sage": {"epochs": 3, "train_share": 1.0, "tested": 300, "batch_size": 64}, "whole": "vectors",
    },
    "paper": {
        "job": {"workers": 4, "epochs": 4, "tested": 64},
        "graphs": {
            "words": {"dataset": "debian", "train_share": 0.13},
            "vectors": {"dataset": VECTORS, "train_share": 0.13},
            "blocks": {"dataset": BLOCKS, "train_share": 0.42},
        },
        "again": ("words", "vectors"), "balanced": ("vectors",),
        "alphas": (0.05, 0.1, 0.2, 0.5, 1.0), "slower": ("50mbit", "25mbit"),
        "even": ({"link": "100mbit", "step_s": 0.1, "epochs": 3}, {"link": "900mbit"}),
        "own": {
            "words": {"epochs": 7, "modes": MODES}, "vectors": {"epochs": 7, "modes": MODES},
            "blocks": {"epochs": 4, "modes": SPEEDS},
        },
        "modes": {"words": {"epochs": 7}, "vectors": {"epochs": 7}},
        "accuracy": {"epochs": 24, "seeds": (0, 1, 2), "tested": 20_000, "train_share": 0.08, "fanouts": (10, 5)},
        "codecs": {
            "vectors": {"epochs": 15, "codecs": (), "train_share": 0.08, "fanouts": (10, 5)},
            "blocks": {"epochs": 8, "codecs": (), "train_share": 0.85, "fanouts": (10, 5)},
        },
        "sage": {"epochs": 15, "train_share": 1.0, "tested": 20_000, "batch_size": 1024, "hidden": 128},
        "whole": "words",
    },
}  # fmt: skip
LINK = "100mbit"
SPEED, CACHE_GAIN, PIPELINE_GAIN, UTILISATION, BYTES, POINTS, MONOTONE = 7.1, 2.8, 1.5, 0.9, 0.56, 0.3, 0.03
SHARED = "none: all machines compute on the same processors"
PREDICTED, D6_POINTS, SAGE, MLP = (0.95, 1.25), 0.5, 0.826, 0.699
NEAR = 0.01


def dataset_of(name, folder):
    """Dataset of a run; that of word vectors is written to the folder."""
    if name != VECTORS:
        return name
    graph = load("debian")
    x, random = graph.x, np.random.default_rng(0)
    words = csr_array((np.ones(len(x.indices), np.float32), x.indices, x.indptr), shape=x.shape)
    vectors = random.normal(size=(x.num_columns, DIMENSIONS)).astype(np.float32)
    mean = words @ vectors / np.maximum(np.diff(x.indptr), 1)[:, None]
    path = folder / "vectors.npz"
    write_graph(dataclasses.replace(graph, x=mean.astype(np.float32)), path)
    return str(path)


class Kept:
    """Results of runs, also in a file."""

    def __init__(self, path: Path | None, preset: dict) -> None:
        self._found, self._preset = KeptFigures(path), preset

    def run(self, graph: str, **knobs: object) -> MiniBatchRun:
        """Carry out a job on a graph of the preset, unless it has been."""
        settings = {**self._preset["job"], **self._preset["graphs"][graph], **knobs}
        job = MiniBatchJob(**{"link": LINK, **settings})
        key = msgspec.json.encode(job).decode()
        if key not in self._found:
            with scratch() as folder:
                made = msgspec.structs.replace(job, dataset=dataset_of(job.dataset, folder))
                found = run(made, folder / "run", lambda text: print(text, file=sys.stderr, flush=True))
            self._found[key] = msgspec.structs.replace(found, dataset=job.dataset)
        return msgspec.convert(self._found[key], MiniBatchRun)


TITLES = (
    "mode", "epoch s, median", "least s", "speed", "link s", "processors s", "model s", "measured / model",
    "rows an epoch", "rows as", "a row", "sent", "gradients", "hits", "longest stage",
)  # fmt: skip


def cells(name, one):
    stage = max((s for s in one.stage_s if s != "train" or not one.pipelined), key=lambda s: one.stage_s[s])
    return (
        name, f"{one.epoch_s:.2f}", f"{min(one.epochs_s):.2f}", f"{one.speedup:.2f}", f"{one.link_s:.2f}",
        f"{one.cpu_s:.2f}", f"{one.predicted_s:.2f}", f"{one.epoch_s / one.predicted_s:.2f}",
        one.remote_rows, one.row_format, f"{one.row_bytes:.1f} B",
        f"{one.bytes_sent / 1e6:.1f} MB", f"{one.gradient_bytes / 1e6:.1f} MB",
        f"{one.hit_rate:.0%}", stage,
    )  # fmt: skip


def steady(found):
    """Epochs between others: see above."""
    records = {}
    for name, one in found.modes.items():
        between = one.epochs_s[1 : -1 if one.pipelined and len(one.epochs_s) > 2 else None]
        records[name] = msgspec.structs.replace(one, epochs_s=between, epoch_s=float(np.median(between)))
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
    for graph, knobs in preset["modes"].items():
        found = kept.run(graph, modes=MODES, **knobs)
        page.add(
            f"## Modes at {LINK}: {graph}\n\n{described(found)} Each mode adds to the one before (bf16 stands beside "
            "it): base fetches exact rows when they are asked for; pipeline makes batches ahead; cache keeps rows by "
            f"the plan; int8 rounds fetched rows where that is smaller; gradients sends those by {found.codec}."
        )
        claims(page, found, shown(page, found))


def own_row(page, preset, kept):
    for graph, knobs in preset["own"].items():
        found = kept.run(graph, processors="own", **knobs)
        slept = found.modes["base"].slept_s / found.batches
        page.add(
            f"## Modes at {LINK}, processors of their own: {graph}\n\n{described(found)} Emulated: forward and "
            "backward of a step were timed on each machine while no other computed, and are slept, "
            f"{slept * 1e3:.1f} ms of a step of machine 0, because the machines share the processors of one computer. "
            "Batches, rows, gradients, the optimizer and links are real."
        )
        records = shown(page, found)
        claims(page, found, records)
        fewer = {**knobs, "modes": SPEEDS}
        if graph in preset["again"]:
            again = kept.run(graph, processors="own", seed=1, **fewer)
            page.add("Again with seed 1: another partition, other batches and weights.")
            repeated(page, again)
        if graph not in preset["balanced"]:
            continue
        share = kept.run(graph, processors="own", share="balanced", **fewer)
        slept = share.modes["base"].slept_s / share.batches
        page.add(
            "As many cached rows in all, divided so that the busiest link carries the fewest, with a base of the same "
            f"run: {slept * 1e3:.1f} ms of a step are slept in all of its modes."
        )
        spared = steady(share)
        with page.table(*TITLES, "equal caches, s") as row:
            for name, one in spared.items():
                row(*cells(name, one), f"{records[name].epoch_s:.2f}")
        with page.table("claim", "figure", "the model allows", "threshold") as row:
            speed_claims(row, share, spared)


def repeated(page, found):
    records = shown(page, found)
    with page.table("claim", "figure", "the model allows", "threshold") as row:
        speed_claims(row, found, records)


def speed_claims(row, found, records):
    base = records["base"]
    for name in ("int8", "gradients"):
        one, most = records[name], limits(records[name], base)
        judged = found.processors == "own" or link_rules(one)
        row(
            f"{name} over base, epoch time", f"{one.speedup:.2f}x", f"{most:.2f}x",
            verdict(one.speedup, least=SPEED) if judged else SHARED,
        )  # fmt: skip


def link_rules(one):
    """Whether the link takes twice what the processors of this computer take for all machines."""
    return one.link_s >= 2 * one.cpu_s


def claims(page, found, records):
    with page.table("claim", "figure", "the model allows", "threshold") as row:
        speed_claims(row, found, records)
        for name, one in records.items():
            ratio = one.epoch_s / one.predicted_s
            bound = verdict(ratio, least=PREDICTED[0], most=PREDICTED[1]) if link_rules(one) else SHARED
            row(f"N1 {name}: measured / model", f"{ratio:.2f}", "1", bound)
        if "pipeline" in records:
            cache_claims(row, found, records)
        for name, one in records.items():
            error = one.bytes_sent / one.bytes_predicted - 1
            row(f"{name}: bytes sent against the plan's", f"{error:+.1%}", "", "none")


def cache_claims(row, found, records):
    gain = records["pipeline"].epoch_s / records["cache"].epoch_s
    most = limits(records["cache"], records["pipeline"])
    judged = found.processors == "own" or link_rules(records["cache"])
    row(
        f"N2 cache over pipeline, alpha {found.alpha:g}",
        f"{gain:.2f}x",
        f"{most:.2f}x",
        verdict(gain, least=CACHE_GAIN) if judged else SHARED,
    )
    width = records["int8"].bytes_sent / records["bf16"].bytes_sent
    rounded = records["int8"].row_format == "int8"
    row(
        "N4 bytes of int8 over bf16",
        f"{width:.3f}",
        "",
        verdict(width, most=BYTES) if rounded else "none: exact rows are smaller",
    )
    for name in ("pipeline", "cache"):
        busy = records[name].link_s / records[name].epoch_s
        judged = found.processors == "own" or link_rules(records[name])
        row(
            f"N5 {name}: link in use",
            f"{busy:.1%}",
            "100 %",
            verdict(busy, least=UTILISATION) if judged else SHARED,
        )


def even_row(page, preset, kept):
    page.add("## Pipeline where link and computing take equally long (N2)")
    for place in preset["even"]:
        found = kept.run("vectors", modes=("base", "pipeline"), **place)
        slept = place.get("step_s", 0.0)
        where = "the processors that all machines share"
        if slept:
            where = f"emulated accelerators, one a machine: {slept:g} s of a step are slept"
        page.add(f"Computing on {where}; {described(found)}")
        records = shown(page, found)
        gain, most = records["pipeline"].speedup, limits(records["pipeline"], records["base"])
        with page.table("claim", "figure", "the model allows", "threshold") as row:
            bound = verdict(gain, least=PIPELINE_GAIN) if slept else "none: the link's work needs processors"
            row("pipeline over base", f"{gain:.2f}x", f"{most:.2f}x", bound)


def alphas_row(page, preset, kept):
    page.add(f"## Speed by alpha (N3)\n\nFloat32 rows in a pipeline at {LINK}.")
    before, worst = None, 0.0
    with page.table("alpha", "left by the plan", *TITLES[1:]) as row:
        for alpha in preset["alphas"]:
            found = kept.run("vectors", modes=("cache",), alpha=alpha)
            one = steady(found)["cache"]
            row(f"{alpha:g}", f"{found.predicted_remaining:.3f}", *cells("cache", one)[1:])
            worst = max(worst, one.epoch_s / before - 1 if before else 0.0)
            before = min(before or one.epoch_s, one.epoch_s)
    with page.table("claim", "figure", "threshold") as row:
        row("largest loss of a larger alpha", f"{worst:.1%}", verdict(worst, most=MONOTONE))


def slower_row(page, preset, kept):
    for link in preset["slower"]:
        found = kept.run("vectors", modes=("base", "int8", "gradients"), link=link, epochs=3)
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
    knobs, workers = preset["accuracy"], preset["job"]["workers"]
    page.add(
        f"## Accuracy (D6)\n\n{knobs['epochs']} epochs with {knobs['train_share']:.0%} of the training nodes, "
        f"fanouts {knobs['fanouts']}, {workers} machines; alone is one machine with batches as large as those of all "
        "machines together, so with as many steps. All look at the same test nodes. On loopback: nothing is timed."
    )
    points = {"alone": [], "machines": []}
    size = preset["job"].get("batch_size", 64) * workers
    with page.table("seed", *points) as row:
        for seed in knobs["seeds"]:
            places = {"alone": {"workers": 1, "batch_size": size}, "machines": {}}
            for name, place in places.items():
                one = trained(kept, preset["whole"], knobs, seed, "pipeline", **place)
                points[name].append(100 * one.accuracy)
            row(seed, *(f"{values[-1]:.2f} %" for values in points.values()))
        row("mean", *(f"{np.mean(values):.2f} %" for values in points.values()))
    gaps(page, points, [("machines", "alone", D6_POINTS, D6_POINTS)])


def trained(kept, graph, knobs, seed, mode, **others):
    shared = {name: knobs[name] for name in ("epochs", "train_share", "fanouts")}
    found = kept.run(
        graph,
        modes=(mode,),
        seed=seed,
        network="loopback",
        tested=knobs.get("tested", 20_000),
        **shared,
        **others,
    )
    return found.modes[mode]


def gaps(page, points, claims):
    with page.table("claim, mean of the seeds", "points", "threshold") as row:
        for name, reference, below, above in claims:
            gap = float(np.mean(points[name]) - np.mean(points[reference]))
            least = None if below is None else -below
            row(f"{name} over {reference}", f"{gap:+.2f}", verdict(gap, least=least, most=above))


def codecs_row(page, preset, kept):
    for graph, knobs in preset["codecs"].items():
        page.add(
            f"## Accuracy with fewer bits (N4): {graph}\n\n{knobs['epochs']} epochs with {knobs['train_share']:.0%} of "
            f"the training nodes, fanouts {knobs['fanouts']}; rows of 8 bits, then gradients by a codec, too. On "
            "loopback: nothing is timed."
        )
        names = ("base", "int8", *knobs["codecs"])
        points = {name: [] for name in names}
        formats = {}
        with page.table("seed", *names) as row:
            for seed in preset["accuracy"]["seeds"]:
                for name in names:
                    # A codec and a mode may have the same name.
                    how = {"mode": "gradients", "codec": name} if name in knobs["codecs"] else {"mode": name}
                    one = trained(kept, graph, knobs, seed, **how)
                    points[name].append(100 * one.accuracy)
                    formats[name] = (
                        f"{name}: {one.row_format}, {one.bytes_sent / 1e6:.1f} MB of rows an epoch"
                    )
                row(seed, *(f"{values[-1]:.2f} %" for values in points.values()))
        page.add("; ".join(formats.values()) + ".")
        gaps(page, points, [(name, "base", POINTS, None) for name in names[1:]])


def sage_row(page, preset, kept):
    knobs = preset["sage"]
    found = kept.run(preset["whole"], modes=("pipeline",), network="loopback", workers=1, **knobs)
    one = found.modes["pipeline"]
    page.add(
        f"## GraphSAGE of {len(preset['job'].get('fanouts', (15, 10, 5)))} layers on one machine (D6)\n\n"
        f"{found.dataset}, all training nodes, {knobs['epochs']} epochs of {found.batches} batches of "
        f"{knobs['batch_size']} seeds, hidden width {knobs.get('hidden', 64)}, dropout 0.5, Adam at 0.003; where it "
        "is tested, on all test nodes, 20 neighbours a hop."
    )
    known = found.dataset == "debian"
    with page.table("figure", "value", "known", "threshold") as row:
        row(
            "test accuracy",
            f"{one.accuracy:.3f}",
            f"{SAGE}; without edges {MLP}" if known else "",
            verdict(one.accuracy, least=SAGE - NEAR) if known else "none",
        )
        row("training loss of the last epoch", f"{one.loss:.3f}", "", "none")


ROWS = {
    "own": own_row,
    "modes": modes_row,
    "even": even_row,
    "alphas": alphas_row,
    "slower": slower_row,
    "accuracy": accuracy_row,
    "codecs": codecs_row,
    "sage": sage_row,
}
SHAPED = ("modes", "own", "even", "alphas", "slower")
"""Rows that need a lab."""  # fmt: skip


def main():
    options = arguments(__doc__, list(ROWS))
    if set(options.only) & set(SHAPED):
        need_lab()
    preset = PRESETS[options.preset]
    kept = Kept(options.out and options.out.with_suffix(".json"), preset)
    facts = {
        "Machines": "hosts of the lab, a process each, all on the processors of this machine",
        **{f"Graph {name}": f"`{knobs['dataset']}`" for name, knobs in preset["graphs"].items()},
    }
    page = Page("Mini-batches over partitioned features", options.preset, facts)
    for name in options.only:
        ROWS[name](page, preset, kept)
    page.finish(options)


if __name__ == "__main__":
    main()
