from __future__ import annotations

import msgspec
import pytest

from tests.sim.pipeline_jobs import chain, costs_of, one_each
from wirewise.sim.stage_memory import peak_bytes

P, A, IN = 1000.0, 100.0, 10.0
"""Bytes of parameters, activations and input of each stage."""


def needed(style, p, m, **more):
    plan = one_each(style, p, m, **more)
    return peak_bytes(plan, costs_of(plan, chain(p, IN / 1000, saved_bytes=A, parameter_bytes=P)))


@pytest.mark.parametrize(
    ("style", "versions", "sets"),
    [
        ("gpipe", 1, [8, 8, 8, 8]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("eager", 1, [7, 5, 3, 1]),
        ("zero-bubble", 1, [4, 4, 4, 4]),
        ("2bw", 2, [4, 3, 2, 1]),
    ],
)
def test_weights_by_versions_and_activations_by_what_is_in_flight(style, versions, sets):
    assert needed(style, 4, 8) == tuple((versions + 3) * P + count * A for count in sets)


def test_inputs_are_kept_where_stages_are_computed_again():
    """PipeDream-2BW's table: an input for each microbatch in flight, and one whole set of activations."""
    assert needed("2bw", 4, 8, recompute=True) == tuple(5 * P + A + (n - 1) * IN for n in (4, 3, 2, 1))
    assert needed("gpipe", 4, 8, recompute=True) == (4 * P + A + 7 * IN,) * 4
    # Gradients of weights come late, so whole sets wait for them.
    late = needed("zero-bubble", 4, 8, recompute=True)
    assert late[0] == 4 * P + A + 3 * IN and late[3] == 4 * P + 4 * A


def test_gradients_that_are_exchanged_beside_passes_stand_there_twice():
    hidden = needed("2bw", 2, 4, replicas=2, exchange="hidden")
    assert [a - b for a, b in zip(hidden, needed("2bw", 2, 4, replicas=2), strict=True)] == [P, P]


def test_uneven_stages():
    plan = one_each("1f1b", 2, 4)
    both = msgspec.structs.replace(
        plan,
        stages=(
            plan.stages[0],
            msgspec.structs.replace(plan.stages[1], modules=("m1", "m2"), recompute=True),
        ),
    )
    costs = costs_of(both, chain(3, IN / 1000, saved_bytes=A, parameter_bytes=P))
    assert peak_bytes(both, costs) == (4 * P + 2 * A, 8 * P + 2 * A)
