"""The network: names of op groups and devices mean nothing, and any number of them will do."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from wirewise.planners.placement.tag.features import observe
from wirewise.planners.placement.tag.network import (
    SHIPPED,
    new_weights,
    read_weights,
    scores,
    shipped_policy,
    write_weights,
)
from wirewise_papers.tag.random_models import random_problem


@pytest.mark.parametrize("place", [0, 2])
def test_relabelling_permutes_scores(place):
    problem = random_problem(11, hosts=3, groups=6)
    seen, weights, random = (
        observe(problem, problem.baseline(), place),
        read_weights(SHIPPED),
        np.random.default_rng(0),
    )
    before = scores(weights, seen)
    o, d, a = (random.permutation(n) for n in (len(seen.ops), len(seen.devices), len(seen.actions)))
    again = scores(
        weights,
        seen._replace(
            ops=seen.ops[o],
            devices=seen.devices[d],
            tensors=seen.tensors[o][:, o],
            links=seen.links[d][:, d],
            pairs=seen.pairs[o][:, d],
            group=int(np.flatnonzero(o == seen.group)[0]),
            actions=seen.actions[a],
            places=seen.places[a][:, d],
        ),
    )
    assert np.abs(again - before[a]).max() < 1e-5
    assert np.ptp(before) > 1e-3


@pytest.mark.parametrize("hosts", [1, 2, 5, 8])
def test_one_file_serves_any_number_of_device_groups(hosts):
    problem = random_problem(20 + hosts, hosts=hosts, groups=4)
    assert len(problem.device_groups) == hosts
    likely = shipped_policy()(problem, problem.baseline(), 1)
    assert likely.shape == (len(problem.actions[problem.order[1]]),)
    assert likely.sum() == pytest.approx(1.0)
    assert (likely > 0).all()


def test_modules_that_take_no_time_have_features():
    problem = random_problem(11, hosts=3, groups=6)
    first, *others = problem.trace.modules
    nothing = (0.0,) * len(problem.trace.sizes)
    idle = msgspec.structs.replace(first, forward_s=nothing, backward_s=nothing, weight_gradient_s=nothing)
    trace = msgspec.structs.replace(problem.trace, modules=(idle, *others))
    made = dataclasses.replace(problem, trace=trace)
    seen = observe(made, made.baseline(), 0)
    assert all(np.isfinite(one).all() for one in seen)
    assert seen.ops.shape == (len(made.op_groups), observe(problem, problem.baseline(), 0).ops.shape[1])


def test_weights_survive_a_file(tmp_path):
    made = new_weights(1)
    write_weights(made, tmp_path / "w.npz")
    found = read_weights(tmp_path / "w.npz")
    assert all(np.allclose(found[name], array, rtol=1e-3, atol=1e-3) for name, array in made.items())
