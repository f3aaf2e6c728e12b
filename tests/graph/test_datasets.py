import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.graph.toys import toy
from wirewise.errors import GraphError, InputError
from wirewise.graph import DATASETS, SparseRows, load, write_graph
from wirewise.graph.datasets import data_root


def test_the_shipped_graph_is_the_default_one():
    data = load("debian")
    assert (data.num_nodes, data.num_classes, data.num_features) == (63_666, 58, 1000)
    assert not data.directed and isinstance(data.x, SparseRows) and data.name == "debian"
    one_way = load("debian-directed")
    assert one_way.directed and one_way.num_edges == 301_258
    # Each pair of packages that depend on each other is one undirected edge.
    there = set(map(tuple, one_way.edge_index.T.tolist()))
    assert data.num_edges == len(there | {(v, u) for u, v in there})


def test_a_user_without_a_home_is_told_of_the_variable(monkeypatch, tmp_path):
    def unknown(number):
        raise KeyError(f"uid not found: {number}")

    for name in ("HOME", "WIREWISE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(GraphError, match=r"no home .* the variable WIREWISE_DATA"):
        data_root()
    monkeypatch.setenv("WIREWISE_DATA", str(tmp_path))
    assert data_root() == tmp_path


def test_generated_graphs_take_knobs_by_name():
    data = load("block:nodes=300,classes=5,directed=true,mean_degree=4.5", seed=2)
    assert (data.num_nodes, data.num_classes, data.directed) == (300, 5, True)
    assert data.fingerprint == load("block:nodes=300,classes=5,directed=1,mean_degree=4.5,seed=2").fingerprint
    assert data.fingerprint != load("block:nodes=300,classes=5,directed=1,mean_degree=4.5").fingerprint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonesuch", "dataset 'nonesuch' is unknown; expected debian, debian-directed, cora"),
        ("absent.npz", "cannot read absent.npz: No such file"),
        ("block:edges=3", "names the knob 'edges'; expected nodes, classes"),
        ("block:nodes=many", "gives nodes the value 'many'; expected int"),
        ("block:directed=perhaps", "gives directed the value 'perhaps'; expected bool"),
        ("block:nodes=3", "nodes of the generated graph is 3; expected 12 to"),
        ("block:p_in=1.5", "p_in of the generated graph is 1.5; expected 0 to 1"),
    ],
)
def test_unknown_names_and_knobs(name, message):
    with pytest.raises(GraphError, match=message):
        load(name)


def test_a_path_is_a_name(tmp_path):
    write_graph(toy([(0, 1)]), tmp_path / "mine.npz")
    assert load(str(tmp_path / "mine.npz")).name == "mine"


def test_a_download_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """An empty folder would be taken for the set by whoever looks for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.datasets import Planetoid

    def fails(self):
        (Path(self.root) / self.name / "raw").mkdir(parents=True, exist_ok=True)
        raise OSError("no network")

    monkeypatch.setattr(Planetoid, "download", fails)
    monkeypatch.setenv("WIREWISE_DATA", str(tmp_path / "data"))
    with pytest.raises(GraphError, match=r"cannot read or download Cora .*: no network; set WIREWISE_DATA"):
        load("cora")
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "data" / "Planetoid" / "Cora" / "mine"
    kept.mkdir(parents=True)
    with pytest.raises(GraphError, match="no network"):
        load("cora")
    assert kept.is_dir() and [each.name for each in kept.parent.iterdir()] == ["mine"]


def test_a_missing_extra_is_named_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(
        InputError, match=r"^ogbn-arxiv needs the package ogb; install it with: pip install .*ogb\]'$"
    ):
        load("ogbn-arxiv")


def test_the_data_folder_is_the_users_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("WIREWISE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("WIREWISE_DATA")
    assert data_root() == Path.home() / ".cache" / "wirewise"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "nodes", "classes"), [("cora", 2708, 7), ("citeseer", 3327, 6)])
def test_citation_graphs(name, nodes, classes, tmp_path, monkeypatch):
    raw = data_root() / "Planetoid" / {"cora": "Cora", "citeseer": "CiteSeer"}[name]
    if not any((raw / "raw").glob("*")):
        pytest.skip(f"{raw} is not there; set WIREWISE_DATA")
    # The library writes next to the raw files, so it gets a folder of its own.
    (tmp_path / "Planetoid" / raw.name).mkdir(parents=True)
    (tmp_path / "Planetoid" / raw.name / "raw").symlink_to(raw / "raw")
    monkeypatch.setenv("WIREWISE_DATA", str(tmp_path))
    data = load(name)
    assert (data.num_nodes, data.num_classes, data.directed) == (nodes, classes, False)
    assert isinstance(data.x, SparseRows) and np.count_nonzero(data.split == 0) == 20 * classes


def test_every_entry_says_what_it_is():
    for name, entry in DATASETS.items():
        assert entry.summary and entry.source in ("shipped", "Planetoid", "ogb"), name


def test_names_may_be_written_as_their_publishers_do():
    assert load("Debian").name == "debian"
