"""Claims about graphs beyond memory: what writing, partition, parts and sampling of mapped graphs take.

    python benchmarks/large_graphs/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...] [--share 0.1]

Rows: `ingest` (G1) and `memory` (G2): peak of anonymous memory next to 16 bytes a stored edge and 64 a node, and
METIS' own; `partition` (G2): halo rows and seconds of `stream` next to METIS on the five graphs that come with
wirewise and its tests; `parts` (G2): halo rows in 2 to 16 parts and how even those are, over seeds; `file` (G2): peak
of all memory of reading and partitioning a graph from an npz file; `sampling` (G4): batches a second of sampler and
rows on mapped files, warm, next to memory, in turns; `products` (G3): a graph of the size of ogbn-products, or a
share of it, generated, partitioned, planned and trained on four hosts of the lab; `large`: one of 20 million nodes,
without full-graph training; `papers100m`: extrapolated from those. The last three are made only where they are named;
their figures are kept beside the page.
"""

import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from scipy.optimize import nnls

from common import KeptFigures, Page, basic_parser, chosen, scratch, spread, verdict
from wirewise.graph import load, measure, partition, read_mapped
from wirewise.graph.data import TRAIN
from wirewise.graph.sampling import NeighborSampler, seed_batches
from wirewise.runtime.mini_batch import RowStore

ROWS = ("ingest", "memory", "partition", "parts", "file", "sampling", "products", "large", "papers100m")
WORKER = str(Path(__file__).parent / "worker.py")
FIVE = ("cora", "citeseer", "debian", "debian-directed", "block")
PARTS, REPEATS = 4, 5
COUNTS, SEEDS = (2, 3, 4, 8, 16), 7
EDGE_BYTES, NODE_BYTES = 16, 64
MOST_HALO, MOST_TIME, LEAST_SPEED, MOST_BYTES = 1.10, 0.2, 0.8, 20e9
MOST_UNEVEN, MOST_FILE_GB = 0.055, 1.0
PRESETS = {
    "smoke": {"nodes": 20_000, "graphs": ("cora", "block"), "batches": 20, "sampled": 5000, "filed": 50_000},
    "paper": {"nodes": 500_000, "graphs": FIVE, "batches": 200, "sampled": 200_000, "filed": 1_000_000},
}
GRAPHS = {
    "products": {"nodes": 2_449_029, "classes": 47, "features": 100, "mean_degree": 50.5, "train": 0.08},
    "large": {"nodes": 20_000_000, "classes": 47, "features": 16, "mean_degree": 15.0, "train": 0.01},
}
PAPERS = 111_059_956, 3_228_124_712


def step(name: str, folder: Path, **given: object) -> dict:
    """Seconds and peak of one step in a process of its own."""
    words = [sys.executable, WORKER, name, json.dumps({"folder": str(folder), **given})]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def judged(row, what: str, found: dict, nodes: int, edges: int, *, bound: bool = True) -> None:
    most = EDGE_BYTES * edges + NODE_BYTES * nodes
    share = found["peak_bytes"] / most
    row(
        what,
        f"{found['seconds']:.1f}",
        f"{found['peak_bytes'] / 1e9:.2f}",
        f"{found['peak_bytes'] / edges:.1f}",
        f"{share:.2f}",
        verdict(share, most=1.0) if bound else "-",
    )


TITLES = ("step", "s", "peak GB", "bytes a stored edge", "peak / bound", "threshold")


def ingest(page: Page, preset: dict) -> None:
    nodes = preset["nodes"]
    page.add(
        f"## ingest\n\nA block model of {nodes:,} nodes, about 16 stored edges and 64 features each, drawn to a mapped "
        "folder, saved as an npz file and converted back. Peak: anonymous memory of a process above what it held "
        f"before, next to {EDGE_BYTES} bytes a stored edge and {NODE_BYTES} a node; seconds of processor time. "
        "Measured."
    )
    with scratch() as folder, page.table(*TITLES) as row:
        graph = str(folder / "graph")
        drawn = step("generate", folder, knobs={"nodes": nodes}, graph=graph, out=graph)
        data = load(graph)
        size = data.num_nodes, data.num_edges
        judged(row, "generate", drawn, *size)
        for small, source in (("", "small"), (graph, "graph")):
            step("to_npz", folder, graph=small or str(folder / "small"), out=str(folder / f"{source}.npz"))
        judged(row, "convert npz", step("convert", folder, graph=graph + ".npz", out=graph + "-again"), *size)
        assert read_mapped(graph + "-again").fingerprint == data.fingerprint


def memory(page: Page, preset: dict) -> None:
    nodes = preset["nodes"]
    page.add(
        f"## memory\n\nThe same graph in {PARTS} parts: a block model without locality, the hard case. Memory as "
        "above; that of METIS is not bound, and counts pages of mapped files. `parts` writes the part of every rank."
    )
    with scratch() as folder:
        graph = str(folder / "graph")
        step("generate", folder, knobs={"nodes": nodes}, graph=graph, out=graph)
        data = load(graph)
        size, found = (data.num_nodes, data.num_edges), {}
        with page.table(*TITLES) as row:
            for method in ("stream", "metis"):
                out = str(folder / f"{method}.npy")
                found[method] = step("partition", folder, graph=graph, out=out, parts=PARTS, method=method)
                judged(row, method, found[method], *size, bound=method == "stream")
            owner = str(folder / "stream.npy")
            done = step("parts", folder, graph=graph, out=str(folder / "parts"), owner=owner, parts=PARTS)
            judged(row, "parts", done, *size)
        rows = {m: measure(data, np.load(folder / f"{m}.npy")).halo_rows for m in ("stream", "metis")}
    with page.table("halo rows", "METIS' rows", "ratio", "threshold", "time / METIS'", "threshold") as row:
        ratio = rows["stream"] / rows["metis"]
        fast = found["stream"]["seconds"] / found["metis"]["seconds"]
        row(rows["stream"], rows["metis"], f"{ratio:.3f}", verdict(ratio, most=MOST_HALO), f"{fast:.2f}",
            verdict(fast, most=MOST_TIME))  # fmt: skip


def partitions(page: Page, preset: dict) -> None:
    page.add(
        f"## partition\n\n{PARTS} parts, METIS (`metis`) and `stream` in turns, {REPEATS} times: median and quartiles "
        "of milliseconds of processor time, kernels loaded. Measured."
    )
    titles = (
        "graph",
        "stored edges",
        "halo rows",
        "METIS' rows",
        "ratio",
        "threshold",
        "ms",
        "METIS' ms",
        "ratio",
        "threshold",
    )
    with page.table(*titles) as row:
        for name in preset["graphs"]:
            data, times, rows = load(name), {"metis": [], "stream": []}, {}
            partition(data, PARTS, "stream")
            for _ in range(REPEATS):
                for method, taken in times.items():
                    started = time.process_time()
                    owner = partition(data, PARTS, method)
                    taken.append(time.process_time() - started)
                    rows[method] = measure(data, owner).halo_rows
            ratio, fast = (
                rows["stream"] / rows["metis"],
                np.median(times["stream"]) / np.median(times["metis"]),
            )
            row(name, len(data.simple_in_edges.indices), rows["stream"], rows["metis"], f"{ratio:.3f}",
                verdict(ratio, most=MOST_HALO), spread(times["stream"], 1e3), spread(times["metis"], 1e3),
                f"{fast:.2f}", verdict(fast, most=MOST_TIME))  # fmt: skip


def parts(page: Page, preset: dict) -> None:
    page.add(
        f"## parts\n\nHalo rows by `stream` over those by METIS (`metis`), medians of {SEEDS} seeds of each; those of "
        "the worst seed and of the trivial choice, `random`, over METIS' median; nodes of the smallest and of the "
        "largest part of any seed over the mean. Measured."
    )
    titles = (
        "graph",
        "parts",
        "halo rows / METIS'",
        "threshold",
        "worst seed",
        "random",
        "METIS' worst seed",
    )
    with page.table(*titles, "smallest part", "largest part", "off the mean") as row:
        for name in preset["graphs"]:
            data = load(name)
            for count in COUNTS:
                found = {
                    method: [
                        measure(data, partition(data, count, method, seed=seed)) for seed in range(SEEDS)
                    ]
                    for method in ("stream", "metis", "random")
                }
                halo = {method: [each.halo_rows for each in all_] for method, all_ in found.items()}
                metis = np.median(halo["metis"])
                ratio = float(np.median(halo["stream"]) / metis)
                sizes = np.concatenate([each.nodes / each.nodes.mean() for each in found["stream"]])
                uneven = float(abs(sizes - 1).max())
                row(name, count, f"{ratio:.2f}", verdict(ratio, most=MOST_HALO), f"{max(halo['stream']) / metis:.2f}",
                    f"{np.median(halo['random']) / metis:.2f}", f"{max(halo['metis']) / metis:.2f}",
                    f"{sizes.min():.3f}", f"{sizes.max():.3f}", verdict(uneven, most=MOST_UNEVEN))  # fmt: skip


def file(page: Page, preset: dict) -> None:
    nodes = preset["filed"]
    page.add(
        f"## file\n\n`wirewise data partition GRAPH.npz --method stream` of a block model of {nodes:,} nodes and 16 "
        "stored edges a node, by the type of its edge list: peak of the whole process, the interpreter and the written "
        "parts among it. Measured."
    )
    with scratch() as folder, page.table("edge_index", "parts", "s", "peak GB", "threshold") as row:
        graph = folder / "graph.npz"
        run = [sys.executable, "-m", "wirewise", "data"]
        subprocess.run([*run, "generate", "--nodes", str(nodes), "--features", "4", "-o", str(graph)], check=True,
                       capture_output=True)  # fmt: skip
        arrays = dict(np.load(graph))
        for kind in ("int32", "int64"):
            np.savez(graph, **arrays | {"edge_index": arrays["edge_index"].astype(kind)})
            for count in (4, 16):
                words = ["partition", str(graph), "--method", "stream", "--parts", str(count)]
                done = subprocess.run([*run, *words, "-o", str(folder / "parts"), "--json", "-"], check=True,
                                      capture_output=True, text=True)  # fmt: skip
                told = json.loads(done.stdout)
                peak_gb = told["peak_bytes"] / 1e9
                row(kind, count, f"{told['seconds']:.1f}", f"{peak_gb:.2f}",
                    verdict(peak_gb, most=MOST_FILE_GB))  # fmt: skip


def sampling(page: Page, preset: dict) -> None:
    nodes = preset["sampled"]
    page.add(
        f"## sampling\n\nA block model of {nodes:,} nodes and 128 features in memory and mapped: {preset['batches']} "
        "batches of 256 seeds, fanouts 10 and 5, with the rows of all their nodes, in turns, files in the page cache; "
        "seconds of processor time. Measured."
    )
    with scratch() as folder:
        step(
            "generate", folder, knobs={"nodes": nodes, "features": 128}, graph="x", out=str(folder / "graph")
        )
        mapped = read_mapped(folder / "graph", writeable=True)
        whole = mapped.in_edges
        held = whole._replace(indptr=whole.indptr.copy(), indices=whole.indices.copy())
        offsets = np.array([0, mapped.num_nodes])
        made = {
            "memory": (
                NeighborSampler(held, (10, 5)),
                RowStore(torch.from_numpy(mapped.x.copy()), offsets, 0),
            ),
            "mapped": (NeighborSampler(whole, (10, 5)), RowStore(torch.from_numpy(mapped.x), offsets, 0)),
        }
        seeds = np.flatnonzero(mapped.split != TRAIN)
        speeds = {name: [] for name in made}
        for turn in range(REPEATS + 1):
            for name, (sampler, store) in made.items():
                started = time.process_time()
                for number, batch in enumerate(seed_batches(seeds, 256)[: preset["batches"]]):
                    found = sampler.sample(batch, epoch=turn, batch=number)
                    store.assemble(found.n_id, np.empty(0, np.int64), lambda x, places: None)
                if turn:
                    speeds[name].append(preset["batches"] / (time.process_time() - started))
    with page.table("batches / s in memory", "mapped", "ratio", "threshold") as row:
        ratio = float(np.median(np.asarray(speeds["mapped"]) / np.asarray(speeds["memory"])))
        row(
            spread(speeds["memory"]),
            spread(speeds["mapped"]),
            f"{ratio:.2f}",
            verdict(ratio, least=LEAST_SPEED),
        )


class Family:
    """Most anonymous memory of all processes that come from this one, sampled while it is entered."""

    def __enter__(self) -> "Family":
        self.most, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            self.most = max(self.most, self._held())

    def _held(self) -> int:
        parents, sizes = {}, {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                text = status.read_text()
            except OSError:
                continue
            fields = dict(re.findall(r"^(PPid|RssAnon|RssShmem):\s+(\d+)", text, re.MULTILINE))
            number = int(status.parent.name)
            parents[number] = int(fields.get("PPid", 0))
            sizes[number] = 1024 * (int(fields.get("RssAnon", 0)) + int(fields.get("RssShmem", 0)))
        ours = {number for number in parents if self._from_here(number, parents)}
        return sum(sizes[number] for number in ours)

    def _from_here(self, number: int, parents: dict[int, int]) -> bool:
        here = threading.main_thread().native_id
        while number and number != here:
            number = parents.get(number, 0)
        return number == here

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _commands(row: str, folder: Path, share: float) -> dict[str, list[str]]:
    """Commands as a user types them, and the share of the graph that they work on."""
    knobs = GRAPHS[row] | {"nodes": int(GRAPHS[row]["nodes"] * share)}
    graph, shared = str(folder / "graph"), [*"--workers 4 --link 1gbit --network lab --hidden 64".split()]
    shared += [*"--partition stream --epochs 2 --timeout 600".split(), "--dataset", graph]
    drawn = [word for name, value in knobs.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    full = [*"--modes fp32 --layers 2".split(), "--out", str(folder / "full")]
    mini = [
        *"--modes cache --alpha 0.1 --fanouts 10,5 --batch-size 512".split(),
        "--out",
        str(folder / "mini"),
    ]
    cut = ["data", "partition", graph, "-o", str(folder / "parts"), "--method", "stream"]
    return {
        "data generate": ["data", "generate", "-o", graph, *drawn],
        "data partition": cut,
        "run salientpp": ["run", "salientpp", *mini, *shared],
        **({"run adaqp": ["run", "adaqp", *full, *shared]} if row == "products" else {}),
    }


def _measured(words: list[str], folder: Path) -> dict:
    """Seconds, processor seconds of all processes and their peak together, and what the command tells."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Family() as family:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "wirewise", *words, "--json", str(folder / "out.json")],
            capture_output=True, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = {
        "seconds": seconds,
        "processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak_bytes": family.most,
    }
    if done.returncode:
        return taken | {"failed": done.stderr.strip()[-300:]}
    return taken | {"told": _told(json.loads((folder / "out.json").read_text()))}


def _told(found: dict) -> dict[str, float | str]:
    told = {
        k: found[k] for k in ("nodes", "edges", "method", "halo_rows", "seconds", "peak_bytes") if k in found
    }
    for mode, result in found.get("modes", {}).items():
        told |= {f"{mode} s an epoch": result["epoch_s"]} if "epoch_s" in result else {}
        told |= {f"{mode} loss": loss} if (loss := result.get("final_loss", result.get("loss"))) else {}
        told |= (
            {f"{mode} bytes a rank": max(result["peak_memory_bytes"])}
            if result.get("peak_memory_bytes")
            else {}
        )
    return told


def whole(page: Page, row: str, share: float, kept: KeptFigures) -> None:
    """What a user does with a large graph; each command is judged by the memory of all its processes."""
    knobs = GRAPHS[row]
    nodes = int(knobs["nodes"] * share)
    page.add(
        f"## {row}\n\nA block model of {nodes:,} nodes, {knobs['mean_degree']} stored edges and {knobs['features']} "
        "features each, drawn, partitioned and trained on four hosts of the lab at 1 Gbit/s. Memory: anonymous pages "
        "of all processes of a command together, as are processor seconds. Measured."
        + ("" if share == 1.0 else " Judged at the whole size alone.")
    )
    folder = Path(tempfile.gettempdir()) / f"wirewise-bench-{row}-{share:g}"
    commands = {f"{row} {share:g} {name}": words for name, words in _commands(row, folder, share).items()}
    missing = [key for key in commands if "told" not in kept.get(key, {})]
    if missing and not (folder / "graph" / "graph.json").exists():
        missing.insert(0, next(iter(commands)))
    with page.table("command", "s", "processor s", "peak GB", "threshold", "result") as line:
        for key, words in commands.items():
            if key in missing:
                folder.mkdir(exist_ok=True)
                kept[key] = _measured(words, folder)
            found = kept[key]
            peak = found["peak_bytes"] / 1e9
            spent = f"{found['processor_s']:.0f}" if "processor_s" in found else "-"
            judged = verdict(peak, most=MOST_BYTES / 1e9) if share == 1.0 else "-"
            told = ", ".join(
                f"{name} {value:,.3g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in found.get("told", {}).items()
            )
            line(
                key.split(" ", 2)[2], f"{found['seconds']:.0f}", spent, f"{peak:.2f}",
                f"FAILS: {found['failed']}" if "failed" in found else judged, told,
            )  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)


def papers(page: Page, kept: KeptFigures) -> None:
    """What a graph that no machine here holds would take, from a fit of all sizes that were measured."""
    sizes = {key: (nodes, nodes * GRAPHS[row]["mean_degree"]) for key, row, nodes in (
        (key, key.split()[0], int(GRAPHS[key.split()[0]]["nodes"] * float(key.split()[1]))) for key in kept
    )}  # fmt: skip
    nodes, edges = PAPERS
    page.add(
        f"## papers100m\n\nExtrapolated, not measured: {nodes:,} nodes and {edges:,} stored edges (both ways), as "
        "papers100M has, from the rows above. Least squares of the relative errors of a + b nodes + c edges, none "
        "below 0; the error is the largest of the fit on what was measured, and says nothing where there are no more "
        "than three sizes."
    )
    with page.table("command", "sizes", "GB", "error", "processor s", "error") as line:
        for name in ("data generate", "data partition", "run salientpp"):
            keys = [key for key in kept if key.endswith(name) and "failed" not in kept[key]]
            terms = np.array([[1.0, *sizes[key]] for key in keys])
            cells = []
            for what, unit in (("peak_bytes", 1e9), ("processor_s", 1.0)):
                values = np.array([kept[key][what] for key in keys])
                weights, _ = nnls(terms / values[:, None], np.ones(len(values)))
                error = np.abs(terms @ weights / values - 1).max()
                cells += [f"{weights @ [1.0, nodes, edges] / unit:,.0f}", f"{error:.2f}"]
            line(name, len(keys), *cells)


SECTIONS = {
    "ingest": ingest,
    "memory": memory,
    "partition": partitions,
    "parts": parts,
    "file": file,
    "sampling": sampling,
}


def main() -> None:
    parser = basic_parser(__doc__)
    parser.add_argument(
        "--only", type=lambda text: chosen(text, ROWS), default=list(SECTIONS), metavar="ROW,..."
    )
    parser.add_argument(
        "--share",
        type=lambda text: [float(word) for word in text.split(",")],
        default=[1.0],
        help="Shares of the nodes of `products` and `large`.",
    )
    given = parser.parse_args()
    page = Page(
        "Large graphs",
        given.preset,
        {"Repeats": f"{REPEATS} turns where a spread is given, else one run a line"},
    )
    kept = KeptFigures(given.out and given.out.with_suffix(".json"))
    for name in given.only:
        if name in SECTIONS:
            SECTIONS[name](page, PRESETS[given.preset])
        elif name == "papers100m":
            papers(page, kept)
        else:
            for share in given.share:
                whole(page, name, share, kept)
    page.finish(given)


if __name__ == "__main__":
    main()
