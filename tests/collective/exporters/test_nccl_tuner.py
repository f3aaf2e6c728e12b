"""E6 of the brief on collectives: the CSV is what NVIDIA's example plugin reads."""

from __future__ import annotations

import pytest

from tests.collective.exporters import nccl_plugin
from wirewise.collective.exporters import nccl_tuner
from wirewise.collective.exporters.nccl_tuner import Row
from wirewise.errors import InputError


def test_E6_rows_are_read_back():
    rows = [
        Row("allreduce", 0, 65536, "tree", "ll", 2, 1, -1, -1, 0),
        Row("allgather", 65537, 2**63 - 1, "ring", "simple"),
    ]
    text = nccl_tuner.dumps(rows)
    assert text.splitlines()[1] == "allreduce,0,65536,tree,ll,2,1,-1,-1,0"
    assert nccl_plugin.loads(text) == rows


def test_E6_the_rules_of_the_plugin():
    """Comments, blank lines, 8 to 10 fields, spaces, empty fields, unknown names, numbers as atoi reads them."""
    text = "\n".join(
        [
            "# a comment",
            "",
            "allreduce,0,100,tree,ll,2,1",
            " broadcast ,\t0, 32768,tree ,simple,4x,1,-1",
            "allgather,,0,1048576,ring,ll128,8,-1,8,2",
            "unknown,0,1,what,ever,a,1,1,1,1,99",
        ]
    )
    assert nccl_plugin.loads(text) == [
        Row("broadcast", 0, 32768, "tree", "simple", 4, 1, -1),
        Row("allgather", 0, 1048576, "ring", "ll128", 8, -1, 8, 2),
        Row("allreduce", 0, 1, "ring", "simple", 0, 1, 1, 1, 1),
    ]


def test_E6_long_lines_reach_the_plugin_in_parts():
    line = "allreduce,0,100,tree,ll,2,1,1".ljust(255) + "allgather,0,100,ring,ll,2,1,1"
    assert [row.collective for row in nccl_plugin.loads(line)] == ["allreduce", "allgather"]


def test_E6_the_first_row_that_holds_is_taken():
    rows = [
        Row("allreduce", 0, 100, "tree", "ll", hosts=2),
        Row("allreduce", 0, 100, "ring", "ll", registered=1),
        Row("allreduce", 50, 200, "ring", "simple", ranks=8),
    ]

    def chosen(size, **how):
        row = nccl_plugin.choose(rows, "allreduce", size, **{"hosts": 1, "ranks": 8, **how})
        return row and (row.algorithm, row.protocol)

    assert chosen(100, hosts=2) == ("tree", "ll")
    assert chosen(100, registered=1) == ("ring", "ll")
    assert chosen(100) == chosen(200) == ("ring", "simple")
    assert chosen(201) is None and chosen(49) is None and chosen(100, ranks=4) is None
    assert nccl_plugin.choose(rows, "allgather", 60, hosts=1, ranks=8) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row("all_reduce", 0, 1, "ring", "ll"), "got 'all_reduce'; NCCL's tuner knows broadcast"),
        (Row("allreduce", 0, 1, "rings", "ll"), "got 'rings'"),
        (Row("allreduce", 0, 1, "ring", "LL"), "got 'LL'"),
        (Row("allreduce", 2, 1, "ring", "ll"), "got sizes 2 to 1"),
    ],
)
def test_what_the_plugin_would_misread_is_refused(row, message):
    with pytest.raises(InputError, match=message):
        nccl_tuner.dumps([row])
