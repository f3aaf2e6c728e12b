"""Graphs by name: shipped, downloaded by their maintainers' packages, generated, or from a user's file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from wirewise.errors import GraphError
from wirewise.extras import import_extra
from wirewise.graph.convert import from_ogb, from_pyg
from wirewise.graph.data import GraphData
from wirewise.graph.files import graph_of, read_arrays, read_graph
from wirewise.graph.generate import BlockModel, block_model
from wirewise.graph.mapped import HEADER, read_mapped

__all__ = ["DATASETS", "Dataset", "data_root", "load"]

_DEBIAN = Path(__file__).parent / "data" / "debian-packages.npz"
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_OGB = ("ogbn-arxiv", "ogbn-products", "ogbn-proteins", "ogbn-papers100M")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Entry of `DATASETS`."""

    summary: str
    source: str
    """Origin of the data."""
    read: Callable[[], GraphData]


def data_root() -> Path:
    """Folder of downloaded sets: the environment variable WIREWISE_DATA, else `~/.cache/wirewise`.

    Raises:
        GraphError: The variable is not set, and this user has no home, as in a container.
    """
    if told := os.environ.get("WIREWISE_DATA"):
        return Path(told)
    try:
        return Path.home() / ".cache" / "wirewise"
    except RuntimeError as error:
        raise GraphError(
            "this user has no home for downloaded graphs; name a folder for them in the variable WIREWISE_DATA"
        ) from error


def load(name: str, *, seed: int = 0) -> GraphData:
    """Load a checked graph by name.

    Args:
        name: A key of `DATASETS`, in any case; "block" or "block:nodes=20000,classes=12,..." with the parameters of
            `BlockModel`; or the path of an npz file (see `read_graph`) or of a mapped graph (see `read_mapped`).
        seed: Seed of a generated graph whose name gives none.

    Raises:
        GraphError: The name is unknown, a file is unusable, or an optional package is missing.
    """
    if name in DATASETS:
        return DATASETS[name].read()
    if name == "block" or name.startswith("block:"):
        return block_model(_knobs(name, seed)).validate()
    if (Path(name) / HEADER).is_file():
        return read_mapped(name)
    if name.endswith(".npz") or Path(name).is_file():
        return read_graph(name)
    # Their publishers write Cora and ogbn-papers100M.
    if (known := {other.lower(): other for other in DATASETS}.get(name.lower())) is not None:
        return DATASETS[known].read()
    if Path(name).exists():
        return read_mapped(name)
    raise GraphError(
        f"dataset {name!r} is unknown; expected {', '.join(DATASETS)}, block:nodes=20000,..., or the path of "
        "an npz file or of a mapped graph"
    )


def _planetoid(name: str) -> Callable[[], GraphData]:
    def read() -> GraphData:
        planetoid = import_extra("torch_geometric.datasets", "gnn", name).Planetoid
        root = data_root() / "Planetoid"
        before = _folders(root / name)
        try:
            data = planetoid(root=str(root), name=name)[0]
        except (OSError, RuntimeError, ValueError) as error:
            _remove_empty(root / name, before)
            raise GraphError(
                f"cannot read or download {name} under {root}: {error}; set WIREWISE_DATA to the folder that "
                "holds Planetoid/, or try again with a network"
            ) from error
        return from_pyg(data, name=name.lower())

    return read


def _folders(path: Path) -> set[Path]:
    """The folder, those that hold it and those below it, of which there are some already."""
    return {each for each in (path, *path.parents, *path.rglob("*")) if each.is_dir()}


def _remove_empty(path: Path, before: set[Path]) -> None:
    """Remove folders that a failed download has made and left empty: what looks for the set would find it there."""
    for made in sorted(_folders(path) - before, key=lambda each: len(each.parts), reverse=True):
        with suppress(OSError):
            made.rmdir()


def _ogb(name: str) -> Callable[[], GraphData]:
    def read() -> GraphData:
        ogb = import_extra("ogb.nodeproppred", "ogb", name)
        try:
            dataset: Any = ogb.NodePropPredDataset(name, root=str(data_root()))
        except OSError as error:
            raise GraphError(
                f"cannot read or download {name} under {data_root()}: {error}; set WIREWISE_DATA to the "
                "folder that holds it, or try again with a network"
            ) from error
        return from_ogb(dataset, name=name)

    return read


def _knobs(text: str, seed: int) -> BlockModel:
    """Parse "block:nodes=20000,directed=true"."""
    types: dict[str, type] = {name: type(value) for name, value in dataclasses.asdict(BlockModel()).items()}
    knobs: dict[str, Any] = {"seed": seed}
    for item in filter(None, text.partition(":")[2].split(",")):
        key, _, value = item.partition("=")
        if key not in types:
            raise GraphError(f"{text!r} names the knob {key!r}; expected {', '.join(types)}")
        try:
            knobs[key] = _TRUTH[value.lower()] if types[key] is bool else types[key](value)
        except (ValueError, KeyError):
            raise GraphError(
                f"{text!r} gives {key} the value {value!r}; expected {types[key].__name__}"
            ) from None
    return BlockModel(**knobs)


DATASETS: dict[str, Dataset] = {
    "debian": Dataset(
        summary="Debian packages: 63,666 nodes, 58 sections as classes, dependencies used in both directions",
        source="shipped",
        read=lambda: dataclasses.replace(read_graph(_DEBIAN), name="debian"),
    ),
    "debian-directed": Dataset(
        summary="the same, edges from dependent to dependency only",
        source="shipped",
        read=lambda: graph_of(read_arrays(_DEBIAN), "debian-directed").validate(),
    ),
    "cora": Dataset(summary="citations, 2,708 nodes, 7 classes", source="Planetoid", read=_planetoid("Cora")),
    "citeseer": Dataset(
        summary="citations, 3,327 nodes, 6 classes", source="Planetoid", read=_planetoid("CiteSeer")
    ),
    **{
        name: Dataset(summary="Open Graph Benchmark node property set", source="ogb", read=_ogb(name))
        for name in _OGB
    },
}
