from __future__ import annotations

import pytest

from tests.collective_networks import machine_network
from wirewise.collective.bounds import bound
from wirewise.collective.exchange_cuts import ALL


def test_search_finds_the_tightest_exchange_cut_of_two_machines() -> None:
    made = machine_network("dgx-a100x3")
    found = bound(made, "all_to_all", 24e9)
    assert len(made.vertices) > ALL and not found.exact
    assert found.seconds == pytest.approx(8 * 16 * 1e9 / (8 * 25e9))
