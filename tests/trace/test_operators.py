"""Files of operators."""

import pytest
from benchmarks.random_steps import random_step

from wirewise.errors import InputError
from wirewise.trace import read_fusion_graph


def test_a_graph_is_read_back_equal_and_a_broken_file_is_named(tmp_path):
    graph = random_step(3, 2)
    graph.save(tmp_path / "graph.json")
    assert read_fusion_graph(tmp_path / "graph.json") == graph
    (tmp_path / "bad.json").write_text(graph.to_json().replace('"inputs":[0]', '"inputs":[99999]', 1))
    for name in ("bad.json", "missing.json"):
        with pytest.raises(InputError, match=name):
            read_fusion_graph(tmp_path / name)
