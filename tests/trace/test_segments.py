"""Pieces of what a thread does."""

from wirewise.trace.records import Op
from wirewise.trace.segments import pieces


def test_nested_ops_keep_their_own_time_only():
    def op(name, start, end):
        return Op(name=name, kind="forward", start_s=start, end_s=end, step=0)

    found = pieces([op("net", 0, 10), op("a", 1, 4), op("a.x", 2, 3), op("b", 4, 12)], [0.5])
    assert [(p.op.name, p.start_s, p.end_s, p.last) for p in found] == [
        ("net", 0, 0.5, False),
        ("net", 0.5, 1, False),
        ("a", 1, 2, False),
        ("a.x", 2, 3, True),
        ("a", 3, 4, True),
        ("b", 4, 10, True),
        ("net", 10, 10, True),
    ]
