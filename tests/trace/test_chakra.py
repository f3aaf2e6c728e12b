"""Execution traces of torch."""

from pathlib import Path

import pytest

from wirewise.errors import TraceError
from wirewise.trace import chakra

FIXTURES = Path(__file__).parent / "fixtures"

EXECUTION = [FIXTURES / f"execution-rank-{r}.json" for r in (0, 1)]


def test_execution_traces_tell_calls():
    trace = chakra.read(EXECUTION[0])
    assert trace.schema == "1.1.1-chakra.0.0.4"
    assert trace.calls()[138] == 137
    names = [node.name for node in trace.collectives()]
    assert (
        names
        == ["c10d::allreduce_", "c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::allreduce_"] * 2
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{}", "is no execution trace"),
        (b"[1]", "is no execution trace"),
        (b'{"schema": "0.9", "nodes": []}', "schema 0.9; expected 1.1"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 3', "cut off or is no JSON"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 3}]}', "node 0: KeyError 'name'"),
    ],
)
def test_damaged_execution_traces_are_named(tmp_path, text, words):
    path = tmp_path / "et.json"
    path.write_bytes(text)
    with pytest.raises(TraceError, match=words):
        chakra.read(path)
