"""Read and write array files atomically, with errors that name the fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.decoding import ArchiveError, read_npz
from wirewise.errors import GraphError
from wirewise.files import atomic_file
from wirewise.graph.data import VALIDATION, GraphData, SparseRows

__all__ = [
    "as_float32",
    "check_keys",
    "damaged_file",
    "edge_notes",
    "expect",
    "graph_of",
    "read_arrays",
    "read_graph",
    "unsupported_parts",
    "write_graph",
]

_ZIP, _NPY = b"PK", b"\x93NUMPY"
_FEW_CLASSES = 1000
"""Classes that a graph of fewer nodes may have without names; more point to labels that are no class numbers."""
_READ = frozenset(
    ("edge_index", "x", "x_indptr", "x_indices", "x_data", "num_features", "y", "split", "class_names", "edge_weight",
     "directed")
)  # fmt: skip
_KEYS = "edge_index, (x or x_indptr and x_indices and num_features), y, split"


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz file.

    Raises:
        GraphError: The file is missing, unreadable, truncated, not an npz file, or holds Python objects.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(len(_NPY))
        if head.startswith(_ZIP):
            return read_npz(path)
    except OSError as error:
        if error.errno is None:
            raise damaged_file(path, error) from error
        raise GraphError(
            f"cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error
    except ArchiveError as error:
        raise damaged_file(path, error) from error
    if not head.startswith(_NPY):
        raise damaged_file(path, f"it begins with {head!r}, an npz file with {_ZIP!r}")
    raise GraphError(f"{path} is a single array (npy); expected an npz file with {_KEYS}")


def damaged_file(path: Path, reason: object) -> GraphError:
    """Error for an npz file that is damaged, and how."""
    return GraphError(
        f"{path} is no complete npz file ({reason}); it may be truncated or hold Python objects, write it "
        "again with numpy.savez"
    )


def read_graph(path: str | Path) -> GraphData:
    """Read a user's graph from an npz file, and check it.

    Keys: `edge_index` int [2, E]; `x` float [N, F], or `x_indptr`, `x_indices`, optional `x_data` and
    `num_features`; `y` int [N] or 0/1 [N, C]; `split` int [N]; optional `class_names`, `edge_weight` and
    `directed` (default False: every edge is used in both directions). Self loops are left out and repeated edges
    merged, their weights added; `notes` of the result says how many.

    Raises:
        GraphError: A key is missing or unknown, or an array is unsuitable for training.
    """
    path = Path(path)
    arrays = read_arrays(path)
    try:
        directed = "directed" in arrays and bool(expect(arrays, "directed", "iub", (0,)))
        # Checked before edges get their reverse, so that a message names the user's own edge number.
        data = graph_of(arrays, path.stem).validate()
        loops = int(np.count_nonzero(data.edge_index[0] == data.edge_index[1]))
        repeated = data.num_edges - loops - len(data.simple_in_edges.indices)
        data = dataclasses.replace(data, notes=edge_notes(data, loops, repeated, data.edge_weight))
        return data if directed else data.undirected()
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def graph_of(arrays: dict[str, NDArray[Any]], name: str) -> GraphData:
    """Build a directed graph from the arrays of a file, checked only for keys, types and dimensions."""
    check_keys(arrays.keys())
    y = arrays["y"]
    expect(arrays, "y", "iufb" if y.ndim == 2 else "iu", (1, 2))
    expect(arrays, "edge_index", "iu", (2,))
    expect(arrays, "split", "iu", (1,))
    labels = y.astype(np.float32 if y.ndim == 2 else np.int64, copy=False)
    names = None
    if "class_names" in arrays:
        names = tuple(str(name) for name in expect(arrays, "class_names", "US", (1,)))
    classes = labels.shape[1] if y.ndim == 2 else _count_classes(labels, names)
    weight = as_float32(arrays, "edge_weight", (1,)) if "edge_weight" in arrays else None
    split = arrays["split"]
    wrong = np.flatnonzero((split < 0) | (split > 255))
    if len(wrong):
        raise GraphError(f"split of node {wrong[0]} is {split[wrong[0]]}; expected 0, 1, 2 or 255")
    return GraphData(
        edge_index=arrays["edge_index"],
        x=_features_of(arrays),
        y=labels,
        split=split.astype(np.uint8),
        num_classes=classes,
        class_names=names,
        directed=True,
        edge_weight=weight,
        name=name,
    )


def check_keys(names: AbstractSet[str]) -> None:
    """Raise GraphError unless the names are those of a graph file."""
    missing = {"edge_index", "y", "split"} - names
    if "x" not in names:
        missing |= {"x_indptr", "x_indices", "num_features"} - names
    if missing:
        raise GraphError(
            f"{', '.join(sorted(missing))} missing; got {', '.join(sorted(names)) or 'nothing'}, "
            f"expected {_KEYS}"
        )
    if unknown := sorted(names - _READ):
        raise GraphError(
            f"{', '.join(unknown)} is not read and would be lost; expected {_KEYS}, optional x_data, class_names, "
            "edge_weight and directed: leave out the others"
        )


def edge_notes(
    data: GraphData, loops: int, repeated: int, weight: NDArray[np.float32] | None
) -> tuple[str, ...]:
    """Notes on edges changed when a file with weights `weight` was read, and on what its training lacks."""
    notes = [f"{loops} self loops are left out"] if loops else []
    notes += [f"{repeated} repeated edges are merged into those that they repeat"] if repeated else []
    if weight is not None and (low := int(np.count_nonzero(weight <= 0))):
        notes.append(f"{low} edges weigh zero or less, the least {weight.min():g}")
    if data.count(VALIDATION) == 0:
        notes.append("no node has split 1 (validation): no result can be chosen by validation accuracy")
    return tuple(notes)


def _features_of(arrays: dict[str, NDArray[Any]]) -> SparseRows | NDArray[np.float32]:
    if "x" in arrays:
        return as_float32(arrays, "x", (2,))
    rows = SparseRows(
        indptr=expect(arrays, "x_indptr", "iu", (1,)).astype(np.int64, copy=False),
        indices=expect(arrays, "x_indices", "iu", (1,)),
        data=as_float32(arrays, "x_data", (1,)) if "x_data" in arrays else None,
        num_columns=int(expect(arrays, "num_features", "iu", (0,))),
    )
    # Checked before the cast, which would turn a column of 2^32 into column 0.
    rows.validate()
    return dataclasses.replace(rows, indices=rows.indices.astype(np.int32, copy=False))


def _count_classes(labels: NDArray[Any], names: tuple[str, ...] | None) -> int:
    """Classes of single labels: as many as there are names, else the largest label and one."""
    if names is not None:
        return len(names)
    classes = int(labels.max(initial=0)) + 1
    if classes > max(len(labels), _FEW_CLASSES):
        raise GraphError(
            f"y of node {labels.argmax()} is {classes - 1}, which makes {classes} classes of {len(labels)} nodes; "
            "number the classes from 0 without gaps, or name all of them in class_names"
        )
    return classes


def as_float32(arrays: dict[str, NDArray[Any]], key: str, dimensions: tuple[int, ...]) -> NDArray[np.float32]:
    """Convert an array of numbers to float32; GraphError if a finite value overflows."""
    wide = expect(arrays, key, "iufb", dimensions)
    if wide.dtype == np.float32:
        return wide
    with np.errstate(over="ignore"):
        single = wide.astype(np.float32)
    over = np.argwhere(np.isinf(single) & np.isfinite(wide))
    if len(over):
        place = tuple(over[0].tolist())
        raise GraphError(
            f"{key}{list(place)} is {wide[place]}; expected numbers that float32 can hold, up to 3.4e38, "
            "scale them before saving"
        )
    return single


def expect(
    arrays: dict[str, NDArray[Any]], key: str, kinds: str, dimensions: tuple[int, ...]
) -> NDArray[Any]:
    """Get the array `key`; GraphError unless its type is one of NumPy's `kinds` and its dimensions match."""
    array = arrays[key]
    if array.dtype.kind not in kinds or array.ndim not in dimensions:
        words = {"iu": "integers", "iub": "a truth value", "iufb": "numbers", "US": "texts"}[kinds]
        shape = " or ".join(f"{d}" for d in dimensions)
        raise GraphError(
            f"{key} is {array.dtype} {list(array.shape)}; expected {words} with {shape} dimensions"
        )
    return array


def unsupported_parts(data: GraphData) -> str:
    """Parts of a graph that an npz file would lose, in words."""
    lost = [f"{name} of edges" for name in data.edge_data if name != "edge_weight"]
    held = {"y", "train_mask", "val_mask", "test_mask"}
    lost += [f"{name} of nodes" for name in data.node_data if name not in held]
    if data.multigraph and data.num_edges > len(data.simple_in_edges.indices):
        lost.append("self loops and repeated edges")
    return ", ".join(lost)


def write_graph(data: GraphData, path: str | Path) -> None:
    """Write a graph as an npz file that `read_graph` reads back equal.

    Raises:
        GraphError: The graph has loops, repeated edges or data that such a file cannot hold, or the disk is not
            writable.
    """
    if lost := unsupported_parts(data):
        raise GraphError(
            f"a graph file does not hold {lost}; expected a graph without: write parts with save_parts, which hold all"
        )
    arrays: dict[str, Any] = {
        "edge_index": data.edge_index,
        "y": data.y,
        "split": data.split,
        "directed": np.bool_(data.directed),
    }
    if isinstance(data.x, SparseRows):
        arrays |= {"x_indptr": data.x.indptr, "x_indices": data.x.indices, "num_features": data.x.num_columns}
        if data.x.data is not None:
            arrays["x_data"] = data.x.data
    else:
        arrays["x"] = data.x
    if data.class_names is not None:
        arrays["class_names"] = np.array(data.class_names)
    if data.edge_weight is not None:
        arrays["edge_weight"] = data.edge_weight
    with atomic_file(path, error=GraphError) as file:
        np.savez_compressed(file, **arrays)
