from __future__ import annotations

import msgspec
import pytest

from wirewise.errors import InputError
from wirewise.trace import StageModule, StageTrace, read_job, read_stage_trace, write_stage_trace


def module(name="a", **more):
    given = {"forward_s": (1.0, 1.5), "backward_s": (2.0, 3.0), "output_bytes": 8.0, **more}
    return StageModule(name=name, **given)


def trace(*modules, **more):
    return StageTrace(modules=modules or (module(), module("b"), module("c")), sizes=(2, 4), **more)


def test_a_file_reads_back_equal_and_is_known_as_a_job(tmp_path):
    made = trace(edges=(("a", "b"), ("a", "c"), ("b", "c")), width_speedup={2: 1.8}, model="mlp")
    write_stage_trace(made, tmp_path / "modules.json")
    assert read_stage_trace(tmp_path / "modules.json") == made == read_job([tmp_path / "modules.json"])
    assert made.flows == ((0, 1), (0, 2), (1, 2)) and not made.is_chain
    assert trace().is_chain and trace().flows == ((0, 1), (1, 2))


def test_seconds_lie_on_lines_between_measured_sizes():
    found = {size: trace().times(0, size).forward_s for size in (1, 2, 3, 4, 8)}
    assert found == pytest.approx({1: 0.75, 2: 1.0, 3: 1.25, 4: 1.5, 8: 2.5})
    one = StageTrace(modules=(module(forward_s=(1.0,), backward_s=(2.0,)),), sizes=(2,))
    assert one.times(0, 6) == pytest.approx((3.0, 6.0, 3.0))
    assert trace(module(weight_gradient_s=(0.5, 0.7))).times(0, 4).weight_gradient_s == 0.7


FAULTS = {
    "no modules": (lambda: StageTrace(modules=()), r"\$\.modules"),
    "sizes": (lambda: StageTrace(modules=(module(),), sizes=(4, 2)), r"\$\.sizes"),
    "no sizes": (lambda: StageTrace(modules=(module(),), sizes=()), r"\$\.sizes"),
    "input": (lambda: trace(input_bytes=-1.0), r"\$\.input_bytes"),
    "state": (lambda: trace(state_factor=float("inf")), r"\$\.state_factor"),
    "width": (lambda: trace(width_speedup={2: 0.0}), r"\$\.width_speedup"),
    "name twice": (lambda: trace(module(), module()), r"'a' - at `\$\.modules\[1\]`"),
    "figures": (lambda: trace(module(forward_s=(1.0,))), "forward_s has 1 figures"),
    "seconds": (lambda: trace(module(backward_s=(2.0, float("nan")))), "backward_s is nan"),
    "weights": (lambda: trace(module(weight_gradient_s=(2.5, 1.0))), "more than the whole backward"),
    "bytes": (lambda: trace(module(saved_bytes=-2.0)), "saved_bytes is -2"),
    "unknown end": (lambda: trace(edges=(("a", "d"),)), r"edges\[0\].*there is no module 'd'"),
    "backwards": (lambda: trace(edges=(("c", "a"),)), "in the order of the forward pass"),
    "edge twice": (lambda: trace(edges=(("a", "c"), ("a", "c"))), "an edge stands twice"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_is_refused_with_its_place(name):
    make, said = FAULTS[name]
    with pytest.raises(InputError, match=said):
        make()


def test_a_file_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read modules from .*nothing\.json"):
        read_stage_trace(tmp_path / "nothing.json")
    whole = msgspec.to_builtins(trace())
    for change in ({"sizes": [4, 2]}, {"modules": [{"name": "a"}]}, {"more": 1}):
        (tmp_path / "wrong.json").write_bytes(msgspec.json.encode(whole | change))
        with pytest.raises(InputError, match=r"cannot read modules from .*wrong\.json"):
            read_stage_trace(tmp_path / "wrong.json")
