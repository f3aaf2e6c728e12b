"""E2: times of fused operators that the learned estimator has not seen, against measured ones.

    python benchmarks/fused_operators/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `models` (E2 as in the paper: an estimator learns from fused operators of a step of each of seven models and is
tried on others of these steps; and how far two measurements of them are apart), `structures` (the same with all regions
of a structure held out), `shipped` (the weights that come with wirewise on structures and models that they have not
seen, the analytic formula, the sum of the operators' own times), `sources` (the same weights by what the regions were
picked from), `refit` (weights trained here on what the shipped ones learned from). `models` and `structures` train on
from the shipped weights, `refit` from those of the other kind of processor, which know nothing of these samples. On two
processors measuring the steps takes an hour and a half, learning from them twenty minutes for each row.

Samples go next to FILE as FILE.jsonl, those of the models as FILE-MODEL-1.jsonl and FILE-MODEL-2.jsonl; what is
there is not measured again. A region is compiled by Inductor's C++ backend with a symbolic batch and measured at ten
sizes, those of the seven models at three: processor time of its thread, the least of its loops of at least 200 us,
which go on until a reference says that six of them had the core for themselves, or for 300 ms each. A quarter of the
structures, drawn by a hash, is for the test only: they differ from all others in kinds, edges or outputs. The shipped
weights keep to the same draw; the threshold is applied to them, too, since a search makes fused operators of models
that nobody has learned from. Shares are of the samples and of their summed time: a step takes the sum of its
operators, so that long ones count more.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from math import inf
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from passes import key_of, least_of

from common import Page, arguments, scratch, verdict
from wirewise.planners.fusion.disco import AnalyticCosts
from wirewise.planners.fusion.disco.estimator import VECTORS, load_shipped, vectors_here
from wirewise.trials.operators.learning import accuracy, fit_estimator, split, structure_of, to_region_graph
from wirewise.trials.operators.models import SOURCES
from wirewise.trials.operators.samples import collect, read_samples

WITHIN, ORDER = 0.9, 0.95
PRESETS = {
    "smoke": {
        "structures": 8, "sizes": 3, "epochs": 2, "again": {"epochs": 2}, "folds": 2,
        "models": {"sizes": 2, "regions_per_step": 3},
    },
    "paper": {
        "structures": 260, "sizes": 10, "epochs": 20, "again": {"epochs": 60, "batch": 32, "dropout": 0.0}, "folds": 8,
        "models": {"sizes": 3, "regions_per_step": 400},
    },
}  # fmt: skip
SPANS = (("below 20 us", 0, 2e-5), ("20 to 100 us", 2e-5, 1e-4), ("more", 1e-4, 1), ("any time", 0, 1))
MODELS_SEED, PASSES = 2000, 2
ALONE = {"mp_context": get_context("spawn"), "initializer": torch.set_num_threads, "initargs": (1,)}
"""Processes of one thread each, one a processor."""


def analytic_s(sample):
    """The formula, fitted to the region's own operators as they were measured."""
    return AnalyticCosts(sample.graph)(sample.operators, sample.outputs)


def alone_s(sample):
    return sum(one.time_s for one in sample.graph.operators)


def row_of(row, name, predicted, samples, *, claimed=False):
    found = accuracy(predicted, samples)
    row(
        name,
        found.samples,
        f"{found.within_20:.1%}",
        verdict(found.within_20, least=WITHIN) if claimed else "",
        f"{found.median:.1%}",
        f"{found.worst_tenth:.0%}",
        f"{found.order:.4f}",
        verdict(found.order, least=ORDER) if claimed else "",
        *(f"{share:.1%}" for share in of_time(predicted, [one.seconds for one in samples])),
    )


def of_time(predicted, seconds):
    """Share of the summed time whose samples are within 20 %, and by how much samples miss it."""
    missed = np.abs(np.asarray(predicted) - seconds)
    return np.sum(seconds, where=missed <= 0.2 * np.asarray(seconds)) / sum(seconds), missed.sum() / sum(
        seconds
    )


TITLES = (
    "prediction",
    "fused operators",
    "within 20 %",
    "",
    "median error",
    "a tenth is off by",
    "Spearman",
    "",
    "of their time within 20 %",
    "of their time missed",
)


def roughness(regions):
    """How far a time lies from the line, on log scales, between those of the next sizes: noise, and some curvature."""
    found = []
    for samples in regions:
        for a, b, c in zip(samples, samples[1:], samples[2:], strict=False):
            x, y = ([np.log(getattr(one, name)) for one in (a, b, c)] for name in ("size", "seconds"))
            found.append(abs(y[1] - np.interp(x[1], x[::2], y[::2])))
    median, most = np.quantile(found, [0.5, 0.9])
    return f"a time lies {median:.0%} off the line between its neighbours' in the median, a tenth {most:.0%}"


def estimated(estimator, samples):
    return [estimator.seconds(to_region_graph(one)) for one in samples]


def shipped_rows(page, kept):
    estimator = load_shipped()
    page.add(
        f"## E2: shipped weights on unseen structures\n\nTrained on {estimator.about.machine}, with "
        f"{estimator.about.regions} fused operators."
    )
    with page.table(*TITLES) as row:
        row_of(row, "estimator", estimated(estimator, kept), kept, claimed=True)
        long = [one for one in kept if one.seconds >= 20e-6]
        row_of(row, "estimator, 20 us and more", estimated(estimator, long), long)
        models = [one for one in kept if one.source != "chain"]
        row_of(row, "estimator, from steps of models", estimated(estimator, models), models)
        row_of(row, "weights for other vectors", estimated(others(), kept), kept)
        row_of(row, "analytic formula", [analytic_s(one) for one in kept], kept)
        row_of(row, "sum of own times", [alone_s(one) for one in kept], kept)


def source_rows(page, kept):
    page.add("## Shipped weights by source")
    estimator = load_shipped()
    with page.table(*TITLES) as row:
        for source in sorted({one.source for one in kept}):
            own = [one for one in kept if one.source == source]
            row_of(row, source, estimated(estimator, own), own)


def others():
    """Weights that learned from none of this machine's samples."""
    return load_shipped(next(one for one in VECTORS if one != vectors_here()))


def trained_rows(page, preset, title, known, kept):
    estimator = fit_estimator(known, epochs=preset["epochs"], start=others())
    page.add(f"## {title}")
    with page.table(*TITLES) as row:
        row_of(row, "estimator", estimated(estimator, kept), kept)
        row_of(row, "estimator, on what it learned from", estimated(estimator, known), known)
        row_of(row, "before it learned here", estimated(others(), kept), kept)


def models_rows(page, preset, file, rows):
    """Each region is predicted by an estimator that has not seen it, or its structure."""
    knobs = preset["models"]
    passes = measured_models(knobs, file)
    regions = least_of(passes)
    samples = [one for region in regions for one in region]
    page.add(
        f"## E2: unseen fused operators of {len(SOURCES)} models, other ones of which were learned\n\n{len(samples)} "
        f"fused operators: {len(regions)} regions, the different ones of {knobs['regions_per_step']} draws of a step "
        f"of each of {', '.join(SOURCES)}, at {knobs['sizes']} batches, in {PASSES} passes of which the least time "
        "counts. As in the paper, the estimator learns from other regions of these models: it is trained on from the "
        f"shipped weights in {preset['folds']} turns, each with all but some regions, so that each is held out once; "
        "with 'structures held out' all that has the structure of a region, which the paper does not ask for. The "
        "shipped weights know nothing of these steps."
    )
    with page.table(*TITLES) as row:
        if "models" in rows:
            numbers = np.random.default_rng(0).permutation(len(regions)).tolist()
            predicted = held_out(preset, regions, numbers)
            row_of(row, "estimator", predicted, samples, claimed=True)
            for source in sorted({one.source for one in samples}):
                pairs = [pair for pair in zip(predicted, samples, strict=True) if pair[1].source == source]
                row_of(row, f"estimator, {source}", *zip(*pairs, strict=True))
        if "structures" in rows:
            alike = numbered([structure_of(region[0]) for region in regions])
            row_of(row, "estimator, structures held out", held_out(preset, regions, alike), samples)
        row_of(row, "shipped weights", estimated(load_shipped(), samples), samples)
        row_of(row, "analytic formula", [analytic_s(one) for one in samples], samples)
    ceiling_rows(page, passes)


def measured_models(knobs, file):
    """Samples of the regions of a step of each model, by pass."""
    found = [
        [file.with_name(f"{file.stem}-{source}-{number}.jsonl") for source in SOURCES]
        for number in range(1, PASSES + 1)
    ]
    with ProcessPoolExecutor(**ALONE) as pool:
        waiting = [
            pool.submit(measure_model, own, source, knobs)
            for files in found
            for own, source in zip(files, SOURCES, strict=True)
        ]
        for one in waiting:
            print(one.result(), flush=True)
    return [[region for own in files for region in read_samples(own)] for files in found]


def measure_model(own, source, knobs):
    """A step is measured whole, or again from its beginning."""
    if not own.exists():
        part = own.with_suffix(".part")
        part.unlink(missing_ok=True)
        for _ in collect(part, seed=MODELS_SEED, structures=inf, sources=(source,), steps=1, **knobs):
            pass
        part.rename(own)
    return f"{own.stem}: {len(read_samples(own))} regions"


def numbered(structures):
    """A number for each place, drawn at random, equal for equal structures."""
    names = sorted(set(structures))
    numbers = dict(zip(names, np.random.default_rng(0).permutation(len(names)).tolist(), strict=True))
    return [numbers[one] for one in structures]


def held_out(preset, regions, numbers):
    """Predictions of all samples; a region's estimator learns none whose number is in its residue class."""
    turns = [number % preset["folds"] for number in numbers]
    found = {}
    with ProcessPoolExecutor(**ALONE) as pool:
        for turn in [pool.submit(one_turn, preset, regions, turns, turn) for turn in sorted(set(turns))]:
            found |= turn.result()
    return [seconds for i in range(len(regions)) for seconds in found[i]]


def one_turn(preset, regions, turns, turn):
    known = [one for region, own in zip(regions, turns, strict=True) if own != turn for one in region]
    estimator = fit_estimator(known, **preset["again"], start=load_shipped())
    return {i: estimated(estimator, regions[i]) for i, own in enumerate(turns) if own == turn}


def ceiling_rows(page, passes):
    first, second = ([one for region in own for one in region] for own in passes[:2])
    by_key = {key_of(one): one for one in second}
    pairs = [(one, by_key[key_of(one)]) for one in first if key_of(one) in by_key]
    page.add(
        "### The measuring itself: the first two passes over the same regions\n\nNo estimate can be nearer to one "
        "measurement than another one is."
    )
    with page.table(
        "fused operators that take", "pairs", "within 20 %", "median difference", "a tenth differs by",
        "of their time within 20 %",
    ) as row:  # fmt: skip
        for name, low, high in SPANS:
            chosen = [pair for pair in pairs if low <= pair[0].seconds < high]
            if chosen:
                pair_row(row, name, *np.array([[one.seconds for one in pair] for pair in chosen]).T)


def pair_row(row, name, first, second):
    apart = np.abs(second / first - 1)
    share, _ = of_time(second, first)
    row(
        name, len(apart), f"{np.mean(apart <= 0.2):.1%}", f"{np.median(apart):.1%}",
        f"{np.quantile(apart, 0.9):.0%}", f"{share:.1%}",
    )  # fmt: skip


def measured(preset, file):
    """Samples of all regions, from the file and this machine."""
    for found in collect(file, structures=preset["structures"], sizes=preset["sizes"]):
        print(f"{found[0].source}: {len(found)} sizes", flush=True)
    return read_samples(file)


def report(options, preset, file):
    page = Page("Fused operators", options.preset, {})
    if {"models", "structures"} & set(options.only):
        models_rows(page, preset, file, options.only)
    if {"shipped", "sources", "refit"} & set(options.only):
        structures_rows(page, preset, file, options.only)
    page.finish(options)


def structures_rows(page, preset, file, rows):
    """Structures that no learned sample has."""
    regions = measured(preset, file)
    known, kept = split(regions)
    counts = [len({structure_of(one) for one in part}) for part in (known, kept)]
    page.add(
        f"{len(known)} samples of {counts[0]} structures to learn from, {len(kept)} of {counts[1]} others to test; "
        f"{roughness(regions)}."
    )
    if "shipped" in rows:
        shipped_rows(page, kept)
    if "sources" in rows:
        source_rows(page, kept)
    if "refit" in rows:
        trained_rows(page, preset, "Weights trained here", known, kept)


def main():
    options = arguments(__doc__, ("models", "structures", "shipped", "sources", "refit"))
    preset = PRESETS[options.preset]
    if options.out:
        report(options, preset, options.out.with_suffix(".jsonl"))
    else:
        with scratch() as folder:
            report(options, preset, folder / "samples.jsonl")


if __name__ == "__main__":
    main()
