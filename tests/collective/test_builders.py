"""Every known algorithm does what its collective asks for."""

import pytest

from wirewise.collective import check
from wirewise.collective.builders import BUILDERS, build
from wirewise.errors import ProgramError

NEEDS = {"neighbour_exchange": lambda p: p % 2 == 0, "hypercube": lambda p: p & (p - 1) == 0}


@pytest.mark.parametrize(("collective", "algorithm"), BUILDERS)
def test_any_number_of_ranks(collective, algorithm):
    for ranks in range(1, 17):
        if ranks > 1 and not NEEDS.get(algorithm, bool)(ranks):
            with pytest.raises(ProgramError, match=f"got {ranks} ranks"):
                build(collective, algorithm, ranks)
            continue
        for root in {0, ranks // 2, ranks - 1}:
            check(build(collective, algorithm, ranks, root=root))
