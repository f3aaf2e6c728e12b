"""Measured costs of codecs and collectives, and when gradients get ready."""

import pickle

import msgspec
import pytest
import torch
from tests.harness.threads import run_ranks_as_threads
from torch import nn

from wirewise.cost.gradients import GradientCosts, group_costs, load_costs
from wirewise.errors import InputError
from wirewise.lab.replayed import ReplayedModel
from wirewise.planners.fusion.cupcake import compression_problem, plan_groups
from wirewise.profile.gradients import gradient_trace, measure_costs
from wirewise.runtime.transport import Transport
from wirewise.trace.gradients import GradientTensor, GradientTrace

SIZES = (64, 512, 4096, 20_000, 100_000)


def measured(ranks, codecs, **options):
    def work(rank, group, store):
        return measure_costs(Transport(group, store=store), codecs, sizes=SIZES, **options)

    return run_ranks_as_threads(ranks, work)


@pytest.mark.slow
def test_all_ranks_get_the_same_tables_and_the_planner_takes_them(tmp_path):
    codecs = ["none", "efsign", "topk", "fp16"]
    first, second = measured(2, codecs, ratio=0.02, tensor_elements=5_000)
    assert first == second
    assert list(first.codecs) == codecs and first.ratio == 0.02 and first.ranks == 2
    assert set(first.schemes) == {"all_reduce", "all_gather", "divisible"}
    assert all(len(knots) >= 5 for knots in first.schemes.values())
    assert {seconds for _, seconds in first.codecs["none"].decode} == {0.0}
    assert group_costs(first, "none", None, ranks=2)[0].encode_s(1e6) > 0
    for times in map(first.codecs.get, codecs[1:]):
        assert [x for x, _ in times.encode] == list(SIZES) and set(times.decode_sum) == {2}
        # Measured: above the resolution of the clock, and a hundred thousand elements are not free.
        assert times.encode[0][1] > 1e-7 and times.encode[-1][1] > 1e-5
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(first))
    assert load_costs(path) == first
    assert {cost.scheme for cost in group_costs(first, "efsign", None, ranks=2)} == {
        "all_gather",
        "divisible",
    }
    assert plan_for(first).world_size == 2


def plan_for(costs: GradientCosts):
    tensors = tuple(GradientTensor(name=str(i), elements=10_000, gap_us=100) for i in range(8))
    problem = compression_problem(
        GradientTrace(tensors=tensors), codec=["efsign", "none"], costs=costs, ranks=2
    )
    return plan_groups(problem)


def test_too_few_sizes_and_unknown_codecs_are_named():
    class Nobody:
        group, world_size = None, 1

    with pytest.raises(InputError, match="two or more"):
        measure_costs(Nobody(), [], sizes=[8])
    with pytest.raises(InputError, match="unknown gradient codec 'zip'"):
        measure_costs(Nobody(), ["zip"])


def replayed(*gaps_us):
    tensors = tuple(GradientTensor(name=f"t{i}", elements=i + 1, gap_us=g) for i, g in enumerate(gaps_us))
    return ReplayedModel(GradientTrace(tensors=tensors), forward_share=0)


def train(model):
    x = torch.ones(1, requires_grad=True)

    def step():
        model.zero_grad()
        model(x).sum().backward()

    return step


def test_the_trace_of_a_replayed_model_is_the_one_it_was_made_from():
    model = replayed(0, 20_000, 5_000, 10_000)
    found = gradient_trace(model, train(model), steps=5)
    assert [(t.name, t.elements) for t in found.tensors] == [(f"t{i}", i + 1) for i in range(4)]
    # A busy machine adds time, which the model takes off the gaps that follow: the first and the sum are certain.
    gaps_us = [t.gap_us for t in found.tensors]
    assert gaps_us[1] > 18_000 and sum(gaps_us) > 33_000
    found.check_itself()


def test_with_a_transport_ranks_agree():
    def work(rank, group, store):
        model = replayed(0, 1_000 * (1 + 20 * rank))
        return gradient_trace(model, train(model), steps=3, transport=Transport(group, store=store))

    first, second = run_ranks_as_threads(2, work)
    assert first == second and first.tensors[1].gap_us > 15_000


def test_a_model_is_written_and_copied_as_without_a_measurement():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    copies = []

    def step():
        model(torch.ones(1, 2)).sum().backward()
        copies.append(pickle.loads(pickle.dumps(model)))
        # The pass of a copy is none of the model's.
        copies[-1](torch.ones(1, 2)).sum().backward()

    found = gradient_trace(model, step, steps=2)
    assert {tensor.name for tensor in found.tensors} == set(dict(model.named_parameters()))
    assert copies and not any(one._forward_hooks for copy in copies for one in copy.modules())


def test_a_parameter_without_gradient_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"none for \['1.bias', '1.weight'\]"):
        gradient_trace(
            model, lambda: model[0](torch.ones(1, 2) + model(torch.ones(1, 2)).detach()).sum().backward()
        )
