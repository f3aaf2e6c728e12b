import dataclasses
import os

import numpy as np
import pytest

from tests.graph.toys import toy
from wirewise.errors import GraphError
from wirewise.graph import load, load_part, partition, read_mapped, save_parts, write_mapped
from wirewise.graph.mapped import HEADER, GraphWriter, map_of, watch

EDGES = [(0, 1), (1, 2), (3, 0), (2, 0)]


@pytest.fixture
def folder(tmp_path):
    write_mapped(toy(EDGES, directed=False), tmp_path / "graph")
    return tmp_path / "graph"


def test_arrays_are_maps_for_reading(folder):
    data = read_mapped(folder)
    for array in (data.edge_index, data.indptr, data.x, data.y, data.split):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable
    assert data.simple_in_edges.indices.base is not None
    assert not list(folder.glob(".*")), "nothing is left of writing"


def test_parts_of_a_mapped_graph_are_those_of_the_graph(tmp_path):
    data = toy(EDGES, directed=False)
    mapped = write_mapped(data, tmp_path / "graph")
    owner = partition(data, 2)
    metas = [save_parts(graph, owner, tmp_path / name) for graph, name in ((mapped, "a"), (data, "b"))]
    assert metas[0].fingerprint == metas[1].fingerprint
    one, other = (load_part(tmp_path / name, 1) for name in "ab")
    assert np.array_equal(one.x, other.x) and np.array_equal(one.indices, other.indices)
    assert map_of(one.x) == tmp_path / "a" / "part-1.x.npy" and map_of(other.x) is None
    one.save(tmp_path / "c")
    with np.load(tmp_path / "c" / "part-1.npz") as alone:
        assert np.array_equal(alone["x"], other.x), "a part that is saved elsewhere has its features"
    os.truncate(tmp_path / "a" / "part-1.x.npy", 130)
    with pytest.raises(GraphError, match=r"part-1\.x\.npy has 130 bytes and meta.json says"):
        load_part(tmp_path / "a", 1)
    save_parts(data, owner, tmp_path / "a")
    assert not list((tmp_path / "a").glob("*.x.npy"))


@pytest.mark.parametrize("name", ["edge_index", "x", "indptr", "y", "split"])
def test_a_file_that_is_cut_short_is_named(folder, name):
    path = folder / f"{name}.npy"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with pytest.raises(GraphError, match=rf"{name}\.npy has {size - 1} bytes and graph.json says {size}"):
        read_mapped(folder)
    path.unlink()
    with pytest.raises(GraphError, match=rf"cannot read .*{name}\.npy: No such file"):
        read_mapped(folder)


def change(path, keep_time):
    before, raw = path.stat(), bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    times = before.st_atime_ns, before.st_mtime_ns + (0 if keep_time else 10**9)
    os.utime(path, ns=times)


def test_a_file_that_was_changed_is_named(folder):
    change(folder / "x.npy", keep_time=False)
    with pytest.raises(GraphError, match=r"x\.npy was changed after it was written"):
        read_mapped(folder)


def test_checking_finds_a_change_that_times_do_not_show(folder):
    change(folder / "x.npy", keep_time=True)
    read_mapped(folder)
    with pytest.raises(GraphError, match=r"x\.npy was changed"):
        read_mapped(folder, verify=True)


def test_a_copy_with_other_times_is_taken(folder):
    for path in folder.iterdir():
        os.utime(path)
    assert read_mapped(folder).fingerprint == toy(EDGES, directed=False).fingerprint


def test_a_folder_without_its_header_is_no_graph(folder, tmp_path):
    (folder / HEADER).unlink()
    for read in (read_mapped, load):
        with pytest.raises(GraphError, match=r"has no graph.json; it is no complete mapped graph"):
            read(str(folder))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 9', "has format 9; expected 1"),
        ('"num_nodes": 4', '"num_nodes": 5', "has 4 nodes, 8 edges and 3 features, and graph.json says 5"),
        ('"split"', '"splits"', "names no split; expected all arrays"),
        ('"num_edges": 8,', "", "is malformed"),
        ("<f4", "<i4", r"x.npy is float32 \[4, 3\] and graph.json says <i4"),
    ],
)
def test_a_header_that_does_not_fit_is_named(folder, old, new, message):
    text = (folder / HEADER).read_text()
    assert old in text
    (folder / HEADER).write_text(text.replace(old, new))
    with pytest.raises(GraphError, match=message):
        read_mapped(folder)


def test_a_change_in_mid_run_is_named(folder):
    check = watch(folder)
    check()
    (folder / "y.npy").write_bytes((folder / "y.npy").read_bytes())
    with pytest.raises(GraphError, match=r"y\.npy changed while it was in use: it was written to"):
        check()
    os.truncate(folder / "y.npy", 5)
    with pytest.raises(GraphError, match=r"y\.npy changed while it was in use: it has 5 bytes, before"):
        check()
    (folder / "y.npy").unlink()
    with pytest.raises(GraphError, match=r"y\.npy changed while it was in use: it is gone"):
        check()


def test_a_disk_without_room_leaves_no_graph(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(GraphError, match=r"cannot write .*graph: No space left on device"):
            write_mapped(toy(EDGES), tmp_path / "graph")
    assert not (tmp_path / "graph").exists() or not list((tmp_path / "graph").iterdir())


def test_an_older_graph_stays_until_a_new_one_is_whole(folder):
    with GraphWriter(folder) as writer:
        writer.array("y", np.int64, (4,))
    assert read_mapped(folder).num_nodes == 4 and not list(folder.glob(".*.tmp"))


def test_a_graph_whose_order_is_wrong_is_refused():
    data = toy([(1, 0), (0, 1)])
    edges = np.array([[1, 0], [0, 1]], np.int32)
    right = dataclasses.replace(data, edge_index=edges, indptr=np.array([0, 1, 2, 2, 2]))
    right.validate()
    for indptr, edge_index, message in (
        ([0, 2, 1, 2, 2], edges, "indptr does not ascend from 0 to 2 in 5 steps"),
        ([0, 2, 2, 2, 2], np.array([[2, 1], [0, 0]]), "in-edges of node 0 do not ascend by source"),
        ([0, 1, 2, 2, 2], np.array([[1, 0], [0, 2]]), "edge 1 goes to node 2, against indptr"),
    ):
        with pytest.raises(GraphError, match=message):
            dataclasses.replace(data, edge_index=edge_index, indptr=np.array(indptr)).validate()
