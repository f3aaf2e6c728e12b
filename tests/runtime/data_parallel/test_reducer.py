"""Gradients under any plan are those of all ranks together, and what does not fit is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.runtime.data_parallel.examples import (
    Branching,
    batch,
    made,
    mean_gradients,
    names_of,
    plan_of,
    random_plan,
    sequential,
    whole,
)
from tests.runtime.data_parallel.stepped import assert_equal, gradients, loss_of, run
from wirewise.errors import InputError, PlanError
from wirewise.plans import Bucket, FusionPlan

BUILDS = {"branching": Branching, "stack": sequential}


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", BUILDS)
def test_gradients_are_the_mean_over_ranks(name, seed):
    ranks = 2 + seed % 2
    plan = random_plan(made(BUILDS[name]), ranks, seed)

    def body(model, reducer, rank):
        loss_of(model, rank).backward()
        return gradients(model)

    expected = mean_gradients(made(BUILDS[name]), ranks)
    for found in run(ranks, BUILDS[name], plan, body):
        assert_equal(found, expected)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_views_and_the_next_step_is_right_too(to_none):
    plan = random_plan(made(Branching), 2, 5)

    def body(model, reducer, rank):
        for step in range(3):
            model.zero_grad(set_to_none=to_none)
            loss_of(model, rank, step).backward()
        views = {p: v for bucket in reducer.buckets for p, v in bucket.views.items()}
        assert all(p.grad is views[p] for p in model.parameters())
        return gradients(model)

    for found in run(2, Branching, plan, body):
        assert_equal(found, mean_gradients(made(Branching), 2, step=2))


def test_a_gradient_that_is_a_view_is_not_copied():
    def body(model, reducer, rank):
        loss_of(model, rank).backward()
        before = {p: p.grad.data_ptr() for p in model.parameters()}
        model.zero_grad(set_to_none=False)
        loss_of(model, rank, 1).backward()
        return all(p.grad.data_ptr() == before[p] for p in model.parameters())

    assert run(2, sequential, whole(sequential(), 2), body) == [True, True]


def test_ranks_may_compute_gradients_in_different_orders():
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 4), nn.Linear(12, 4)
            self.first = "a"

    def forward(model, x):
        # The op that was made last is the first in back-propagation.
        made_first, made_last = (model.b, model.a) if model.first == "a" else (model.a, model.b)
        one = made_first(x)
        return one + made_last(x)

    groups = [["a.weight"], ["b.weight", "b.bias"], ["a.bias"]]
    plan = plan_of(Forked(), groups, 2)

    def body(model, reducer, rank):
        model.first = "ab"[rank]
        order = []
        for name, p in model.named_parameters():
            p.register_post_accumulate_grad_hook(lambda _, n=name: order.append(n))
        x, y = batch(rank, 0)
        nn.functional.cross_entropy(forward(model, x), y).backward()
        return order[0][0], gradients(model)

    (first, found), (second, other) = run(2, Forked, plan, body)
    assert {first, second} == {"a", "b"}
    model = made(Forked)
    for rank in range(2):
        x, y = batch(rank, 0)
        (nn.functional.cross_entropy(forward(model, x), y) / 2).backward()
    assert_equal(found, gradients(model))
    assert_equal(other, gradients(model))


def test_chunks_are_collectives_of_about_equal_size():
    model = sequential()
    plan = plan_of(model, [names_of(model)[:2], names_of(model)[2:]], 2, chunks=3)

    def body(model, reducer, rank):
        sizes = [[piece.numel() for piece in bucket.pieces] for bucket in reducer.buckets]
        loss_of(model, rank).backward()
        return sizes, gradients(model)

    (sizes, found), _ = run(2, sequential, plan, body)
    assert [len(s) for s in sizes] == [3, 3]
    assert all(max(s) - min(s) <= 1 for s in sizes)
    assert_equal(found, mean_gradients(made(sequential), 2))


def test_parameters_of_several_types_may_share_a_bucket():
    def build():
        return nn.ModuleDict({"a": nn.Linear(12, 12), "b": nn.Linear(12, 4, dtype=torch.float64)})

    def body(model, reducer, rank):
        x, y = batch(rank, 0)
        nn.functional.cross_entropy(model["b"](model["a"](x).double()), y).backward()
        return len(reducer.buckets[0].flats), gradients(model)

    (kinds, found), (_, other) = run(2, build, whole(build(), 2), body)
    assert kinds == 2
    for name in found:
        torch.testing.assert_close(found[name], other[name])
        assert found[name].dtype == (torch.float64 if name.startswith("b") else torch.float32)


@pytest.mark.parametrize("until", ["backward", "step"])
def test_accumulation_sends_in_the_last_micro_step_only(until):
    plan = random_plan(made(Branching), 2, 3, accumulation=3)

    def body(model, reducer, rank):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        reducer.attach(optimizer)
        launched = []
        start = reducer._direct.start
        reducer._direct.start = lambda *args: (launched.append(micro), start(*args))[1]
        for micro in range(3):
            loss_of(model, rank, micro).backward()
        optimizer.step()
        return set(launched), gradients(model)

    expected: dict[str, torch.Tensor] = {}
    for micro in range(3):
        for name, g in mean_gradients(made(Branching), 2, micro).items():
            expected[name] = expected.get(name, 0) + g
    for launched, found in run(2, Branching, plan, body, until=until):
        assert launched == {2}
        assert_equal(found, expected)


def test_a_step_with_fewer_micro_steps_reduces_what_there_is():
    plan = whole(made(Branching), 2, accumulation=4)

    def body(model, reducer, rank):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        reducer.attach(optimizer)
        loss_of(model, rank).backward()
        optimizer.step()
        return gradients(model)

    for found in run(2, Branching, plan, body):
        assert_equal(found, mean_gradients(made(Branching), 2))


def test_inside_no_sync_gradients_stay_local():
    plan = whole(made(sequential), 2)

    def body(model, reducer, rank):
        with reducer.no_sync():
            loss_of(model, rank, 0).backward()
        local = gradients(model)
        loss_of(model, rank, 1).backward()
        return local, gradients(model)

    (first, found), (second, _) = run(2, sequential, plan, body)
    assert not torch.allclose(first["0.weight"], second["0.weight"])
    expected = [mean_gradients(made(sequential), 2, step) for step in range(2)]
    assert_equal(found, {name: expected[0][name] + expected[1][name] for name in expected[0]})


class Optional(nn.Module):
    """Uses `side` when told to, and `never` never."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side, self.never = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(2, 2)
        self.with_side = False

    def forward(self, x):
        return self.main(x) + (self.side(x) if self.with_side else 0)


def test_a_parameter_without_gradient_is_named():
    def body(model, reducer, rank):
        with pytest.raises(InputError, match=r"2 parameters: never.bias, never.weight.*unused='zeros'"):
            model.with_side = True
            loss_of(model, rank).backward()
        return True

    assert run(2, Optional, whole(Optional(), 2), body) == [True, True]


def test_zeros_stand_for_a_gradient_that_other_ranks_have():
    def body(model, reducer, rank):
        model.with_side = rank == 1
        found = []
        for step in range(2):
            model.zero_grad()
            loss_of(model, rank, step).backward()
            found.append(gradients(model))
        return found

    plan = plan_of(Optional(), [["never.bias", "side.weight"], ["main.bias", "main.weight", "side.bias"],
                                ["never.weight"]], 2)  # fmt: skip
    first, second = run(2, Optional, plan, body, unused="zeros")
    for step in range(2):
        # As in DistributedDataParallel, one that no rank used has no gradient.
        assert set(first[step]) == {"main.weight", "main.bias", "side.weight", "side.bias"}
        assert_equal(first[step], second[step])
        model = made(Optional)
        for rank in range(2):
            model.with_side = rank == 1
            (loss_of(model, rank, step) / 2).backward()
        assert_equal(first[step], gradients(model))


def test_one_rank_leaves_a_parameter_that_it_did_not_use_without_gradient():
    def body(model, reducer, rank):
        loss_of(model, rank).backward()
        return set(gradients(model))

    [found] = run(1, Optional, whole(Optional(), 1), body, unused="zeros")
    assert found == {"main.weight", "main.bias"}


def test_sparse_gradients_are_refused():
    def build():
        return nn.Sequential(nn.Embedding(5, 3, sparse=True))

    def body(model, reducer, rank):
        with pytest.raises(InputError, match=r"'0.weight' is sparse.*sparse=False"):
            model(torch.tensor([1, 2])).sum().backward()
        return True

    assert run(2, build, whole(build(), 2), body) == [True, True]


@pytest.mark.parametrize("layer_behind", [True, False])
def test_reentrant_checkpoints_are_refused(layer_behind):
    def body(model, reducer, rank):
        x = torch.randn(3, 12, requires_grad=True)
        with pytest.raises(InputError, match="use_reentrant=False"):
            for _ in range(2):
                x = torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=True)
            (model[1](x) if layer_behind else x).sum().backward()
        return True

    def build():
        return nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))

    assert run(1, build, whole(build(), 1), body) == [True]


def test_a_closed_reducer_leaves_the_model_alone_until_it_is_opened():
    def body(model, reducer, rank):
        reducer.close()
        loss_of(model, rank).backward()
        local = gradients(model)
        model.zero_grad()
        reducer.open()
        loss_of(model, rank).backward()
        return local, gradients(model)

    (first, found), (second, _) = run(2, sequential, whole(sequential(), 2), body)
    assert not torch.allclose(first["0.weight"], second["0.weight"])
    assert_equal(found, mean_gradients(made(sequential), 2))


def test_a_back_propagation_that_failed_does_not_spoil_the_next():
    def body(model, reducer, rank):
        def fail(_):
            raise ValueError("broken loss")

        handle = model[0].weight.register_hook(fail)
        with pytest.raises(ValueError, match="broken loss"):
            loss_of(model, rank).backward()
        handle.remove()
        model.zero_grad()
        loss_of(model, rank, 1).backward()
        return gradients(model)

    model = sequential()
    plan = plan_of(model, [names_of(model)[:2], names_of(model)[2:]], 2)
    for found in run(2, sequential, plan, body):
        assert_equal(found, mean_gradients(made(sequential), 2, 1))


def test_gradients_may_travel_until_the_step():
    def body(model, reducer, rank):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        reducer.attach(optimizer)
        loss_of(model, rank).backward()
        travelling = bool(reducer._direct)
        with pytest.raises(InputError, match="until='backward'"):
            (model[0].weight * 1.0).sum().backward()
        optimizer.step()
        return travelling

    assert run(2, sequential, whole(sequential(), 2), body, until="step") == [True, True]


def announced(model: nn.Module, ranks: int, bucket_bytes: float) -> FusionPlan:
    return FusionPlan.by_size({name: p.nbytes for name, p in model.named_parameters()}, ranks, bucket_bytes)


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(("scale", "wire"), [("mean", None), ("sum", None), ("sum", torch.bfloat16)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_only_back_propagations_that_are_announced_are_reduced(ranks, scale, wire):
    plan = announced(made(Branching), ranks, 1000)
    assert len(plan.buckets) > 2

    def body(model, reducer, rank):
        found = []
        for step in range(2):
            loss_of(model, rank, 5).backward()
            beside = torch.tensor([rank + 1.0])
            reducer.begin(beside)
            loss_of(model, rank, step).backward()
            assert reducer.active
            reducer.finish()
            assert not reducer.active
            found.append((gradients(model), float(beside)))
            loss_of(model, rank, 6).backward()
        return found

    for found in run(ranks, Branching, plan, body, until="finish", scale=scale, wire=wire):
        for step, (own, beside) in enumerate(found):
            factor = ranks if scale == "sum" else 1
            expected = {
                name: g * factor for name, g in mean_gradients(made(Branching), ranks, step=step).items()
            }
            assert beside == sum(range(1, ranks + 1))
            if wire is None or ranks == 1:
                assert_equal(own, expected)
            else:
                every = [torch.cat([g[name].flatten() for name in own]) for g in (own, expected)]
                error = (every[0] - every[1]).norm() / every[1].norm()
                assert 0 < error < ranks * 2.0**-8


def test_an_announced_step_sums_zeros_of_a_rank_that_has_none():
    plan = announced(made(Branching), 2, torch.inf)

    def body(model, reducer, rank):
        model.zero_grad()
        reducer.begin()
        if rank == 1:
            model.out(batch(1, 0)[0]).sum().backward()
        reducer.finish()
        return gradients(model)

    first, second = run(2, Branching, plan, body, until="finish", scale="sum")
    assert set(first) == set(names_of(made(Branching)))
    assert_equal(first, second)
    assert float(first["out.weight"].abs().max()) > 0
    assert all(not g.any() for name, g in first.items() if not name.startswith("out."))


def test_an_announced_step_goes_on_after_one_that_failed():
    plan = announced(made(Branching), 2, 1000)

    def body(model, reducer, rank):
        handle = model.shared.weight.register_hook(lambda _: 1 / 0)
        reducer.begin()
        with pytest.raises(ZeroDivisionError):
            loss_of(model, rank).backward()
        handle.remove()
        reducer.begin()
        loss_of(model, rank).backward()
        reducer.finish()
        return gradients(model)

    for found in run(2, Branching, plan, body, until="finish"):
        assert_equal(found, mean_gradients(made(Branching), 2))


@pytest.mark.parametrize("options", [{"scale": "sum"}, {"wire": torch.bfloat16}, {"until": "finish"}])
def test_sums_and_other_types_are_for_plans_without_codecs(options):
    model = sequential()
    bucket = Bucket(parameters=tuple(names_of(model)), size_bytes=4, codec="bf16")
    plan = FusionPlan(world_size=1, planner="test", buckets=(bucket,))
    with pytest.raises(PlanError, match="has codecs or other schemes"):
        run(1, sequential, plan, lambda *_: None, **options)
