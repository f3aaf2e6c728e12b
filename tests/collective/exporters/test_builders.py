"""Every known algorithm, as a file that both runtimes take."""

from __future__ import annotations

import pytest

from wirewise.collective.builders import BUILDERS, build
from wirewise.collective.exporters import msccl
from wirewise.errors import ProgramError

CALLED = [key for key in BUILDERS if key[0] not in ("scatter", "gather")]


@pytest.mark.parametrize(("collective", "algorithm"), CALLED)
@pytest.mark.parametrize("ranks", [6, 8])
def test_files_of_known_algorithms_are_right(collective, algorithm, ranks):
    root = 1 if collective in ("broadcast", "reduce") else 0
    hosts = [range(3), range(3, ranks)] if algorithm == "hierarchical" else None
    try:
        program = build(collective, algorithm, ranks, root=root, hosts=hosts)
    except ProgramError:
        pytest.skip(f"{algorithm} is not for {ranks} ranks")
    for in_place, dialect in ((False, "microsoft"), (True, "azure")):
        if not (in_place and collective == "all_to_all"):
            made = msccl.lower(program, in_place=in_place, instances=2, fuse=in_place)
            assert msccl.violations(msccl.dumps(made, dialect), dialect, root=root) == []
