"""Convert graph files of other formats to mapped folders, block by block: npz, saved PyG `Data`, OGB folders."""

from __future__ import annotations

import gzip
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import GraphError
from wirewise.extras import import_extra
from wirewise.graph.blocks import blocks
from wirewise.graph.convert import labels_of, refuse_other_kinds
from wirewise.graph.data import NO_SPLIT, TEST, TRAIN, VALIDATION, GraphData
from wirewise.graph.files import as_float32, check_keys, damaged_file, expect
from wirewise.graph.foreign import is_sparse, to_numpy
from wirewise.graph.ingest import ArraySlot, GraphSource, Pairs, write_mapped, write_source
from wirewise.graph.splits import masks_of, split_of

__all__ = ["convert"]

_DAMAGED = (ValueError, EOFError, KeyError, SyntaxError, OverflowError, NotImplementedError, tokenize.TokenError,
            zipfile.BadZipFile, zlib.error)  # fmt: skip
_PYG_KEYS = {
    "edge_index",
    "x",
    "y",
    "split",
    "edge_weight",
    "num_nodes",
    "train_mask",
    "val_mask",
    "test_mask",
}
_SMALL_BYTES, _MOST_RATIO = 1 << 26, 8
"""Bytes that a tensor may have anyway, and times those of its file."""
_OGB_SPLITS = (("train", TRAIN), ("valid", VALIDATION), ("test", TEST))


def convert(name: str, folder: str | os.PathLike[str], *, seed: int = 0) -> GraphData:
    """Write a graph as a mapped folder, and return it mapped.

    An npz file (as for `read_graph`), a `Data` that was saved by `torch.save` (`.pt`; features stay dense) and the
    folder of a downloaded OGB set (that holds `raw` and `split`) are read in blocks; anything else is loaded by name
    first.

    Args:
        name: Path of such a file or folder, or a name known to `load`.
        folder: Folder for the output.
        seed: Seed of a generated graph whose name gives none.

    Raises:
        GraphError: The graph is unsuitable for training, the source is damaged, or the folder is not writable.
    """
    path = Path(name)
    if path.is_file() and path.suffix == ".pt":
        return _named(path, lambda: write_source(_pyg(path), folder))
    if path.is_file():
        return _named(path, lambda: write_source(_npz(path), folder))
    if (path / "raw").is_dir():
        return _named(path, lambda: write_source(_ogb(path), folder))
    from wirewise.graph.datasets import load

    return write_mapped(load(name, seed=seed), folder)


def _named(path: Path, make: Any) -> GraphData:
    try:
        found: GraphData = make()
        return found
    except GraphError as error:
        raise error if str(path) in str(error) else GraphError(f"{path}: {error}") from None
    except OSError as error:
        raise GraphError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except _DAMAGED as error:
        raise damaged_file(path, error) from error


class _Member:
    """One array of an npz file, read in blocks; its bytes must be as many as its header says."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        with zipfile.ZipFile(path) as archive, self._open(archive) as file:
            self.shape, self.fortran, self.dtype = _npy_header(file)
            size = file.tell() + self.dtype.itemsize * self.size
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(f"{name}.npy").file_size != size or self.dtype.hasobject:
                raise ValueError(f"{name} is {self.dtype} {list(self.shape)} and does not have that size")

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=object))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def whole(self) -> NDArray[Any]:
        values = np.concatenate([np.empty(0, self.dtype), *self.values(0, self.size)])
        return values.reshape(self.shape, order="F" if self.fortran else "C")

    def values(self, begin: int, end: int, width: int = 1) -> Iterator[NDArray[Any]]:
        """Values in the order of the file, `width` of them never apart."""
        with zipfile.ZipFile(self._path) as archive, self._open(archive) as file:
            _npy_header(file)
            _skip(file, begin * self.dtype.itemsize)
            for first, last in blocks((end - begin) // width, width):
                count = (last - first) * width
                raw = _exactly(file, count * self.dtype.itemsize)
                yield np.frombuffer(raw, self.dtype)
            # The archive's sum of a member is compared when its end is read.
            if end == self.size:
                file.read(1)

    def _open(self, archive: zipfile.ZipFile) -> IO[bytes]:
        return archive.open(f"{self._name}.npy")


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(file)
    return found


def _skip(file: IO[bytes], size: int) -> None:
    while size > 0:
        size -= len(_exactly(file, min(size, 1 << 22)))


def _exactly(file: IO[bytes], size: int) -> bytes:
    raw = file.read(size)
    if len(raw) != size:
        raise EOFError(f"{size - len(raw)} bytes are missing")
    return raw


def _npz(path: Path) -> GraphSource:
    with path.open("rb") as file:
        if not file.read(2).startswith(b"PK"):
            raise damaged_file(path, "it is no archive")
    with zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
    check_keys(names)
    large = {
        name: _Member(path, name)
        for name in names & {"edge_index", "edge_weight", "x", "x_indices", "x_data"}
    }
    nodes = {name: _Member(path, name).whole() for name in names - large.keys()}
    directed = "directed" in nodes and bool(expect(nodes, "directed", "iub", (0,)))
    nodes.pop("directed", None)
    edges = _edge_list(large["edge_index"], large.get("edge_weight"))
    features = {name: _rows(name, member) for name, member in large.items() if not name.startswith("edge")}
    if "x_indptr" in nodes:
        indptr = expect(nodes, "x_indptr", "iu", (1,)).astype(np.int64, copy=False)
        features["x_indptr"] = ArraySlot(np.int64, indptr.shape, lambda out: np.copyto(out, indptr))
        del nodes["x_indptr"]
    return GraphSource(
        name=path.stem,
        num_edges=large["edge_index"].shape[1],
        pairs=edges,
        weighted="edge_weight" in large,
        features=features,
        nodes=lambda: nodes,
        both=not directed,
        directed=directed,
    )


def _edge_list(member: _Member, weight: _Member | None) -> Any:
    """A function that gives the pairs of an `edge_index` [2, E]."""
    if member.ndim != 2 or member.shape[0] != 2 or member.dtype.kind not in "iu":
        raise GraphError(
            f"edge_index is {member.dtype} {list(member.shape)}; expected integers of shape [2, edges], the sources in "
            "the first row and the targets in the second"
        )
    count = member.shape[1]
    if weight is not None and (weight.shape != (count,) or weight.dtype.kind not in "iufb"):
        raise GraphError(
            f"edge_weight is {weight.dtype} {list(weight.shape)}; expected one number for each of {count} edges"
        )

    def pairs() -> Iterator[Pairs]:
        weights = iter(()) if weight is None else weight.values(0, count)
        if member.fortran:
            both: Any = (values.reshape(-1, 2).T for values in member.values(0, 2 * count, 2))
        else:
            both = zip(member.values(0, count), member.values(count, 2 * count), strict=True)
        held = np.empty(0, np.float32)
        for u, v in both:
            while weight is not None and len(held) < len(u):
                held = np.concatenate([held, as_float32({"edge_weight": next(weights)}, "edge_weight", (1,))])
            yield u, v, None if weight is None else held[: len(u)]
            held = held[len(u) :]

    return pairs


def _rows(name: str, member: _Member) -> ArraySlot:
    """An array of features as float32, or int32 where it holds columns."""
    columns = name == "x_indices"
    if member.ndim != (2 if name == "x" else 1) or member.dtype.kind not in ("iu" if columns else "iufb"):
        raise GraphError(
            f"{name} is {member.dtype} {list(member.shape)}; expected numbers, a row for each node"
        )
    width = member.shape[1] if name == "x" and not member.fortran else 1

    def fill(out: NDArray[Any]) -> None:
        flat: Any = out.T.flat if member.fortran and name == "x" else out.reshape(-1)
        at = 0
        for values in member.values(0, member.size, max(width, 1)):
            if columns and values.size and (values.min() < 0 or values.max() >= 1 << 31):
                wrong = values[(values < 0) | (values >= 1 << 31)][0]
                raise GraphError(f"{name} names column {wrong}; expected 0 to num_features - 1")
            end = at + len(values)
            flat[at:end] = values if columns else as_float32({name: values}, name, (1,))
            at = end

    return ArraySlot(np.int32 if columns else np.float32, member.shape, fill)


def _pyg(path: Path) -> GraphSource:
    import_extra("torch_geometric", "gnn", f"{path}")
    import torch
    from torch.serialization import safe_globals
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            held: Any = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # torch raises what its readers raise
        raise GraphError(
            f"it is no saved Data ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); expected a file "
            "that torch.save wrote of a Data or of its to_dict()"
        ) from error
    if isinstance(held, tuple | list) and held:
        held = held[0]
    if not isinstance(held, Mapping | Data):
        raise GraphError(
            f"it holds a {type(held).__name__}; expected a Data, its to_dict(), or a list of them, whose first is taken"
        )
    given = held if isinstance(held, Mapping) else held.to_dict()
    _expect_held(given, path.stat().st_size)
    refuse_other_kinds(SimpleNamespace(**{str(key): value for key, value in given.items()}))
    arrays = {str(key): _array(str(key), value) for key, value in given.items() if value is not None}
    if missing := [key for key in ("edge_index", "x", "y") if key not in arrays]:
        raise GraphError(
            f"the Data object has no {', '.join(missing)}; expected edge_index, x, y and masks or split"
        )
    if further := sorted(arrays.keys() - _PYG_KEYS):
        raise GraphError(
            f"the Data object has {', '.join(further)}, which a mapped graph does not hold; expected one without, or "
            "train on it by wirewise.integrations.pyg"
        )
    y = _classes(arrays["y"])
    if (nodes := _count(arrays.get("num_nodes", len(y)))) != len(y):
        raise GraphError(f"num_nodes is {nodes} and y has {len(y)} rows; expected as many")
    attributes = SimpleNamespace(**arrays)
    split = split_of(attributes, len(y), masks_of(attributes, len(y), None))
    return _of_arrays(path.stem, arrays["edge_index"], arrays["x"], y, split, arrays.get("edge_weight"))


def _expect_held(given: Mapping[Any, Any], file_bytes: int) -> None:
    """Refuse tensors that repeat what the file holds: a file of 1 kB may say that it has gigabytes."""
    for key, value in given.items():
        if getattr(value, "numel", None) is None or is_sparse(value):
            continue
        size_bytes = value.numel() * value.element_size()
        if size_bytes > max(_SMALL_BYTES, _MOST_RATIO * file_bytes):
            raise GraphError(
                f"{key} is {list(value.shape)}, {size_bytes} bytes, in a file of {file_bytes}; expected a tensor that "
                "is held whole: save its contiguous()"
            )


def _count(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"num_nodes is {value}; expected one whole number") from error


def _array(key: str, value: Any) -> Any:
    """A value of a Data object as an array; the number of nodes stays a number."""
    if key == "num_nodes":
        return value
    if getattr(value, "is_floating_point", bool)() and not is_sparse(value):
        # A mapped graph holds float32, and NumPy knows no bfloat16.
        value = value.float()
    try:
        array = to_numpy(value)
    except ValueError as error:
        raise GraphError(f"{key} is a {type(value).__name__} with uneven rows; expected a tensor") from error
    if key in _PYG_KEYS and (array.ndim == 0 or array.dtype.kind not in "biuf"):
        raise GraphError(
            f"{key} is {array.dtype} {list(array.shape)}; expected a tensor of numbers with a row for each node or edge"
        )
    return array


def _classes(y: NDArray[Any]) -> NDArray[Any]:
    single_column = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if single_column.dtype.kind == "f":
        known = single_column[~np.isnan(single_column)]
        if bool((known != np.floor(known)).any()):
            raise GraphError("y holds real values; expected classes: a mapped graph holds no other labels")
    return labels_of(y)


def _of_arrays(
    name: str,
    edge_index: NDArray[Any],
    x: NDArray[Any],
    y: NDArray[Any],
    split: NDArray[Any],
    weight: NDArray[Any] | None,
) -> GraphSource:
    """Arrays that are mapped or in memory; directed unless every edge has its reverse."""

    def pairs() -> Iterator[Pairs]:
        for begin, end in blocks(edge_index.shape[1]):
            held = (
                None
                if weight is None
                else as_float32({"edge_weight": weight[begin:end]}, "edge_weight", (1,))
            )
            yield edge_index[0, begin:end], edge_index[1, begin:end], held

    def fill(out: NDArray[Any]) -> None:
        for begin, end in blocks(len(x), x.shape[1]):
            out[begin:end] = as_float32({"x": x[begin:end]}, "x", (2,))

    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu" or x.ndim != 2:
        raise GraphError(
            f"edge_index is {edge_index.dtype} {list(edge_index.shape)} and x {list(x.shape)}; expected integers of "
            "shape [2, edges] and numbers of shape [nodes, features]"
        )
    return GraphSource(
        name=name,
        num_edges=edge_index.shape[1],
        pairs=pairs,
        weighted=weight is not None,
        features={"x": ArraySlot(np.float32, (len(x), x.shape[1]), fill)},
        nodes=lambda: {"y": y, "split": np.asarray(split)},
        directed=None,
    )


def _ogb(path: Path) -> GraphSource:
    """A downloaded set: `raw` holds `data.npz` and `node-label.npz`, or `edge.csv.gz`, `node-feat.csv.gz`, ..."""
    raw = path / "raw"
    splits = sorted(folder for folder in (path / "split").glob("*") if folder.is_dir())
    if len(splits) != 1:
        raise GraphError(
            f"{path / 'split'} holds {len(splits)} splits; expected one folder with train, valid and test"
        )
    if (raw / "data.npz").is_file():
        edges, x = _Member(raw / "data.npz", "edge_index"), _Member(raw / "data.npz", "node_feat")
        with zipfile.ZipFile(raw / "node-label.npz") as archive:
            label = archive.namelist()[0].removesuffix(".npy")
        y = _classes(_Member(raw / "node-label.npz", label).whole())
        pairs, count, features = _edge_list(edges, None), edges.shape[1], _rows("x", x)
    else:
        count = int(_text(raw / "num-edge-list.csv.gz", np.int64)[0])
        y = _classes(_text(raw / "node-label.csv.gz", np.float64))
        pairs, features = (
            _text_pairs(raw / "edge.csv.gz", count),
            _text_features(raw / "node-feat.csv.gz", len(y)),
        )
    split = np.full(len(y), NO_SPLIT, np.uint8)
    for name, value in _OGB_SPLITS:
        split[_text(splits[0] / f"{name}.csv.gz", np.int64).ravel()] = value
    return GraphSource(
        name=path.name.replace("_", "-"),
        num_edges=count,
        pairs=pairs,
        weighted=False,
        features={"x": features},
        nodes=lambda: {"y": y, "split": split},
        directed=None,
    )


def _text(path: Path, dtype: Any) -> NDArray[Any]:
    """A whole text file of numbers, [lines, columns] or [lines]."""
    with gzip.open(path, "rt") as file:
        lines = file.readlines()
    # NumPy warns of a file without lines, as a split may be.
    found: NDArray[Any] = (
        np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=1) if lines else np.empty(0, dtype)
    )
    return found


def _lines(path: Path, count: int, dtype: Any) -> Iterator[NDArray[Any]]:
    """Lines of a text file of numbers in blocks, [lines, columns]."""
    with gzip.open(path, "rt") as file:
        first = np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2, max_rows=1)
        yield first
        for begin, end in blocks(count - 1, first.shape[1]):
            found = np.loadtxt(file, dtype=dtype, delimiter=",", ndmin=2, max_rows=end - begin)
            if len(found) != end - begin:
                raise EOFError(f"{path} has fewer than {count} lines")
            yield found


def _text_pairs(path: Path, count: int) -> Any:
    def pairs() -> Iterator[Pairs]:
        for found in _lines(path, count, np.int64):
            yield found[:, 0], found[:, 1], None

    return pairs


def _text_features(path: Path, nodes: int) -> ArraySlot:
    with gzip.open(path, "rt") as file:
        width = len(file.readline().split(","))

    def fill(out: NDArray[Any]) -> None:
        at = 0
        for found in _lines(path, nodes, np.float32):
            out[at : at + len(found)] = found
            at += len(found)

    return ArraySlot(np.float32, (nodes, width), fill)
