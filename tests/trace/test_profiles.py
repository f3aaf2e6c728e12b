"""Names of collectives and sizes of tensors in files of torch.profiler."""

import pytest

from wirewise.trace.profiles import collective_name, load, tensor_bytes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("gloo:barrier", "barrier"),
        ("aten::linear", ""),
    ],
)
def test_names_of_collectives(text, name):
    assert collective_name(text) == name


def test_sizes_of_tensors_and_lists():
    assert tensor_bytes([3, 4], "float") == 48
    assert tensor_bytes([[3], [5]], "c10::BFloat16") == 16
    assert tensor_bytes([], "float") == 0
    assert tensor_bytes([3], "TensorList") == 0


def test_numbers_and_names_that_json_does_not_have_cost_no_event(tmp_path):
    """A copy that took no time has an infinite bandwidth; names of operators may be cut inside a letter."""
    copy = (
        b'{"ph": "X", "name": "Memcpy", "ts": 1, "dur": 0, "args": {"bytes": 8, "GB/s": inf, "x": [-nan,1]}}'
    )
    named = b'{"ph": "X", "name": "inf, caf\xc3", "ts": 2, "dur": 1, "args": {"memory": -Infinity}}'
    last = b'{"ph": "X", "name": "last", "ts": 3, "dur": 1}'
    whole = b'{"baseTimeNanoseconds": 7, "traceEvents": [%b], "traceName": "t"}' % b",\n".join(
        [copy, named, last]
    )
    path = tmp_path / "trace.json"
    path.write_bytes(whole)
    found = load(path)
    assert found.complete and found.head == {"baseTimeNanoseconds": 7, "traceName": "t"}
    names = [(e.name, e.ts) for e in found.events]
    assert names == [("Memcpy", 1), ("inf, caf\N{REPLACEMENT CHARACTER}", 2), ("last", 3)]
    assert found.events[0].args == {"bytes": 8, "GB/s": None, "x": [None, 1]}
    path.write_bytes(whole[: whole.index(b"last")])
    cut = load(path)
    assert not cut.complete and [e.ts for e in cut.events] == [1, 2]
