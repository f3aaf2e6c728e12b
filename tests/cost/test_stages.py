from __future__ import annotations

import numpy as np
import pytest

from wirewise.cost.stages import StageCosts
from wirewise.errors import InputError
from wirewise.trace import StageModule, StageTrace


def module(name, number=1):
    return StageModule(
        name=name,
        forward_s=(1.0 * number,),
        backward_s=(2.0 * number,),
        weight_gradient_s=(0.5 * number,),
        output_bytes=10.0 * number,
        saved_bytes=100.0,
        parameter_bytes=1000.0,
        optimizer_s=0.1,
    )


MODULES = tuple(module(name, number) for number, name in enumerate("abcd", 1))


def test_stages_add_up_their_modules():
    costs = StageCosts.of(StageTrace(modules=MODULES, input_bytes=5.0), [["a"], ["b", "c"], ["d"]], 3)
    assert costs.forward_s.tolist() == [3.0, 15.0, 12.0]
    assert costs.backward_s.tolist() == [6.0, 30.0, 24.0]
    assert costs.weight_s.tolist() == [1.5, 7.5, 6.0]
    assert costs.optimizer_s == pytest.approx(np.array([0.1, 0.2, 0.1]))
    assert costs.edge_bytes == {(0, 1): 30.0, (1, 2): 90.0}
    assert costs.input_bytes.tolist() == [15.0, 30.0, 90.0]
    assert costs.saved_bytes.tolist() == [300.0, 600.0, 300.0]
    assert costs.parameter_bytes.tolist() == [1000.0, 2000.0, 1000.0]


def test_a_tensor_travels_to_a_stage_once():
    """Modules c and d take what a computes; b feeds c."""
    edges = (("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("c", "d"))
    trace = StageTrace(modules=MODULES, edges=edges)
    assert StageCosts.of(trace, [["a"], ["b"], ["c", "d"]]).edge_bytes == {
        (0, 1): 10.0,
        (0, 2): 10.0,
        (1, 2): 20.0,
    }
    assert StageCosts.of(trace, [["a", "b"], ["c"], ["d"]]).edge_bytes == {
        (0, 1): 30.0,
        (0, 2): 10.0,
        (1, 2): 30.0,
    }


def test_ranks_that_share_a_stage():
    trace = StageTrace(modules=MODULES, width_speedup={2: 1.6})
    costs = StageCosts.of(trace, [["a", "b"], ["c", "d"]], widths=[1, 2])
    assert costs.forward_s.tolist() == [3.0, 7.0 / 1.6]
    assert costs.parameter_bytes.tolist() == [2000.0, 1000.0]
    assert costs.edge_bytes == {(0, 1): 20.0}
    with pytest.raises(InputError, match=r"4 ranks a replica.*known are: 1, 2"):
        StageCosts.of(trace, [["a", "b", "c", "d"]], widths=[4])


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([["a", "b"], ["c"]], "no stage has module 'd'"),
        ([["a", "b"], ["c", "d", "e"]], "has module 'e', which the job has not"),
        ([["b", "c"], ["a", "d"]], r"module 'b' of stage 0 takes the output of 'a'"),
    ],
)
def test_stages_of_another_model_are_refused(stages, said):
    with pytest.raises(InputError, match=said):
        StageCosts.of(StageTrace(modules=MODULES), stages)
