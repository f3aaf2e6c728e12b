"""The estimator of fused regions (E2): what it reads, what it says, and its files."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from benchmarks.random_steps import random_graph

from tests.planners.fusion.estimators import estimator, network, region
from wirewise.errors import InputError
from wirewise.planners.fusion.disco import AnalyticCosts
from wirewise.planners.fusion.disco.estimator import (
    VECTORS,
    Estimator,
    LearnedCosts,
    costs_for,
    load_shipped,
    vectors_here,
)
from wirewise.planners.fusion.disco.features import FEATURES, PRIORS, RegionGraph, region_graph
from wirewise.planners.fusion.disco.passes import cache_overflow, loops_of, stored_results
from wirewise.profile.estimator import batch_of, fit
from wirewise.trace import FusionGraph, Operator, read_fusion_graph
from wirewise.trace.operators import MemoryLayout

NUMBERS = {"mm": 1, "mul": 2, "outside": 3, "sum": 4}


def shuffled(one: RegionGraph, seed: int) -> RegionGraph:
    order = np.random.default_rng(seed).permutation(len(one.kinds))
    return RegionGraph(
        one.nodes[order],
        tuple(one.kinds[i] for i in order),
        one.reads[np.ix_(order, order)],
        one.prior_s[order],
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_nodes_does_not_matter(seed):
    one, found = region(seed), estimator()
    assert found.seconds(shuffled(one, seed)) == pytest.approx(found.seconds(one), rel=1e-4)


def test_a_batch_says_what_its_regions_say_one_by_one_in_torch_and_in_numpy():
    regions = [region(seed, operators) for seed, operators in enumerate((5, 9, 14, 9))]
    own = network(5)
    together = own(batch_of(regions, NUMBERS)).exp().tolist()
    alone = [own(batch_of([one], NUMBERS)).exp().item() for one in regions]
    assert together == pytest.approx(alone, rel=1e-5)
    assert [estimator(members=1).seconds(one) for one in regions] == pytest.approx(together, rel=1e-4)


def test_all_weights_get_gradients():
    own = network(5)
    own(batch_of([region(seed) for seed in range(6)], NUMBERS)).square().sum().backward()
    for name, one in own.named_parameters():
        assert one.grad is not None and one.grad.abs().sum() > 0, name


def test_edges_matter():
    one, found = region(0, 14), estimator()
    assert one.reads.any()
    assert found.seconds(one._replace(reads=np.zeros_like(one.reads))) != pytest.approx(found.seconds(one))


def chain(*kinds: str, category: str = "pointwise", size: int = 4096) -> FusionGraph:
    return FusionGraph(
        operators=tuple(
            Operator(
                name=f"o{i}",
                kind=f"aten.{kind}.default",
                category="reduction" if kind == "sum" else "view" if kind == "expand" else category,
                inputs=(i - 1,) if i else (),
                outside_bytes=0 if i else size,
                output_bytes=4 if kind == "sum" else size,
                elements=1 if kind == "sum" else size // 4,
                time_s=1e-5,
            )
            for i, kind in enumerate(kinds)
        )
    )


def test_what_two_loops_need_is_computed_twice_unless_it_is_stored():
    # sub reads tanh and its sum: the sum ends a loop, so tanh is computed again for sub.
    graph = chain("tanh", "sum", "sub")
    both = msgspec.structs.replace(graph.operators[2], inputs=(0, 1))
    graph = msgspec.structs.replace(graph, operators=(*graph.operators[:2], both))
    found = loops_of(graph, (0, 1, 2), (2,))
    assert [found[i].computed for i in range(3)] == [2, 1, 1]
    assert [found[i].first for i in range(3)] == [0, 0, 1]
    assert loops_of(graph, (0, 1, 2), (0, 2))[0].computed == 1
    exponential = msgspec.structs.replace(graph.operators[0], kind="aten.exp.default")
    stored = msgspec.structs.replace(graph, operators=(exponential, *graph.operators[1:]))
    assert loops_of(stored, (0, 1, 2), (2,))[0].computed == 1


def test_what_only_shapes_depend_on_takes_nothing():
    graph = chain("exp", "ones_like", "mul")
    found = loops_of(graph, (0, 1, 2), (2,))
    assert [found[i].live for i in range(3)] == [False, True, True]
    assert region_graph(graph, (0, 1, 2), (2,)).prior_s[0].sum() < 1e-6


def test_the_gradient_of_a_loss_needs_no_logarithms():
    graph = chain("_log_softmax", "nll_loss_forward", "nll_loss_backward")
    both = msgspec.structs.replace(graph.operators[2], inputs=(0, 1))
    graph = msgspec.structs.replace(graph, operators=(*graph.operators[:2], both))
    assert [loops_of(graph, (0, 1, 2), (2,))[i].live for i in range(3)] == [False, True, True]
    assert all(one.live for one in loops_of(graph, (0, 1, 2), (1, 2)).values())


def test_what_has_the_shape_of_a_loss_does_not_read_it():
    # As captured: the backward pass begins with ones of the shape of the loss.
    graph = chain("_log_softmax", "nll_loss_forward", "ones_like", "nll_loss_backward")
    last = msgspec.structs.replace(graph.operators[3], inputs=(0, 1, 2))
    graph = msgspec.structs.replace(graph, operators=(*graph.operators[:3], last))
    assert not loops_of(graph, (0, 1, 2, 3), (3,))[0].live


def test_a_view_that_repeats_values_moves_what_they_are():
    graph = chain("sum", "expand", "mul")
    wide = region_graph(chain("neg", "expand", "mul"), (1, 2), (2,)).nodes
    narrow = region_graph(graph, (1, 2), (2,)).nodes
    assert wide.shape == (3, FEATURES)
    assert narrow[1, 2] < wide[1, 2]  # Bytes that mul reads.


def with_layout(graph: FusionGraph, number: int, layout: MemoryLayout) -> FusionGraph:
    own = list(graph.operators)
    own[number] = msgspec.structs.replace(own[number], layout=layout)
    return msgspec.structs.replace(graph, operators=tuple(own))


def test_what_one_operator_of_a_loop_walks_is_told_of_all_of_them():
    plain = chain("neg", "tanh", "mul", "sum")
    strided = with_layout(plain, 0, MemoryLayout(inner=64, strided=1))
    apart = region_graph(plain, (0, 1, 2), (2,)).nodes != region_graph(strided, (0, 1, 2), (2,)).nodes
    assert apart.any(1).all()
    # The sum's readers run in a later loop.
    graph = with_layout(chain("neg", "sum", "tanh"), 0, MemoryLayout(inner=64, strided=1))
    other = region_graph(chain("neg", "sum", "tanh"), (0, 1, 2), (2,)).nodes
    assert (region_graph(graph, (0, 1, 2), (2,)).nodes != other).any(1).tolist() == [True, False, False]


def test_a_reduction_walks_what_it_reads():
    graph = chain("neg", "sum")
    wide = with_layout(graph, 1, MemoryLayout(inner=64, reduced=1024))
    told, wider = (region_graph(one, (0, 1), (1,)).prior_s for one in (graph, wide))
    assert told.shape == (2, PRIORS)
    assert wider[1, 1] == pytest.approx(1024 * told[1, 1]) and (wider[0] == told[0]).all()


def joined(kind: str) -> FusionGraph:
    """Six operators without inputs, one that reads all of them, its sum, and one that reads both."""
    graph = chain(*["neg"] * 6, kind, "sum", "sub")
    inputs = [(), (), (), (), (), (), (0, 1, 2, 3, 4, 5), (6,), (6, 7)]
    own = [msgspec.structs.replace(one, inputs=i) for one, i in zip(graph.operators, inputs, strict=True)]
    return msgspec.structs.replace(graph, operators=tuple(own))


def test_what_reads_many_values_is_stored_and_read_again():
    graph, members = joined("add"), (6, 7, 8)
    assert loops_of(graph, members, (8,))[6].computed == 1
    assert stored_results(graph, members, {8}, loops_of(graph, members, (8,))) == {6, 7}
    # Fewer values are read again, and the operator is computed again.
    few = list(graph.operators)
    few[6] = msgspec.structs.replace(few[6], inputs=(0, 1, 2, 3))
    graph = msgspec.structs.replace(graph, operators=tuple(few))
    assert loops_of(graph, members, (8,))[6].computed == 2
    assert stored_results(graph, members, {8}, loops_of(graph, members, (8,))) == {7}


def test_what_joins_values_ends_a_loop():
    graph = joined("cat")
    assert [loops_of(graph, (6, 7, 8), (8,))[i].first for i in (6, 7, 8)] == [0, 1, 2]
    assert [loops_of(joined("add"), (6, 7, 8), (8,))[i].first for i in (6, 7, 8)] == [0, 0, 1]


def test_a_loop_with_many_strided_reads_goes_value_by_value():
    plain, strided = (
        chain("neg", "mul"),
        with_layout(chain("neg", "mul"), 1, MemoryLayout(inner=64, strided=2)),
    )
    vector, lone = (region_graph(one, (0, 1), (1,)).prior_s for one in (plain, strided))
    assert (vector[:, 1] > 0).all() and not vector[:, 3].any()
    assert (lone[:, 3] > vector[:, 1]).all() and not lone[:, 1].any()


def test_a_slow_kernel_of_eager_mode_does_not_say_what_a_loop_takes():
    graph = chain("neg", "linalg_vector_norm", "mul")
    slow = msgspec.structs.replace(graph.operators[1], time_s=1.0)
    graph = msgspec.structs.replace(graph, operators=(graph.operators[0], slow, graph.operators[2]))
    assert region_graph(graph, (0, 1, 2), (2,)).prior_s[1, 0] < 1e-4


def test_what_is_only_allocated_is_not_written():
    # A value of which only the shape is read costs nothing either.
    graph = chain("exp", "empty_like")
    assert region_graph(graph, (0, 1), (1,)).prior_s[:, 2:].sum() == 0
    assert region_graph(chain("exp", "neg"), (0, 1), (1,)).prior_s[1, 2] > 0


@pytest.mark.parametrize(("size", "share"), [(1, 0), (2**19, 0), (2**20, 0.5), (2**21, 1), (2**30, 1)])
def test_how_far_bytes_are_from_a_cache(size, share):
    assert cache_overflow(size, 2**20) == pytest.approx(share)


def test_large_regions_read_from_memory():
    near, far = (
        region_graph(chain("neg", "mul", size=size), (0, 1), (1,)).prior_s for size in (2**12, 2**28)
    )
    assert not near[:, 4:6].any() and (far[1, 4:6] > 0).all()


def test_impossible_layouts_are_refused(tmp_path):
    graph = chain("neg", "mul")
    own = msgspec.structs.replace(graph.operators[1], gradient="w")
    graph = msgspec.structs.replace(graph, operators=(graph.operators[0], own))
    graph.save(tmp_path / "good.json")
    assert read_fusion_graph(tmp_path / "good.json") == graph
    with_layout(graph, 0, MemoryLayout(reduced=0)).save(tmp_path / "bad.json")
    with pytest.raises(InputError, match=r"operator 'o0' .*Layout\(.*expected 1 of reduced"):
        read_fusion_graph(tmp_path / "bad.json")


def test_files_give_back_the_same_estimator(tmp_path):
    found = estimator()
    found.save(tmp_path / "weights.npz")
    again = Estimator.load(tmp_path / "weights.npz")
    assert again.about == found.about
    assert again.seconds(region(3)) == found.seconds(region(3))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "weights.npz"
    path.write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"cannot read an estimator from .*weights\.npz"):
        Estimator.load(path)
    with pytest.raises(InputError, match="No such file"):
        Estimator.load(tmp_path / "none.npz")
    np.savez(path, about=np.array([object()], dtype=object))
    with pytest.raises(InputError, match="allow_pickle"):
        Estimator.load(path)
    found = estimator()
    other = msgspec.structs.replace(found.about, format="something else")
    Estimator(other, found._weights).save(path)
    with pytest.raises(InputError, match="its format is 'something else'"):
        Estimator.load(path)


@pytest.mark.parametrize("change", [lambda w: w[:1], lambda w: w * np.nan, None])
def test_weights_of_another_network_are_refused(change):
    found = estimator()
    weights = dict(found._weights)
    if change is None:
        del weights["1.mix.2.weight"]
    else:
        weights["1.mix.2.weight"] = change(weights["1.mix.2.weight"])
    with pytest.raises(InputError, match=r"mix\.2\.weight.* expected finite ones of shape"):
        Estimator(found.about, weights)


def test_the_shipped_estimator_serves_cpus_and_says_so():
    graph = random_graph(0, 12, 3)
    timed = tuple(msgspec.structs.replace(one, time_s=2e-5) for one in graph.operators)
    graph = msgspec.structs.replace(graph, operators=timed, device="cpu")
    chosen = costs_for(graph)
    assert isinstance(chosen.costs, LearnedCosts) and load_shipped().about.machine in chosen.why
    assert chosen.costs((0, 1), (1,)) == load_shipped().seconds(region_graph(graph, (0, 1), (1,)))
    # Fused, two operators take neither a tenth of one of them nor ten times both.
    assert 2e-6 < chosen.costs((0, 1), (1,)) < 4e-4
    assert chosen.costs((2,), (2,)) == graph.operators[2].time_s
    elsewhere = costs_for(msgspec.structs.replace(graph, device="cuda:0"))
    assert (
        isinstance(elsewhere.costs, AnalyticCosts)
        and "no weights of the estimator for device 'cuda'" in elsewhere.why
    )


@pytest.mark.parametrize("vectors", VECTORS)
def test_the_shipped_files_are_small_and_say_what_they_are_of(vectors, tmp_path):
    found = load_shipped(vectors)
    assert vectors.upper() in found.about.machine
    found.save(tmp_path / "weights.npz")
    assert (tmp_path / "weights.npz").stat().st_size < 500_000


def test_weights_go_with_the_vectors_of_the_processor():
    assert load_shipped().about == load_shipped(vectors_here()).about
    with pytest.raises(InputError, match="weights for avx2, avx512, not for 'sve'"):
        load_shipped("sve")


def test_networks_that_know_other_kinds_are_trained_on():
    start, regions = estimator(), [region(seed) for seed in range(12)]
    seconds = [3.0 * start.seconds(one) for one in regions]
    found = fit(regions, seconds, machine="another", start=start, epochs=30)
    assert found.about.members == start.about.members
    assert found.about.kinds[: len(start.about.kinds)] == start.about.kinds
    missed = [abs(np.log(found.seconds(one) / s)) for one, s in zip(regions, seconds, strict=True)]
    assert np.mean(missed) < np.log(3.0) / 2


def missed(**knobs) -> float:
    """Mean error of the log for regions that take two to four times what networks say at first."""
    start, regions = estimator(), [region(seed) for seed in range(12)]
    seconds = [(2 + i % 3) * start.seconds(one) for i, one in enumerate(regions)]
    found = fit(regions, seconds, machine="another", start=start, **knobs)
    return float(
        np.mean([abs(np.log(found.seconds(one) / s)) for one, s in zip(regions, seconds, strict=True)])
    )


@pytest.mark.slow
def test_what_training_hides_is_learned_less_by_heart():
    assert missed(epochs=60, dropout=0.0) < missed(epochs=60, dropout=0.5)


def test_small_batches_make_more_steps():
    assert missed(epochs=5, batch=2) < missed(epochs=5, batch=12)


def test_torch_keeps_its_state():
    before = torch.get_rng_state()
    load_shipped().seconds(region(1))
    assert torch.equal(torch.get_rng_state(), before)
