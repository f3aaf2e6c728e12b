import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.graph.toys import partitioned, toy
from wirewise.errors import GraphError
from wirewise.graph import (
    BlockModel,
    SparseRows,
    block_model,
    blocks,
    write_block_model,
    write_mapped,
)
from wirewise.graph import generate as generating
from wirewise.graph.ranges import ranges_of


@given(partitioned())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph_and_its_renumbering_are_written_as_they_are(tmp_path, case):
    data, owner = case
    mapped = write_mapped(data, tmp_path / "graph")
    assert mapped.fingerprint == data.fingerprint and mapped.directed == data.directed
    ranges = ranges_of(owner)
    moved = write_mapped(data, tmp_path / "moved", ranges=ranges)
    assert moved.fingerprint == ranges.renumber(data).fingerprint


@pytest.mark.parametrize("kind", ["sparse", "values", "names", "labels"])
def test_features_names_and_labels(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK", 2)
    data = toy([(0, 1), (1, 2)])
    if kind in ("sparse", "values"):
        x = (data.x % 2).astype(np.float32) * (3 if kind == "values" else 1)
        data = dataclasses.replace(data, x=SparseRows.from_dense(x))
    if kind == "names":
        data = dataclasses.replace(data, class_names=("left", "right"))
    if kind == "labels":
        data = dataclasses.replace(data, y=np.eye(4, 2, dtype=np.float32))
    mapped = write_mapped(data, tmp_path / "graph")
    assert mapped.fingerprint == data.fingerprint and mapped.class_names == data.class_names
    assert mapped.num_classes == data.num_classes
    ranges = ranges_of(np.array([1, 0, 1, 0]))
    moved = write_mapped(data, tmp_path / "moved", ranges=ranges)
    assert moved.fingerprint == ranges.renumber(data).fingerprint


@pytest.mark.parametrize("directed", [True, False])
def test_a_graph_that_is_drawn_to_disk_is_the_one_in_memory(tmp_path, monkeypatch, directed):
    knobs = BlockModel(nodes=300, classes=4, features=5, mean_degree=6, directed=directed, seed=3)
    whole = block_model(knobs)
    monkeypatch.setattr(generating, "_CHUNK", 100)
    assert write_block_model(knobs, tmp_path / "graph").fingerprint == whole.fingerprint


def test_what_a_folder_does_not_hold_is_named(tmp_path):
    data = dataclasses.replace(toy([(0, 0)]), multigraph=True)
    with pytest.raises(GraphError, match="a mapped graph does not hold self loops and repeated edges"):
        write_mapped(data, tmp_path / "graph")


_BOUNDED = """
import re, resource, sys
from pathlib import Path

import numpy as np
from wirewise.graph import BlockModel, convert, partition, write_block_model

root, nodes, degree = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def within(what, call):
    \"\"\"Call with no more memory of its own (maps of files do not count) than 16 bytes an edge and 64 a node.\"\"\"
    used = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    most = used + 16 * nodes * degree + 64 * nodes
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
    try:
        return call()
    except MemoryError as error:
        sys.exit(f"{what} took more memory: {error}")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


knobs = dict(classes=4, features=8, mean_degree=degree)
for warm in (True, False):
    model = BlockModel(nodes=1000 if warm else nodes, **knobs)
    folder = root / f"{warm}"
    if warm:
        data = write_block_model(model, folder)
    else:
        data = within("generating", lambda: write_block_model(model, folder))
    arrays = dict(edge_index=data.edge_index, x=data.x, y=data.y, split=data.split)
    np.savez(root / f"{warm}.npz", **arrays)
    del arrays
    if warm:
        again = convert(str(root / f"{warm}.npz"), root / "again")
    else:
        again = within("converting", lambda: convert(str(root / f"{warm}.npz"), root / "again"))
    assert again.fingerprint == data.fingerprint
    if warm:
        partition(again, 4, "stream")
    else:
        within("partitioning", lambda: partition(again, 4, "stream"))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_is_bounded_by_edges_and_nodes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _BOUNDED, str(tmp_path), "150000", "20"],
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
