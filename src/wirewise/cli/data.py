"""`wirewise data`: list, show, build, convert, check, generate and partition graphs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from wirewise import options as opt
from wirewise.cli.options import with_options
from wirewise.cli.output import JsonOption, note, write_out
from wirewise.errors import GraphError

if TYPE_CHECKING:
    from wirewise.graph import GraphData

__all__ = ["app"]

app = typer.Typer(
    help="Graphs: list, show, build, convert, check, generate, partition.", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(help="Dataset name, block:nodes=..., or the path of an npz file or mapped graph.")
]
_WORTH_TELLING_BYTES = 1_000_000_000
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]


@app.command("list")
def list_datasets(json: JsonOption = None) -> None:
    """List the graphs that are known by name."""
    from wirewise.graph import DATASETS

    rows = [
        {"name": name, "source": entry.source, "summary": entry.summary} for name, entry in DATASETS.items()
    ]
    rows.append({"name": "FOLDER", "source": "wirewise data convert", "summary": "mapped graph"})
    rows.append(
        {"name": "block:KNOB=VALUE,...", "source": "generated", "summary": "degree-skewed block model"}
    )
    rows.append({"name": "PATH.npz", "source": "your file", "summary": "edge_index, x, y, split"})
    _report({"datasets": rows}, json, ["name", "source", "summary"], rows)


@app.command()
def show(name: Name, json: JsonOption = None, seed: Seed = 0) -> None:
    """Show size, degrees, classes and split of a graph."""
    from wirewise.graph import load

    _report_pairs(_describe(load(name, seed=seed)), json)


@app.command("build-debian")
def build_debian_graph(
    source: Annotated[str, typer.Option("--from", help="Text of `apt-cache dumpavail`; - reads stdin.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="The npz file to write.")],
    words: Annotated[int, typer.Option(min=1, help="Maximum number of features.")] = 1000,
    json: JsonOption = None,
) -> None:
    """Build the package graph of a Debian system from its package list.

    apt-cache dumpavail | wirewise data build-debian --from - -o packages.npz
    """
    from wirewise.graph import write_graph
    from wirewise.graph.debian import build_debian

    if source == "-":
        data = build_debian(sys.stdin, num_words=words)
    else:
        try:
            with Path(source).open(encoding="utf-8", errors="replace") as lines:
                data = build_debian(lines, num_words=words)
        except OSError as error:
            raise GraphError(f"cannot read {source}: {error.strerror}; check the path") from error
    write_graph(data, output)
    _report_pairs({"path": str(output)} | _describe(data), json)


@app.command()
def convert(
    name: Annotated[
        str, typer.Argument(help="Dataset name, npz file, saved Data of PyG (.pt), or folder of an OGB set.")
    ],
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder of the mapped graph.")],
    seed: Seed = 0,
    json: JsonOption = None,
) -> None:
    """Write a graph as memory-mapped arrays, which processes read page by page in bounded memory."""
    from wirewise.graph import convert as write

    data = write(name, output, seed=seed)
    _report_pairs({"path": str(output)} | _describe(data), json)


@app.command()
def check(name: Name, json: JsonOption = None) -> None:
    """Check a graph; exit code 1 and the reason if it cannot be trained on."""
    from wirewise.graph import load, read_mapped
    from wirewise.graph.mapped import HEADER

    try:
        data = read_mapped(name, verify=True) if (Path(name) / HEADER).is_file() else load(name)
        record: dict[str, Any] = {"ok": True} | _describe(data)
    except GraphError as error:
        record = {"ok": False, "error": str(error)}
    _report_pairs(record, json)
    if not record["ok"]:
        raise typer.Exit(1)


class GraphOptions(opt.Options, frozen=True, kw_only=True):
    """Options of `graph.BlockModel`, which validates them."""

    nodes: Annotated[int, opt.about("Nodes.")] = 20_000
    classes: Annotated[int, opt.about("Classes.")] = 12
    features: Annotated[int, opt.about("Features of a node.")] = 64
    mean_degree: Annotated[float, opt.about("Edges of a node.")] = 16.0
    p_in: Annotated[float, opt.about("Fraction of edges inside a class.")] = 0.45
    noise: Annotated[float, opt.about("Standard deviation of features around their class mean.")] = 4.0
    norm_sigma: Annotated[float, opt.about("Standard deviation of the logarithm of feature norms.")] = 1.0
    label_noise: Annotated[float, opt.about("Fraction of random labels.")] = 0.05
    train: Annotated[float, opt.about("Fraction of training nodes.")] = 0.1
    directed: Annotated[bool, opt.about("Keep edges directed.", option="--directed/--no-directed")] = False
    seed: Annotated[int, opt.about("Random seed.")] = 0


@app.command()
@with_options
def generate(
    output: Annotated[
        Path, typer.Option("--out", "-o", help="File NAME.npz to write, or folder of a mapped graph.")
    ],
    knobs: GraphOptions,
    json: JsonOption = None,
) -> None:
    """Generate a degree-skewed block model and write it as an npz file or as a memory-mapped graph."""
    from wirewise.graph import BlockModel, block_model, write_block_model, write_graph

    model = BlockModel(**msgspec.structs.asdict(knobs))
    if output.suffix == ".npz" or (output.exists() and not output.is_dir()):
        data = block_model(model)
        write_graph(data, output)
    else:
        data = write_block_model(model, output)
    _report_pairs({"path": str(output)} | _describe(data), json)


@app.command()
def partition(
    name: Name,
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder for the parts.")],
    parts: Annotated[int, typer.Option(help="Number of parts: one for each rank.")] = 4,
    method: Annotated[
        str, typer.Option(help="Partitioner: auto, metis-balanced, metis, metis-volume, stream or random.")
    ] = "auto",
    seed: Seed = 0,
    json: JsonOption = None,
) -> None:
    """Partition a graph and write one file for each rank."""
    from wirewise.graph import choose_method, load, measure, save_parts
    from wirewise.graph import partition as assign
    from wirewise.memory import peak_resident_bytes

    data = load(name, seed=seed)
    choice = choose_method(data, method)
    if choice.needed_bytes > _WORTH_TELLING_BYTES or (method == "auto" and choice.method == "stream"):
        note(choice.note)
    start = time.perf_counter()
    owner = assign(data, parts, choice.method, seed=seed)
    seconds = time.perf_counter() - start
    meta = save_parts(data, owner, output)
    quality = measure(data, owner)
    record: dict[str, Any] = {
        "path": str(output),
        "graph": data.name,
        "method": choice.method,
        "num_parts": parts,
        "fingerprint": meta.fingerprint,
        "seconds": seconds,
        "peak_bytes": peak_resident_bytes(),
        "halo_rows": quality.halo_rows,
        "busiest_rows": quality.busiest_rows,
        "cut_edges": quality.cut_edges,
        "imbalance": quality.imbalance,
        "central_fraction": float(quality.central.sum() / data.num_nodes),
        "parts": [{"rank": rank} | counts for rank, counts in enumerate(meta.parts)],
    }
    columns = ["rank", "own", "central", "halo", "send", "edges", "train", "size_bytes"]
    _report(record, json, columns, record["parts"])


def _describe(data: GraphData) -> dict[str, Any]:
    import numpy as np

    from wirewise.graph import SPLITS, SparseRows

    degree = np.diff(data.in_edges.indptr)
    return {
        "name": data.name,
        "nodes": data.num_nodes,
        "edges": len(data.in_edges.indices),
        "directed": data.directed,
        "features": data.num_features,
        "sparse_features": isinstance(data.x, SparseRows),
        "classes": data.num_classes,
        "multilabel": data.multilabel,
        "mean_in_degree": float(degree.mean()),
        "largest_in_degree": int(degree.max()),
        "nodes_without_in_edges": int((degree == 0).sum()),
        "split": {name: data.count(value) for name, value in SPLITS.items()},
        **({"notes": list(data.notes)} if data.notes else {}),
    }


def _report_pairs(record: Mapping[str, Any], json: str | None) -> None:
    rows = [{"what": key, "value": value} for key, value in record.items()]
    _report(record, json, ["what", "value"], rows)


def _report(
    record: Mapping[str, Any], json: str | None, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write the record where `--json` says, and print these columns of the rows unless that is stdout."""
    write_out(json, record, (columns, [[str(row[column]) for column in columns] for row in rows]))
