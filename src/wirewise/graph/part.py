"""One rank's piece of a partitioned graph, and the files that hold the pieces.

A partitioned graph is a folder of `part-0.npz`, `part-1.npz`, ... and `meta.json`. Parts are made and written
one by one, and a training process reads its own only. Dense features of a mapped graph are files of their own,
`part-0.x.npy`, ..., which are written in blocks and mapped. `meta.json` is written last: a folder without it is
incomplete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.decoding import decode_json
from wirewise.errors import GraphError
from wirewise.files import atomic_file, make_folder
from wirewise.graph import halo
from wirewise.graph.blocks import blocks
from wirewise.graph.data import TEST, TRAIN, VALIDATION, GraphData, SparseRows
from wirewise.graph.files import read_arrays
from wirewise.graph.mapped import map_of
from wirewise.graph.partition import check_assignment
from wirewise.graph.structure import out_degrees

__all__ = [
    "FORMAT_VERSION",
    "Part",
    "PartsMeta",
    "edge_weights",
    "load_part",
    "read_meta",
    "save_parts",
    "split_graph",
]

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """Nodes owned by one rank, their in-edges, and the halo rows that these need."""

    rank: int
    num_parts: int
    num_nodes: int
    """Nodes of the whole graph; the next three counts are of the whole graph, too."""
    num_features: int
    num_classes: int
    multilabel: bool
    directed: bool
    train_count: int
    validation_count: int
    test_count: int
    num_own: int
    num_central: int
    num_halo: int
    fingerprint: str
    """Hash of graph and assignment: equal on all ranks of a job."""
    own_ids: NDArray[np.int64]
    """Global ids of own nodes, [own]: central nodes (no in-neighbour elsewhere), then marginal ones; ascending inside
    each."""
    halo_ids: NDArray[np.int64]
    """Global ids of halo rows, [halo], by owning rank, ascending inside each."""
    halo_offsets: NDArray[np.int64]
    """Start of each owner's halo rows, [parts + 1]: those of rank q are `halo_offsets[q]` to `halo_offsets[q + 1]`."""
    send_index: NDArray[np.int32]
    """Indices of own rows to send, [sends], by receiving rank, in the order of the receiver's halo rows."""
    send_offsets: NDArray[np.int64]
    """Start of each part's rows in the list of sent rows, [parts + 1]."""
    indptr: NDArray[np.int64]
    """Start of each own node's in-edges, [own + 1]."""
    indices: NDArray[np.int32]
    """Sorted columns of the in-edges, [edges]: below `num_own` an own row, else `num_own` plus a halo row.

    Without self loops and duplicates, except in a multigraph."""
    edge_weight: NDArray[np.float32] | None
    """Weight of each edge, [edges]. None if every edge has weight 1."""
    in_degree: NDArray[np.int64]
    """Degrees in the whole graph, [own + halo]: of the kept edges, so without self loops except in a multigraph."""
    out_degree: NDArray[np.int64]
    x: SparseRows | NDArray[np.float32]
    """Input features, [own + halo, features]. They never change, so those of the halo are stored with the part."""
    y: NDArray[Any]
    """Labels, int64 [own] or float32 [own, classes]."""
    split: NDArray[np.uint8]
    """Split of each own node, [own]: 0 train, 1 validation, 2 test, 255 none."""
    edge_id: NDArray[np.int64] | None = None
    """Column of the graph's edge list for each edge, [edges]. None if edges were merged."""
    num_loops: int = 0
    """Self loops of the whole graph."""
    edge_data: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Rows [edges, ...] by name, in the order of `indices`."""
    node_data: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Rows [own, ...] by name."""

    @property
    def num_edges(self) -> int:
        """In-edges of own nodes."""
        return len(self.indices)

    @property
    def num_send(self) -> int:
        """Rows sent in one exchange."""
        return len(self.send_index)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        values = [*vars(self).values(), *self.edge_data.values(), *self.node_data.values()]
        return sum(int(value.nbytes) for value in values if hasattr(value, "nbytes"))

    def save(self, folder: str | Path) -> Path:
        """Write `part-RANK.npz` atomically and return its path; `save_parts` writes a whole folder.

        Raises:
            GraphError: The folder is not writable; no partial file remains.
        """
        path = make_folder(folder, error=GraphError) / _file_name(self.rank)
        with atomic_file(path, error=GraphError) as file:
            np.savez(file, **_to_arrays(self, in_file=map_of(self.x) == path.with_suffix(".x.npy")))
        return path

    @classmethod
    def load(cls, folder: str | Path, rank: int, num_parts: int | None = None) -> Part:
        """Read the part of one rank.

        Args:
            folder: Folder that `save_parts` wrote.
            rank: Rank whose part to read.
            num_parts: World size of the job, which the folder must match. None if it is not checked.

        Raises:
            GraphError: The folder is incomplete, the file truncated, or from another graph or world size.
        """
        meta = read_meta(folder)
        if num_parts is not None and num_parts != meta.num_parts:
            raise GraphError(
                f"{folder} holds {meta.num_parts} parts and the job has {num_parts} ranks; start "
                f"{meta.num_parts} ranks or partition the graph into {num_parts} parts"
            )
        if not 0 <= rank < meta.num_parts:
            raise GraphError(
                f"rank {rank} asks for its part, but {folder} holds {meta.num_parts} parts (ranks 0 to "
                f"{meta.num_parts - 1}); start {meta.num_parts} ranks or partition again"
            )
        path = Path(folder) / _file_name(rank)
        expected_bytes = meta.parts[rank]["size_bytes"]
        if path.exists() and path.stat().st_size != expected_bytes:
            raise GraphError(
                f"{path} has {path.stat().st_size} bytes and meta.json says {expected_bytes}; the file is "
                "truncated or from another run, write the parts again"
            )
        part = _from_arrays(read_arrays(path), path, meta.parts[rank].get("features_bytes", 0))
        for name, got, wanted in (
            ("rank", part.rank, rank),
            ("num_parts", part.num_parts, meta.num_parts),
            ("fingerprint", part.fingerprint, meta.fingerprint),
        ):
            if got != wanted:
                raise GraphError(
                    f"{path} has {name} {got}; meta.json expects {wanted}, write the parts again"
                )
        return part


class PartsMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `meta.json` in a folder of parts."""

    version: int
    num_parts: int
    fingerprint: str
    graph: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    directed: bool
    parts: list[dict[str, int]]
    """Counts of each rank: own, central, halo, send, edges, train, size_bytes, and features_bytes where those are a
    file of their own."""


def split_graph(data: GraphData, assignment: NDArray[Any], *, num_parts: int | None = None) -> Iterator[Part]:
    """Make the parts of a graph, one at a time.

    Args:
        data: Graph that is valid.
        assignment: Owner of each node, int [nodes].
        num_parts: Number of parts. Defaults to the largest owner plus one.

    Raises:
        GraphError: The assignment does not fit the graph, or a part would be empty.
    """
    return _split(data, assignment, num_parts, lambda rows, rank: _rows_of(data.x, rows))


def _rows_of(
    x: SparseRows | NDArray[np.float32], rows: NDArray[np.int64]
) -> SparseRows | NDArray[np.float32]:
    return x.rows(rows) if isinstance(x, SparseRows) else x[rows].astype(np.float32, copy=False)


def _split(
    data: GraphData,
    assignment: NDArray[Any],
    num_parts: int | None,
    features: Callable[[NDArray[np.int64], int], SparseRows | NDArray[np.float32]],
) -> Iterator[Part]:
    """The parts of a graph, with what `features` gives for the nodes of a rank."""
    assignment = check_assignment(assignment, data.num_nodes, num_parts)
    num_parts = int(assignment.max()) + 1
    needed, marginal, _ = halo.needs(data.in_edges, assignment, num_parts)
    fingerprint = _fingerprint(data, assignment)
    in_degree = np.diff(data.in_edges.indptr)
    out_degree = out_degrees(data.in_edges)
    number = np.empty(data.num_nodes, dtype=np.int32)
    loops = int(np.count_nonzero(data.edge_index[0] == data.edge_index[1])) if data.multigraph else 0
    for rank in range(num_parts):
        halo_ids, halo_offsets = halo.halo_of(needed, assignment, rank)
        local = halo.local_edges(
            data.in_edges, assignment, rank, halo_ids, marginal, number, positions=data.multigraph
        )
        send_index, send_offsets = halo.sends_of(needed, local.own_ids)
        rows = np.concatenate([local.own_ids, halo_ids])
        yield Part(
            rank=rank,
            num_parts=num_parts,
            num_nodes=data.num_nodes,
            num_features=data.num_features,
            num_classes=data.num_classes,
            multilabel=data.multilabel,
            directed=data.directed,
            train_count=data.count(TRAIN),
            validation_count=data.count(VALIDATION),
            test_count=data.count(TEST),
            num_own=len(local.own_ids),
            num_central=local.num_central,
            num_halo=len(halo_ids),
            fingerprint=fingerprint,
            own_ids=local.own_ids,
            halo_ids=halo_ids,
            halo_offsets=halo_offsets,
            send_index=send_index,
            send_offsets=send_offsets,
            indptr=local.indptr,
            indices=local.indices,
            edge_weight=local.weight,
            in_degree=in_degree[rows],
            out_degree=out_degree[rows],
            x=features(rows, rank),
            y=data.y[local.own_ids],
            split=data.split[local.own_ids],
            edge_id=(edge_id := data.edge_order[local.position] if data.multigraph else None),
            num_loops=loops,
            edge_data={name: rows[edge_id] for name, rows in data.edge_data.items()},
            node_data={name: rows[local.own_ids] for name, rows in data.node_data.items()},
        )


def _fingerprint(data: GraphData, assignment: NDArray[Any]) -> str:
    digest = hashlib.blake2b(data.fingerprint.encode(), digest_size=16)
    digest.update(np.ascontiguousarray(assignment, dtype=np.int32).data)
    return digest.hexdigest()


def save_parts(
    data: GraphData, assignment: NDArray[Any], folder: str | Path, *, num_parts: int | None = None
) -> PartsMeta:
    """Write all parts of a graph and then `meta.json`, with at most one part in memory besides the graph.

    Raises:
        GraphError: The graph is malformed, the assignment does not fit, or the folder is not writable. The folder
            then has no `meta.json` and no partial file.
    """
    data.validate()
    folder = make_folder(folder, error=GraphError)
    _remove(folder / "meta.json")
    counts: list[dict[str, int]] = []

    def features(rows: NDArray[np.int64], rank: int) -> SparseRows | NDArray[np.float32]:
        if isinstance(data.x, SparseRows) or map_of(data.x) is None:
            return _rows_of(data.x, rows)
        return _write_rows(data.x, rows, folder / f"part-{rank}.x.npy")

    for part in _split(data, assignment, num_parts, features):
        path = part.save(folder)
        own_file = map_of(part.x)
        counts.append(
            {
                **({} if own_file is None else {"features_bytes": own_file.stat().st_size}),
                "own": part.num_own,
                "central": part.num_central,
                "halo": part.num_halo,
                "send": part.num_send,
                "edges": part.num_edges,
                "train": int(np.count_nonzero(part.split == TRAIN)),
                "size_bytes": path.stat().st_size,
            }
        )
        fingerprint = part.fingerprint
    for stale in [*folder.glob("part-*.npz"), *folder.glob("part-*.x.npy")]:
        number = stale.name.removeprefix("part-").partition(".")[0]
        if not number.isdecimal():
            continue
        unused = (
            stale.suffix == ".npy"
            and int(number) < len(counts)
            and "features_bytes" not in counts[int(number)]
        )
        if unused or int(number) >= len(counts):
            _remove(stale)
    meta = PartsMeta(
        version=FORMAT_VERSION,
        num_parts=len(counts),
        fingerprint=fingerprint,
        graph=data.name,
        num_nodes=data.num_nodes,
        num_edges=len(data.in_edges.indices),
        num_features=data.num_features,
        num_classes=data.num_classes,
        directed=data.directed,
        parts=counts,
    )
    with atomic_file(folder / "meta.json", error=GraphError) as file:
        file.write(msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")
    return meta


def _write_rows(x: NDArray[np.float32], rows: NDArray[np.int64], path: Path) -> NDArray[np.float32]:
    """Some rows of a mapped array in a file, mapped."""
    with atomic_file(path, error=GraphError) as file:
        shape = (len(rows), x.shape[1])
        np.lib.format.write_array_header_1_0(
            file, {"descr": x.dtype.str, "fortran_order": False, "shape": shape}
        )
        for begin, end in blocks(*shape):
            file.write(np.ascontiguousarray(x[rows[begin:end]]).data)
    return _mapped_rows(path)


def _mapped_rows(path: Path) -> NDArray[np.float32]:
    # Copied where it is written to: torch has no tensors that are for reading only.
    found: NDArray[np.float32] = np.load(path, mmap_mode="c" if path.stat().st_size > 128 else None)
    return np.asarray(found)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise GraphError(f"cannot replace {path}: {error.strerror}; choose another folder") from error


def read_meta(folder: str | Path) -> PartsMeta:
    """Read the description of a folder of parts; GraphError if it is missing, malformed or too old."""
    path = Path(folder) / "meta.json"
    try:
        meta = decode_json(path.read_bytes(), PartsMeta)
    except FileNotFoundError:
        raise GraphError(
            f"{folder} has no meta.json; it is no complete folder of parts, write it again"
        ) from None
    except OSError as error:
        raise GraphError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    except msgspec.DecodeError as error:
        raise GraphError(f"{path} is malformed ({error}); write the parts again") from error
    if meta.version != FORMAT_VERSION:
        raise GraphError(
            f"{path} has format {meta.version}; expected {FORMAT_VERSION}, write the parts again"
        )
    if len(meta.parts) != meta.num_parts or not all("size_bytes" in part for part in meta.parts):
        raise GraphError(
            f"{path} describes {len(meta.parts)} of {meta.num_parts} parts or lacks their size_bytes; write the "
            "parts again"
        )
    return meta


def _file_name(rank: int) -> str:
    return f"part-{rank}.npz"


def _to_arrays(part: Part, *, in_file: bool) -> dict[str, Any]:
    """All arrays of the part but features that are in a file of their own."""
    arrays: dict[str, Any] = {}
    scalars = {}
    for name, value in vars(part).items():
        if in_file and name == "x":
            continue
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif isinstance(value, SparseRows):
            arrays |= {"x_indptr": value.indptr, "x_indices": value.indices}
            if value.data is not None:
                arrays["x_data"] = value.data
        elif isinstance(value, Mapping):
            arrays |= {f"{name}.{key}": rows for key, rows in value.items()}
        elif value is not None:
            scalars[name] = value
    arrays["scalars"] = np.frombuffer(msgspec.json.encode(scalars), dtype=np.uint8)
    return arrays


def _from_arrays(arrays: dict[str, NDArray[Any]], path: Path, features_bytes: int) -> Part:
    try:
        values: dict[str, Any] = dict(decode_json(arrays.pop("scalars").tobytes()))
        if features_bytes:
            arrays["x"] = _features_of(path.with_suffix(".x.npy"), features_bytes)
        if "x" not in arrays:
            values["x"] = SparseRows(
                indptr=arrays.pop("x_indptr"),
                indices=arrays.pop("x_indices"),
                data=arrays.pop("x_data", None),
                num_columns=values["num_features"],
            )
        for name in ("edge_data", "node_data"):
            keys = [key for key in arrays if key.startswith(f"{name}.")]
            values[name] = {key.removeprefix(f"{name}."): arrays.pop(key) for key in keys}
        values = {"edge_weight": None, "edge_id": None, "num_loops": 0} | values | arrays
        return Part(**{own.name: values[own.name] for own in fields(Part)})
    except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise GraphError(
            f"{path} is no part file ({error} missing or malformed); write the parts again"
        ) from error


def _features_of(path: Path, expected_bytes: int) -> NDArray[np.float32]:
    try:
        found = path.stat().st_size
        if found == expected_bytes:
            return _mapped_rows(path)
    except OSError as error:
        raise GraphError(f"cannot read {path}: {error.strerror}; write the parts again") from error
    raise GraphError(
        f"{path} has {found} bytes and meta.json says {expected_bytes}; the file is truncated or from another run, "
        "write the parts again"
    )


load_part = Part.load


def edge_weights(part: Part, kind: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights of a part's in-edges and of its own nodes' self loops, from the whole graph's degrees.

    Aggregation over parts then equals aggregation on one process, for directed graphs too. With d_out(u) and d_in(v)
    counted without self loops:

    - "gcn": ((d_out(u) + 1) (d_in(v) + 1))^-1/2, for the self loop with u = v;
    - "mean": 1 / max(d_in(v), 1), self loop 0;
    - "sum": 1, self loop 0.

    Weights of the graph's own edges (`part.edge_weight`) multiply these; degrees stay counts.

    Returns:
        Weights, float32 [edges] in the order of `part.indices`, and float32 [own].

    Raises:
        GraphError: The kind is unknown.
    """
    wide, self_wide = edge_weights64(part, kind)
    return wide.astype(np.float32), self_wide.astype(np.float32)


def edge_weights64(part: Part, kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`edge_weights` before rounding to float32."""
    d_in = part.in_degree[: part.num_own].astype(np.float64)
    per_node = np.zeros(part.num_own)
    if kind == "gcn":
        if part.num_loops:
            raise GraphError(
                f"the graph has {part.num_loops} self loops, and the weights of gcn add one to each node; expected a "
                "graph without them"
            )
        row = np.repeat(1 / np.sqrt(d_in + 1), np.diff(part.indptr))
        weight = row / np.sqrt(part.out_degree[part.indices] + 1.0)
        per_node = 1 / np.sqrt((part.out_degree[: part.num_own] + 1.0) * (d_in + 1))
    elif kind == "mean":
        weight = np.repeat(1 / np.maximum(d_in, 1), np.diff(part.indptr))
    elif kind == "sum":
        weight = np.ones(part.num_edges)
    else:
        raise GraphError(f"aggregation {kind!r} is unknown; expected gcn, mean or sum")
    return weight if part.edge_weight is None else weight * part.edge_weight, per_node
