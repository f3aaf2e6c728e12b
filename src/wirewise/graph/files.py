"""Reading and writing array files so that a fault is named and never leaves half a file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.files import atomic_file
from wirewise.graph.data import GraphData, SparseRows

__all__ = ["graph_of", "read_arrays", "read_graph", "write_graph"]

_KEYS = "edge_index, (x or x_indptr and x_indices and num_features), y, split"


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file.

    Raises:
        GraphError: The file is missing, unreadable, truncated, not an npz file, or holds Python objects.
    """
    path = Path(path)
    try:
        # Opened here because NumPy leaves the file open when it is no archive.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                return {name: loaded[name] for name in loaded.files}
    except OSError as error:
        if error.errno is None:
            raise _broken(path, error) from error
        raise GraphError(
            f"cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise _broken(path, error) from error
    raise GraphError(f"{path} is a single array (npy); expected an npz file with {_KEYS}")


def _broken(path: Path, error: Exception) -> GraphError:
    return GraphError(
        f"{path} is no complete npz file ({error}); it may be truncated or hold Python objects, write it "
        "again with numpy.savez"
    )


def read_graph(path: str | Path) -> GraphData:
    """A user's graph from an npz file, checked.

    Keys: `edge_index` int [2, E]; `x` float [N, F], or `x_indptr`, `x_indices`, optional `x_data` and
    `num_features`; `y` int [N] or 0/1 [N, C]; `split` int [N]; optional `class_names`, `edge_weight` and
    `directed` (default False: every edge is used in both directions).

    Raises:
        GraphError: A key is missing, or an array is not what training needs.
    """
    path = Path(path)
    arrays = read_arrays(path)
    try:
        directed = "directed" in arrays and bool(arrays["directed"])
        # Checked before edges get their reverse, so that a message names the user's own edge number.
        data = graph_of(arrays, path.stem).validate()
        return data if directed else data.undirected()
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def graph_of(arrays: dict[str, NDArray[Any]], name: str) -> GraphData:
    """The arrays of a file as a directed graph, not yet checked beyond keys, types and dimensions."""
    missing = {"edge_index", "y", "split"} - arrays.keys()
    if "x" not in arrays:
        missing |= {"x_indptr", "x_indices", "num_features"} - arrays.keys()
    if missing:
        raise GraphError(
            f"{', '.join(sorted(missing))} missing; got {', '.join(sorted(arrays)) or 'nothing'}, "
            f"expected {_KEYS}"
        )
    y = arrays["y"]
    _expect(arrays, "y", "iufb" if y.ndim == 2 else "iu", (1, 2))
    _expect(arrays, "edge_index", "iu", (2,))
    _expect(arrays, "split", "iu", (1,))
    labels = y.astype(np.float32 if y.ndim == 2 else np.int64)
    names = tuple(str(c) for c in arrays["class_names"]) if "class_names" in arrays else None
    classes = labels.shape[1] if y.ndim == 2 else int(labels.max(initial=0)) + 1
    weight = arrays.get("edge_weight")
    split = arrays["split"]
    wrong = np.flatnonzero((split < 0) | (split > 255))
    if len(wrong):
        raise GraphError(f"split of node {wrong[0]} is {split[wrong[0]]}; expected 0, 1, 2 or 255")
    return GraphData(
        edge_index=arrays["edge_index"],
        x=_features_of(arrays),
        y=labels,
        split=split.astype(np.uint8),
        num_classes=len(names) if names is not None and y.ndim == 1 else classes,
        class_names=names,
        directed=True,
        edge_weight=None if weight is None else weight.astype(np.float32),
        name=name,
    )


def _features_of(arrays: dict[str, NDArray[Any]]) -> SparseRows | NDArray[np.float32]:
    if "x" in arrays:
        _expect(arrays, "x", "iufb", (2,))
        return arrays["x"].astype(np.float32)
    _expect(arrays, "x_indptr", "iu", (1,))
    _expect(arrays, "x_indices", "iu", (1,))
    _expect(arrays, "num_features", "iu", (0,))
    if "x_data" in arrays:
        _expect(arrays, "x_data", "iufb", (1,))
    return SparseRows(
        indptr=arrays["x_indptr"].astype(np.int64),
        indices=arrays["x_indices"].astype(np.int32),
        data=arrays["x_data"].astype(np.float32) if "x_data" in arrays else None,
        num_columns=int(arrays["num_features"]),
    )


def _expect(arrays: dict[str, NDArray[Any]], key: str, kinds: str, dimensions: tuple[int, ...]) -> None:
    array = arrays[key]
    if array.dtype.kind not in kinds or array.ndim not in dimensions:
        words = {"iu": "integers", "iufb": "numbers"}[kinds]
        shape = " or ".join(f"{d}" for d in dimensions)
        raise GraphError(
            f"{key} is {array.dtype} {list(array.shape)}; expected {words} with {shape} dimensions"
        )


def write_graph(data: GraphData, path: str | Path) -> None:
    """Write a graph as an npz file that `read_graph` reads back equal."""
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
