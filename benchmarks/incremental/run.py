"""Claims about rehearsal on growing graphs: how accurate methods are after all tasks, and what they forget.

    python benchmarks/incremental/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `task-5` (E7: the classes of a node's task compete, 5 nodes of each class are kept), `task-limit`,
`task-placed`, `others` (more methods), `task-1` (1 kept), `rate` (twice the learning rate), `decoupled` (weight decay
beside Adam), `class-20` (all classes so far compete, 20 kept), `class-placed`, `class-limit`, `class-20-mean` (old
tasks weigh together as much as the new one), `debian`, `cora`, `citeseer`, `block` (the library's settings on four
graphs), `caches` (7.12: what four machines compute again and fetch when the graph has grown by a task).

With --out each run is kept beside the page in FILE.json and not made again; remove that file to start anew. Time is
not measured.
"""

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import growing_caches
import numpy as np
import torch

from common import KeptFigures, Page, arguments, verdict
from wirewise.graph import load
from wirewise.graph.rehearsal import average_forgetting, average_performance, growing_graph
from wirewise.runtime.incremental import DEFAULT_METHOD, Settings, train

PRESETS = {
    "smoke": {
        "dataset": "block:nodes=900,classes=6,features=12,noise=1.0,mean_degree=8",
        "seeds": 1,
        "settings": {"epochs": 10, "hidden": 16, "learning_rate": 0.02},
        "graphs": {},
        "gates": False,
    },
    "paper": {
        "dataset": "debian",
        "seeds": 3,
        "settings": {},
        "graphs": {"block": "block:nodes=6000,classes=20"},
        "gates": True,
    },
}
WITHIN = 0.01
"""How far below random rehearsal the default may be."""
E7 = {"bare": (0.74, 0.82), "er-random": (0.88, None), "joint": (0.955, None)}

PROTOCOL = (
    "Protocol of CGLB: two classes a task in label order, classes of fewer than 50 nodes left out, a split of "
    "60/20/20 % of each class by seed, later nodes bring edges to earlier ones. Two-layer GCN without biases, of "
    "width {hidden}, full batch, {epochs} epochs a task, Adam. Accuracies are means over the classes of a task, on the "
    "current graph, where rehearsed nodes are looked up too. Under the library's settings and where all classes "
    "compete each old task weighs as much as the new one; elsewhere all of them together do. +kmm: weights by kernel "
    "mean matching (rbf with the median distance, at most 3, sums bounded in each class). sea-er: k-centre with such "
    "weights. Weight decay inside Adam is CGLB's: classes of old tasks get no gradient, so that Adam makes a full step "
    "of it; the library's is beside Adam."
)


class Row(NamedTuple):
    title: str
    methods: tuple[str, ...]
    wishes: dict
    graph: str = ""


BEST = ("er-random", "coverage")
PLACED = ("k-centre", "sea-er")
MORE = ("herding", "er-cm", "er-mf", "er-random+kmm", "coverage+kmm")
SLOW = ("gem", "ewc", "lwf", "ssrm")
QUICK = ("bare", *BEST, *PLACED, "joint", *MORE)
TASK = {"setting": "task", "budget": 5, "decay": "l2", "mixing": "mean"}
CLASS = {"setting": "class", "budget": 20, "decay": "l2", "mixing": "sum"}
BESIDE = TASK | {"decay": "decoupled"}
DEFAULT = BESIDE | {"mixing": "sum"}
ROWS = {
    "task-5": Row("Task-incremental, 5 nodes of each class kept (E7)", ("bare", *BEST), TASK),
    "task-limit": Row("The bound, as above: all nodes seen so far", ("joint",), TASK),
    "task-placed": Row("SEA-ER as published, as above", PLACED, TASK),
    "others": Row("More methods, as above", MORE + SLOW, TASK),
    "task-1": Row(
        "Task-incremental, 1 node of each class kept", (*BEST, "er-cm", *PLACED), TASK | {"budget": 1}
    ),
    "rate": Row("Twice the learning rate", ("bare", "er-random"), TASK | {"learning_rate": 0.01}),
    "decoupled": Row("Weight decay beside Adam", ("bare", *BEST), BESIDE),
    "class-20": Row("Class-incremental, 20 nodes of each class kept", ("bare", *BEST, "er-cm", "lwf"), CLASS),
    "class-placed": Row("Class-incremental, SEA-ER as published", PLACED, CLASS),
    "class-limit": Row("Class-incremental, the bound: all nodes seen so far", ("joint",), CLASS),
    "class-20-mean": Row("Class-incremental, old tasks weigh as one", BEST, CLASS | {"mixing": "mean"}),
    "debian": Row("The library's settings: debian", QUICK + SLOW, DEFAULT),
    "cora": Row("The library's settings: cora", QUICK, DEFAULT, "cora"),
    "citeseer": Row("The library's settings: citeseer", QUICK, DEFAULT, "citeseer"),
    "block": Row("The library's settings: a generated graph of 20 classes", QUICK, DEFAULT, "block"),
}


class Kept:
    """AP and AF of runs, also in a file."""

    def __init__(self, path, preset):
        self._found, self._preset, self._graphs = KeptFigures(path), preset, {}

    def all(self, wanted):
        """Seeds, and AP and AF, [methods, seeds, 2]; methods of a seed that are not known learn in turns."""
        seeds = range(self._preset["seeds"])
        for seed in seeds:
            new = [method for method in wanted.methods if self._key(method, wanted, seed) not in self._found]
            if new:
                settings = Settings(**(self._preset["settings"] | wanted.wishes), seed=seed)
                for method, accuracy in train(self._graph(wanted, seed), new, settings, told).items():
                    pair = [average_performance(accuracy), average_forgetting(accuracy)]
                    self._found[self._key(method, wanted, seed)] = pair
        keys = [[self._key(method, wanted, seed) for seed in seeds] for method in wanted.methods]
        return seeds, np.array([[self._found[key] for key in some] for some in keys])

    def _graph(self, wanted, seed):
        name = dataset(self._preset, wanted)
        if (name, seed) not in self._graphs:
            self._graphs = {(name, seed): growing_graph(load(name), seed=seed)}
        return self._graphs[name, seed]

    def _key(self, method, wanted, seed):
        name = dataset(self._preset, wanted)
        return " ".join([name, *map(str, wanted.wishes.values()), method, str(seed)])


def row_of_caches(page, preset):
    page.add(
        f"## Caches of {growing_caches.MACHINES} machines while the graph grows\n\n{growing_caches.SETTING}"
    )
    growing = growing_graph(load(preset["dataset"]))
    anew = growing_caches.table(page, growing)
    with page.table("claim", "found", "threshold") as row:
        row("as planned anew on every graph", f"{anew:.0e}", verdict(anew, most=1e-12))


def dataset(preset, wanted):
    if not wanted.graph or not preset["gates"]:
        return preset["dataset"]
    return preset["graphs"].get(wanted.graph, wanted.graph)


def told(task, method, accuracies, taken_s):
    print(
        f"task {task + 1}, {method}: AP {np.mean(accuracies):.3f}, {taken_s:.1f} s",
        file=sys.stderr,
        flush=True,
    )


def row_of(page, preset, kept, name):
    seeds, found = kept.all(ROWS[name])
    page.add(f"## {ROWS[name].title}\n\nSeeds {', '.join(map(str, seeds))}: their mean, and each.")
    with page.table("method", "AP %", "seeds", "AF %", "seeds") as row:
        for method, pairs in zip(ROWS[name].methods, 100 * found, strict=True):
            ap, af = pairs.mean(axis=0)
            each = [
                ", ".join(f"{value:{sign}.1f}" for value in pairs[:, i]) for i, sign in ((0, ""), (1, "+"))
            ]
            row(method, f"{ap:.1f}", each[0], f"{af:+.1f}", each[1])
    if preset["gates"]:
        claims(page, name, dict(zip(ROWS[name].methods, found.mean(axis=1)[:, 0], strict=True)))


def claims(page, name, ap):
    known = E7 if name in ("task-5", "task-limit") else {}
    compared = DEFAULT_METHOD in ap and "er-random" in ap
    if not compared and not known:
        return
    with page.table("claim, mean of seeds", "AP", "threshold") as row:
        for method, (least, most) in known.items():
            if method not in ap:
                continue
            row(f"E7 {method}", f"{ap[method]:.4f}", verdict(ap[method], least=least, most=most))
        if name == "task-5":
            reached = verdict(ap["coverage"], least=ap["er-random"])
            row("E7 coverage at least random", f"{ap['coverage']:.4f}", reached)
        if compared:
            reached = verdict(ap[DEFAULT_METHOD], least=ap["er-random"] - WITHIN)
            default = f"the default, {DEFAULT_METHOD}, not {WITHIN} below random"
            row(default, f"{ap[DEFAULT_METHOD]:.4f}", reached)
            below = [m for m in ap if m not in ("bare", "joint") and ap[m] < ap["er-random"] - WITHIN]
            row("may not be the default", ", ".join(below) or "none", "none")


def main():
    torch.set_num_threads(1)
    options = arguments(__doc__, [*ROWS, "caches"])
    preset = PRESETS[options.preset]
    page = Page("Rehearsal on growing graphs", options.preset, {"Threads": "1", "Dataset": preset["dataset"]})
    settings = Settings(**preset["settings"])
    page.add(PROTOCOL.format(hidden=settings.hidden, epochs=settings.epochs))
    kept = Kept(options.out.with_suffix(".json") if options.out else None, preset)
    for name in options.only:
        if name == "caches":
            row_of_caches(page, preset)
        else:
            row_of(page, preset, kept, name)
    page.finish(options)


if __name__ == "__main__":
    main()
