"""Every known algorithm, as a file that both runtimes take."""

from __future__ import annotations

import pytest

from wirewise.collective.builders import BUILDERS, build
from wirewise.collective.exporters import msccl

POWERS_OF_TWO = {("all_to_all", "hypercube")}
"""Algorithms that six ranks cannot run."""
CALLED = [
    (*key, ranks)
    for key in BUILDERS
    for ranks in (6, 8)
    if key[0] not in ("scatter", "gather") and (ranks == 8 or key not in POWERS_OF_TWO)
]


@pytest.mark.sweep
@pytest.mark.parametrize(("collective", "algorithm", "ranks"), CALLED)
def test_files_of_known_algorithms_are_right(collective, algorithm, ranks):
    root = 1 if collective in ("broadcast", "reduce") else 0
    hosts = [range(3), range(3, ranks)] if algorithm.startswith(("hierarchical", "host_ring")) else None
    program = build(collective, algorithm, ranks, root=root, hosts=hosts)
    for in_place, dialect in ((False, "microsoft"), (True, "azure")):
        if not (in_place and collective == "all_to_all"):
            made = msccl.lower(program, in_place=in_place, instances=2, fuse=in_place)
            assert msccl.violations(msccl.dumps(made, dialect), dialect, root=root) == []
