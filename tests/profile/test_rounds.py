"""Series of collectives, and tables that rise."""

import pytest
from tests.profile.test_gradients import SIZES, measured

from wirewise.profile.rounds import rising


@pytest.mark.slow
def test_all_reduce_reaches_the_largest_group_and_payloads_their_largest():
    costs = measured(2, ["efsign"])[0]
    assert costs.without_codecs().schemes["all_reduce"] == costs.concurrent and len(costs.concurrent) >= 5
    assert costs.schemes["all_reduce"][-1][0] == 4 * SIZES[-1]
    assert costs.schemes["all_gather"][-1][0] == SIZES[-1] // 8 + 4
    none = measured(2, [])[0]
    assert set(none.schemes) == {"all_reduce"} and set(none.codecs) == {"none"}


def test_noise_never_makes_a_larger_size_faster():
    assert rising([1, 2, 3, 4], [5.0, 3.0, 4.0, 6.0]) == ((1, 4.0), (2, 4.0), (3, 4.0), (4, 6.0))
    assert rising([1, 2, 3], [1.0, 5.0, 4.0]) == ((1, 1.0), (2, 4.5), (3, 4.5))
