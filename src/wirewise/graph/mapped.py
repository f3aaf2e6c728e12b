"""Graphs as folders of memory-mapped arrays: each process reads only the pages it touches, and all share one copy.

A folder holds `indptr.npy` (start of each node's in-edges, [N + 1]), `edge_index.npy` (sources, then targets of the
edges by target and source, [2, E]; its first row is the CSR's), `x.npy` (or `x_indptr`, `x_indices`, `x_data`),
`y.npy`, `split.npy`, perhaps `edge_weight.npy`, and `graph.json`, which is written last and names each file's type,
shape, size, digest and modification time. A folder without it is incomplete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.decoding import decode_json
from wirewise.errors import GraphError
from wirewise.files import atomic_file, make_folder
from wirewise.graph.data import GraphData, SparseRows

__all__ = [
    "HEADER",
    "GraphWriter",
    "MappedArray",
    "MappedHeader",
    "map_of",
    "read_header",
    "read_mapped",
    "watch",
]

HEADER = "graph.json"
"""Header file of a mapped graph's folder."""
_VERSION = 1
_BLOCK_BYTES = 1 << 24
_HINT = "write the folder again with `wirewise data convert`"


class MappedArray(msgspec.Struct, frozen=True, kw_only=True):
    """File of a mapped graph."""

    dtype: str
    shape: list[int]
    size_bytes: int
    digest: str
    """BLAKE2b of the whole file."""
    modified_ns: int
    """Modification time; if it differs, the digest is compared."""


class MappedHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of a mapped folder's `graph.json`."""

    version: int
    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    directed: bool
    class_names: list[str] | None
    notes: list[str]
    arrays: dict[str, MappedArray]


class GraphWriter:
    """Writer of a mapped graph; files get their final names when `finish` is called.

    Args:
        folder: Output folder; its header is removed first, so that it is no valid graph until the new one is
            complete.

    Raises:
        GraphError: The folder is not writable.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = make_folder(folder, error=GraphError)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._scratch = 0

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._arrays.clear()
        for left in self.folder.glob(f".*.{os.getpid()}.tmp"):
            left.unlink(missing_ok=True)

    def array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Create an array of the graph, mapped for writing, with disk space reserved."""
        self._arrays[name] = self._new(name, dtype, shape)
        return np.asarray(self._arrays[name])

    def scratch(self, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Create a temporary array, freed with its last reference."""
        self._scratch += 1
        name = f"scratch-{self._scratch}"
        array = self._new(name, dtype, shape)
        self._path(name).unlink(missing_ok=True)
        return np.asarray(array)

    def finish(self, graph: GraphData) -> GraphData:
        """Put all files in place, the header last, and return the graph, mapped."""
        header = self.folder / HEADER
        facts = {}
        try:
            header.unlink(missing_ok=True)
            for key, array in self._arrays.items():
                if isinstance(array, np.memmap):
                    array.flush()
                path = self.folder / f"{key}.npy"
                self._path(key).replace(path)
                found = path.stat()
                facts[key] = MappedArray(
                    dtype=array.dtype.str,
                    shape=list(array.shape),
                    size_bytes=found.st_size,
                    digest=_digest(path),
                    modified_ns=found.st_mtime_ns,
                )
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        self._arrays.clear()
        record = MappedHeader(
            version=_VERSION,
            name=graph.name,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            directed=graph.directed,
            class_names=None if graph.class_names is None else list(graph.class_names),
            notes=list(graph.notes),
            arrays=facts,
        )
        with atomic_file(header, error=GraphError) as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        return read_mapped(self.folder)

    def _path(self, name: str) -> Path:
        return self.folder / f".{name}.{os.getpid()}.tmp"

    def _new(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        path, kind = self._path(name), np.dtype(dtype)
        try:
            if not all(shape):
                with path.open("wb") as file:
                    np.save(file, np.empty(shape, kind))
                return np.empty(shape, kind)
            with path.open("wb") as file:
                np.lib.format.write_array_header_1_0(
                    file, {"descr": kind.str, "fortran_order": False, "shape": shape}
                )
                offset = file.tell()
                # Otherwise a full disk would show as a signal, when a page is written.
                os.posix_fallocate(
                    file.fileno(), 0, offset + kind.itemsize * int(np.prod(shape, dtype=object))
                )
            return np.memmap(path, dtype=kind, mode="r+", offset=offset, shape=shape)
        except OSError as error:
            raise _unwritable(self.folder, error) from error


def _unwritable(folder: Path, error: OSError) -> GraphError:
    return GraphError(
        f"cannot write {folder}: {error.strerror or error}; free space or choose another folder that can be written"
    )


def read_header(folder: str | os.PathLike[str]) -> MappedHeader:
    """Read the header of a mapped graph; GraphError if it is missing, malformed or of another version."""
    path = Path(folder) / HEADER
    try:
        header = decode_json(path.read_bytes(), MappedHeader)
    except FileNotFoundError:
        raise GraphError(f"{folder} has no {HEADER}; it is no complete mapped graph, {_HINT}") from None
    except OSError as error:
        raise GraphError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    except msgspec.DecodeError as error:
        raise GraphError(f"{path} is malformed ({error}); {_HINT}") from error
    if header.version != _VERSION:
        raise GraphError(f"{path} has format {header.version}; expected {_VERSION}, {_HINT}")
    features = {"x"} if "x" in header.arrays else {"x_indptr", "x_indices"}
    if missing := sorted({"indptr", "edge_index", "y", "split", *features} - header.arrays.keys()):
        raise GraphError(f"{path} names no {', '.join(missing)}; expected all arrays of a graph, {_HINT}")
    return header


def read_mapped(
    folder: str | os.PathLike[str], *, verify: bool = False, writeable: bool = False
) -> GraphData:
    """Open the graph of a folder, with its arrays mapped for reading.

    Args:
        folder: Folder that `wirewise data convert`, `wirewise data generate` or `graph.write_mapped` wrote.
        verify: Compare every file with its digest, and check the graph. If False, only sizes are compared, and
            digests of files with a changed modification time.
        writeable: Map arrays copy-on-write, as tensors require; writes are private to this process.

    Raises:
        GraphError: A file is missing, truncated or changed; the message names it.
    """
    folder = Path(folder)
    header = read_header(folder)
    found = {
        name: _open(folder / f"{name}.npy", fact, verify, writeable) for name, fact in header.arrays.items()
    }
    x: SparseRows | NDArray[np.float32]
    if "x" in found:
        x = found["x"]
    else:
        x = SparseRows(
            indptr=found["x_indptr"],
            indices=found["x_indices"],
            data=found.get("x_data"),
            num_columns=header.num_features,
        )
    data = GraphData(
        edge_index=found["edge_index"],
        indptr=found["indptr"],
        x=x,
        y=found["y"],
        split=found["split"],
        num_classes=header.num_classes,
        class_names=None if header.class_names is None else tuple(header.class_names),
        directed=header.directed,
        edge_weight=found.get("edge_weight"),
        name=header.name,
        notes=tuple(header.notes),
    )
    if (data.num_nodes, data.num_edges, data.num_features) != (
        header.num_nodes,
        header.num_edges,
        header.num_features,
    ):
        raise GraphError(
            f"{folder} has {data.num_nodes} nodes, {data.num_edges} edges and {data.num_features} features, and "
            f"{HEADER} says {header.num_nodes}, {header.num_edges} and {header.num_features}; {_HINT}"
        )
    return data.validate() if verify else data


def _open(path: Path, fact: MappedArray, verify: bool, writeable: bool) -> NDArray[Any]:
    try:
        found = path.stat()
        if found.st_size != fact.size_bytes:
            raise GraphError(
                f"{path} has {found.st_size} bytes and {HEADER} says {fact.size_bytes}; the file was cut short or "
                f"changed, {_HINT}"
            )
        if (verify or found.st_mtime_ns != fact.modified_ns) and _digest(path) != fact.digest:
            raise GraphError(f"{path} was changed after it was written (its digest differs); {_HINT}")
        mode: Any = None if not all(fact.shape) else "c" if writeable else "r"
        array = np.load(path, mmap_mode=mode, allow_pickle=False)
    except OSError as error:
        raise GraphError(f"cannot read {path}: {error.strerror or error}; {_HINT}") from error
    except ValueError as error:
        raise GraphError(f"{path} is no array file ({error}); {_HINT}") from error
    if array.dtype.str != fact.dtype or list(array.shape) != fact.shape:
        raise GraphError(
            f"{path} is {array.dtype} {list(array.shape)} and {HEADER} says {fact.dtype} {fact.shape}; {_HINT}"
        )
    # A plain array on the same map: every slice of a memmap is one again, at ten times the cost.
    return np.asarray(array)


def map_of(array: Any) -> Path | None:
    """File that backs an array. None if the array is in memory."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return Path(array.filename) if array is not None and array.filename else None


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def watch(folder: str | os.PathLike[str]) -> Callable[[], None]:
    """Return a function that raises GraphError once a file of the folder has changed; a call takes microseconds.

    Readers of a map call it from time to time: a page missing from a truncated file kills the process with SIGBUS,
    and a changed one would go unnoticed.
    """
    folder = Path(folder)
    names = [HEADER, *(f"{name}.npy" for name in read_header(folder).arrays)]
    before = {folder / name: _state(folder / name) for name in names}

    def check() -> None:
        for path, state in before.items():
            if (now := _state(path)) != state:
                how = (
                    "was written to"
                    if now[:1] == state[:1]
                    else f"has {sum(now[:1])} bytes, before {sum(state[:1])}"
                )
                raise GraphError(
                    f"{path} changed while it was in use: it {how if now else 'is gone'}; expected the files of "
                    "a mapped graph to stay as they are while a job reads them, start again"
                )

    return check


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_size, found.st_mtime_ns, found.st_ino
