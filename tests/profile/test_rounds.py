"""Series of collectives, and tables that rise."""

import pytest
import torch
from tests.profile.test_gradients import SIZES, measured

from wirewise.profile.rounds import collective_times, make_monotonic


@pytest.mark.slow
def test_all_reduce_reaches_the_largest_group_and_payloads_their_largest():
    costs = measured(2, ["efsign"])[0]
    assert costs.without_codecs().schemes["all_reduce"] == costs.concurrent and len(costs.concurrent) >= 5
    assert costs.schemes["all_reduce"][-1][0] == 4 * SIZES[-1]
    assert costs.schemes["all_gather"][-1][0] == SIZES[-1] // 8 + 4
    none = measured(2, [])[0]
    assert set(none.schemes) == {"all_reduce"} and set(none.codecs) == {"none"}


def test_noise_never_makes_a_larger_size_faster():
    assert make_monotonic([1, 2, 3, 4], [5.0, 3.0, 4.0, 6.0]) == ((1, 4.0), (2, 4.0), (3, 4.0), (4, 6.0))
    assert make_monotonic([1, 2, 3], [1.0, 5.0, 4.0]) == ((1, 1.0), (2, 4.5), (3, 4.5))


class Timed:
    """Bench, transport, group and work of all-reduces that take fixed seconds and some for each byte."""

    ranks = 32

    def __init__(self, fixed_s: float, s_per_byte: float) -> None:
        self.transport = self.group = self
        self.fixed_s, self.s_per_byte, self.last_s = fixed_s, s_per_byte, 0.0

    def allreduce(self, tensors: list[torch.Tensor]) -> "Timed":
        self.last_s = self.fixed_s + self.s_per_byte * sum(tensor.nbytes for tensor in tensors)
        return self

    def wait(self) -> None: ...

    def guard(self, action, _) -> None:
        action()

    def series(self, action, _) -> float:
        action()
        return self.last_s


@pytest.mark.parametrize(
    ("fixed_s", "s_per_byte", "largest"),
    [(0.9, 1e-6, 1 << 20), (1.2, 1e-6, 1 << 20), (0.0, 1e-5, 208_064)],
    ids=["half a fixed second", "more than the limit for nothing", "no fixed time"],
)
def test_sizes_are_tried_until_the_wire_takes_most(fixed_s, s_per_byte, largest):
    """A rate that is read off fixed seconds would be far too low."""
    knots = collective_times(Timed(fixed_s, s_per_byte), 1 << 20, 0, torch.device("cpu"))["all_reduce"]
    assert knots[-1][0] == pytest.approx(largest, rel=0.01)
    (near, near_s), (far, far_s) = knots[-2:]
    assert (far_s - near_s) / (far - near) == pytest.approx(s_per_byte, rel=1e-3)
