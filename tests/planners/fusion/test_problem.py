"""Problems refuse what cannot be; recorded steps give problems that replay as they did."""

from dataclasses import replace

import numpy as np
import pytest

from tests.planners.fusion.problems import random_problem
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.fusion import BucketSpan, Decision, MemorySizes, Scorer, dpro, from_flows, with_memory
from wirewise.planners.fusion.search import baseline
from wirewise.sim import replay
from wirewise.sim.data_parallel import BucketTransfer, LayerCost, data_parallel_step
from wirewise.sim.lowering.recorded import with_plan
from wirewise.trace.modules import Overhead

LINKS = Links.uniform(4, 2e9, 1e-4)
LAYERS = [LayerCost(f"block.{i}", 1e-3 * (i + 1), 2e-3, 1e6 * (1 + i % 3)) for i in range(8)]


def module(problem, **change):
    return replace(problem, modules=[replace(problem.modules[0], **change), *problem.modules[1:]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": []}, "expected a rank or more"),
        ({"hosts": [0, 9]}, r"hosts are \[0, 9\]"),
        ({"slowdown": [1.0]}, "factor above 0 for each of 4 ranks"),
        ({"slowdown": [1.0, 1.0, 0.0, 1.0]}, "factor above 0"),
        ({"comm_slots": 0}, "comm_slots is 0"),
        ({"algorithm": "star"}, "'star'; expected one of"),
        ({"optimizer_s": float("nan")}, "optimizer_s is nan"),
        ({"overhead": Overhead(launch_s=-1.0)}, "launch_s is -1"),
        ({"fused_s": {(0, 99): (1.0, 1.0)}}, "fused_s of modules"),
        ({"fused_s": {(0, 1): (1.0, -1.0)}}, "is -1.0; expected a finite number"),
        ({"fused_share": 1.5}, "fused_share is 1.5"),
        ({"modules": []}, "no module has gradients"),
    ],
)
def test_wrong_values_are_named(change, message):
    with pytest.raises(InputError, match=message):
        replace(random_problem(0), **change)


@pytest.mark.parametrize("field", ["forward_s", "backward_s", "gradient_bytes", "saved_bytes"])
def test_wrong_modules_are_named(field):
    with pytest.raises(InputError, match=f"{field} of module 'm0' is -1"):
        module(random_problem(0), **{field: -1.0})


def test_a_parameter_is_in_one_module():
    with pytest.raises(InputError, match="'m1' is in two modules"):
        module(random_problem(0), parameters=("m1",))


def test_an_op_that_was_not_measured_cannot_be_scored():
    with pytest.raises(InputError, match="'m1' to 'm2' as one op were not measured"):
        Scorer(random_problem(0))(Decision((BucketSpan(0, 7),), fused=((1, 2),)))


def recorded(**more):
    slow = [1.0, 1.0, 1.25, 1.0]
    return data_parallel_step(LAYERS, range(4), bucket_bytes=3e6, slowdown=slow, optimizer_s=1e-3, **more)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_recorded_step_gives_a_problem_that_replays_alike(slots):
    flow = recorded(comm_slots=slots)
    problem = from_flows([flow, flow], LINKS)
    assert [m.name for m in problem.modules] == [layer.name for layer in LAYERS]
    assert problem.comm_slots == slots
    mean = np.mean([1.0, 1.0, 1.25, 1.0])
    np.testing.assert_allclose(problem.slowdown, np.array([1.0, 1.0, 1.25, 1.0]) / mean)
    np.testing.assert_allclose(problem.sizes, [layer.gradient_bytes for layer in reversed(LAYERS)])
    np.testing.assert_allclose([m.forward_s for m in problem.modules], [mean * x.forward_s for x in LAYERS])
    step = replay(flow, LINKS).step_s
    assert Scorer(problem)(baseline(problem)) == pytest.approx(step, rel=1e-9)
    made = dpro(problem, passes=("tensor_fusion",))
    assert made.baseline_step_s == pytest.approx(step, rel=1e-9)
    put_in = replay(with_plan(flow, LINKS, made), LINKS).step_s
    assert put_in == pytest.approx(made.predicted_step_s, rel=1e-6)


def test_names_of_parameters_go_to_their_modules():
    flow = recorded()
    names = [[f"block.{i}.{kind}" for kind in ("weight", "bias")] for i in reversed(range(8))]
    spans = from_flows([flow], LINKS).recorded
    own = [[name for i in range(s.first, s.last + 1) for name in names[i]] for s in spans]
    problem = from_flows([flow], LINKS, parameters=own)
    assert problem.recorded == spans
    assert problem.modules[2].parameters == ("block.2.weight", "block.2.bias")
    assert dpro(problem).parameters == [name for pair in names for name in pair]


def test_an_op_in_two_pieces_and_parameters_of_the_whole_model():
    layers = [
        LayerCost("model", 0.0, 1e-3, 5e5),
        LayerCost("a", 1e-3, 1e-3, 1e6),
        LayerCost("a", 1e-3, 1e-3, 0.0),
    ]
    layers.append(LayerCost("b", 1e-3, 1e-3, 2e6))
    # The first bucket goes out in the middle of a's backward op, which a trace shows as two.
    sent = [BucketTransfer(1, 3e6), BucketTransfer(3, 5e5)]
    flow = data_parallel_step(layers, range(4), transfers=sent)
    problem = from_flows([flow], LINKS, parameters=[("b.weight", "a.weight"), ("positions",)])
    assert [(m.parameters, m.gradient_bytes) for m in problem.modules[::-1]] == [
        (("b.weight",), 2e6),
        (("a.weight",), 1e6),
        ((), 0.0),
        (("positions",), 5e5),
    ]
    assert problem.recorded == (BucketSpan(0, 1), BucketSpan(2, 2))


def test_without_matching_names_the_buckets_are_the_grain():
    flow = recorded()
    count = sum(flow.size_bytes > 0)
    problem = from_flows([flow], LINKS, parameters=[(f"x{i}", f"y{i}") for i in range(count)])
    assert len(problem.sizes) == count
    assert problem.recorded == tuple(BucketSpan(i, i) for i in range(count))
    assert sum(problem.sizes) == pytest.approx(sum(layer.gradient_bytes for layer in LAYERS))
    assert dpro(problem).parameters[:2] == ["x0", "y0"]


def test_steps_with_other_ops_are_left_out():
    other = data_parallel_step(LAYERS[:5], range(4))
    problem = from_flows([other, recorded(), recorded()], LINKS)
    assert len(problem.modules) == 8
    first = data_parallel_step(LAYERS, range(4), bucket_bytes=1e6)
    names = [(f"x{i}",) for i in range(sum(recorded().size_bytes > 0))]
    problem = from_flows([first, recorded(), recorded()], LINKS, parameters=names)
    assert [problem.modules[i].parameters for i in problem.gradients] == names, "its buckets are others"
    with pytest.raises(InputError, match="no graph of a step"):
        from_flows([], LINKS)


def test_sizes_of_memory_are_put_in_by_name():
    problem = from_flows([recorded()], LINKS)
    found = with_memory(problem, {"block.1": MemorySizes(saved_bytes=5.0, input_bytes=2.0)})
    assert (found.modules[1].saved_bytes, found.modules[0].saved_bytes) == (5.0, 0.0)
    with pytest.raises(InputError, match=r"'block\.9', which is no module"):
        with_memory(problem, {"block.9": MemorySizes(saved_bytes=5.0)})
