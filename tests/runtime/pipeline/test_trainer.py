"""Weights after training in stages are those of one process, in every timetable."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.processes import RankError, run_ranks_as_processes
from tests.harness.threads import run_ranks_as_threads
from tests.runtime.pipeline.examples import (
    WIDTH,
    alone,
    arms,
    batches,
    chain,
    loss,
    parameters_of,
    piped,
    plan_for,
    tied,
    unet,
    worst,
)  # fmt: skip
from wirewise.errors import InputError, PeerError, PlanError
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import LayerGraph, LossScale, Pipeline

STYLES = ("gpipe", "1f1b", "eager", "eager-split", "zero-bubble", "interleaved")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


@pytest.mark.sweep
@pytest.mark.parametrize("build", [chain, unet])
@pytest.mark.parametrize("positions", [1, 2, 4])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.sample(15)
def test_any_timetable_trains_as_one_process(style: str, positions: int, build: Any) -> None:
    for microbatches in (1, positions + 1):
        plan = plan_for(build(), positions, style=style, microbatches=microbatches)
        expected, losses = alone(build, plan, [batches(2, plan)], sgd)
        found, own = piped(build, plan, 2, sgd)
        assert worst(found, expected) <= 1e-12
        assert found.keys() == {name for name in expected if name in found}
        torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("style", ["1f1b", "2bw"])
def test_arms_of_a_graph_are_cut_in_any_order_that_computes_sources_first(style: str) -> None:
    names = ("first", "right0", "right1", "left0", "left1", "last")
    plan = StagePlan.from_cuts(names, [2, 4], style=style, microbatches=4, microbatch_size=2)
    expected, losses = alone(arms, plan, [batches(2, plan)], sgd)
    found, own = piped(arms, plan, 2, sgd)
    assert worst(found, expected) <= 1e-12 and found.keys() == expected.keys()
    torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("style", ["1f1b", "eager-split", "2bw"])
def test_a_module_that_stands_twice_is_computed_twice(style: str) -> None:
    def twice() -> LayerGraph:
        torch.manual_seed(5)
        again = nn.Linear(WIDTH, WIDTH).double()
        return LayerGraph(nn.Sequential(again, nn.Tanh(), again, nn.Linear(WIDTH, WIDTH).double()))

    assert twice().names == ("0", "1", "2", "3")
    plan = plan_for(twice(), 1, style=style, microbatches=3)
    expected, losses = alone(twice, plan, [batches(3, plan)], sgd)
    found, own = piped(twice, plan, 3, sgd)
    assert worst(found, {name: expected[name] for name in found}) <= 1e-12
    torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("style", ["1f1b", "eager-split", "2bw"])
def test_activations_computed_again_change_nothing(style: str) -> None:
    kept, again = (plan_for(unet(), 3, style=style, microbatches=4, recompute=r) for r in (False, True))
    assert worst(piped(unet, again, 3, sgd)[0], piped(unet, kept, 3, sgd)[0]) == 0.0


@pytest.mark.sweep
@pytest.mark.parametrize("microbatches", ["p", "p + 1", "3 p"])
@pytest.mark.parametrize("positions", [1, 2, 3, 4])
def test_two_versions_follow_the_recurrence_exactly(positions: int, microbatches: str) -> None:
    count = {"p": positions, "p + 1": positions + 1, "3 p": 3 * positions}[microbatches]
    plan = plan_for(chain(), positions, style="2bw", microbatches=count)
    expected, losses = alone(chain, plan, [batches(6, plan)], sgd)
    found, own = piped(chain, plan, 6, sgd)
    assert worst(found, expected) == 0.0
    torch.testing.assert_close(own, losses, rtol=0, atol=1e-12)


def _muon(parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for all others, as it is used."""
    matrices = [p for p in parameters if p.dim() == 2]
    return [torch.optim.Muon(matrices, lr=0.02), adamw([p for p in parameters if p.dim() != 2])]


def _momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)


class _Both(torch.optim.Optimizer):
    """Several optimizers as one, for the single process."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self._own = _muon(parameters)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in self._own:
            one.step()


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("optimizer", "alike"),
    [(_momentum, _momentum), (adamw, adamw), (torch.optim.Adam, torch.optim.Adam), (_muon, _Both)],
    ids=["momentum", "adamw", "adam", "muon"],
)
def test_two_versions_with_any_optimizer(optimizer: Any, alike: Any) -> None:
    plan = plan_for(chain(), 3, style="2bw", microbatches=4)
    expected, _ = alone(chain, plan, [batches(6, plan)], alike)
    assert worst(piped(chain, plan, 6, optimizer)[0], expected) <= 1e-12


def _everything(rank: int, plan: StagePlan, clip: float | None, build: Any) -> Any:
    """Two replicas where the plan has them, shared parameters, a clipped norm."""
    pipeline = Pipeline(build(), plan, loss=loss, optimizer=_momentum, clip=clip, timeout_s=30)
    own = batches(6, plan, plan.place_of(rank)[1])
    losses = [one.loss for one in pipeline.train(own)]
    found = {n: p.detach().clone() for n, p in pipeline.weights.named.items()}
    pipeline.close()
    return found, losses


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("style", "clip", "exchange"),
    [
        ("2bw", 0.05, "hidden"),
        pytest.param("2bw", 0.05, "end", marks=pytest.mark.slow),
        pytest.param("2bw", None, "hidden", marks=pytest.mark.slow),
        pytest.param("1f1b", 0.05, "end", marks=pytest.mark.slow),
    ],
)
def test_replicas_shared_parameters_and_clipping(style: str, clip: float | None, exchange: Any) -> None:
    plan = plan_for(tied(), 2, style=style, microbatches=3, replicas=2, exchange=exchange)
    expected, _ = alone(tied, plan, [batches(6, plan, r) for r in range(2)], _momentum, clip=clip)
    ranks = run_ranks_as_processes(4, _everything, plan, clip, tied)
    for found, _ in ranks:
        assert worst(found, expected) <= 1e-12


@pytest.mark.dist
@pytest.mark.slow
def test_a_parameter_of_first_and_last_stage_without_replicas() -> None:
    plan = plan_for(tied(), 3, style="2bw", microbatches=4, exchange="hidden")
    expected, _ = alone(tied, plan, [batches(6, plan)], _momentum)
    ranks = run_ranks_as_processes(3, _everything, plan, None, tied)
    assert worst(ranks[0][0] | ranks[1][0] | ranks[2][0], expected) <= 1e-12
    assert torch.equal(ranks[0][0]["first.weight"], ranks[2][0]["last.weight"])


def _dropped() -> LayerGraph:
    return chain(8, dropout=0.5)


def _train_dropped(rank: int, plan: StagePlan) -> Any:
    pipeline = Pipeline(_dropped(), plan, loss=loss, optimizer=sgd, seed=7, timeout_s=30)
    state = torch.get_rng_state()
    list(pipeline.train(batches(3, plan)))
    assert torch.equal(torch.get_rng_state(), state)
    pipeline.close()
    return {n: p.detach().clone() for n, p in pipeline.weights.named.items()}


@pytest.mark.dist
@pytest.mark.slow
def test_dropout_is_the_same_in_any_timetable_and_when_activations_are_computed_again() -> None:
    plans = [
        plan_for(_dropped(), 1, style="1f1b", microbatches=4),
        plan_for(_dropped(), 2, style="eager-split", microbatches=4, recompute=True),
        plan_for(_dropped(), 4, style="1f1b", microbatches=4),
    ]
    expected, *others = [run_ranks_as_processes(plan.world_size, _train_dropped, plan) for plan in plans]
    for ranks in others:
        assert worst({n: p for own in ranks for n, p in own.items()}, expected[0]) <= 1e-12


def test_versions_and_activations_are_as_many_as_the_plan_says() -> None:
    plan = plan_for(chain(), 3, style="2bw", microbatches=4)
    built = [chain() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> Any:
        pipeline = Pipeline(
            built[rank], plan, loss=loss, optimizer=adamw, process_group=group, store=store, timeout_s=20, recorded=True
        )  # fmt: skip
        (stage,) = pipeline.stages.values()
        storages, most = set(), 0
        forward = stage.forward

        def watched(*args: Any) -> Any:
            nonlocal most
            storages.update(p.untyped_storage().data_ptr() for p in stage.parameters())
            found = forward(*args)
            most = max(most, stage.in_flight)
            return found

        stage.forward = watched  # type: ignore[method-assign]
        list(pipeline.train(batches(5, plan)))
        pipeline.close()
        return pipeline.records, len(storages), len(list(stage.parameters())), most

    for position, (records, storages, parameters, most) in enumerate(run_ranks_as_threads(3, body)):
        assert storages == 2 * parameters
        assert most == 3 - position
        assert len(records) == 2 * 4 * 5
        for record in records:
            assert record.version == max(record.step.update - 1, 0)


def _resumed(rank: int, plan: StagePlan, correction: Any, stop: int) -> Any:
    def make() -> Pipeline:
        return Pipeline(
            chain(8, dropout=0.3), plan, loss=loss, optimizer=adamw, seed=5, clip=0.1, timeout_s=30,
            delay_correction=correction,
            schedule=lambda one: torch.optim.lr_scheduler.StepLR(one, 2, gamma=0.5),
        )  # fmt: skip

    feed = batches(6, plan)
    straight = make()
    states: dict[int, Any] = {}
    for one in straight.train(feed):
        if one.update + 1 == stop:
            states[stop] = straight.state_dict()
    again = make()
    again.load_state_dict(states[stop])
    assert again.update == stop
    list(again.train(feed[stop:]))
    return [{n: p.detach().clone() for n, p in one.weights.named.items()} for one in (straight, again)]


@pytest.mark.dist
@pytest.mark.parametrize(
    ("style", "correction"),
    [
        ("2bw", "none"),
        ("2bw", "nesterov"),
        pytest.param("2bw", "error_feedback", marks=pytest.mark.slow),
        pytest.param("1f1b", "none", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_resumed_training_is_equal_bit_by_bit(style: str, correction: str) -> None:
    plan = plan_for(
        chain(), 2, style=style, microbatches=3, **({"exchange": "hidden"} if style == "2bw" else {})
    )
    for straight, again in run_ranks_as_processes(2, _resumed, plan, correction, 3):
        assert all(torch.equal(straight[name], again[name]) for name in straight)


def normalized() -> LayerGraph:
    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    return LayerGraph([layer.double() for layer in layers])


def test_a_state_has_the_buffers_of_its_stages() -> None:
    plan = plan_for(normalized(), 2, style="1f1b", microbatches=2)

    def body(rank: int, group: Any, store: Any) -> None:
        pipelines = [
            Pipeline(
                normalized(), plan, loss=loss, optimizer=sgd, process_group=group, store=store, timeout_s=30
            )
            for _ in range(2)
        ]
        list(pipelines[0].train(batches(2, plan)))
        state = pipelines[0].state_dict()
        pipelines[1].load_state_dict(state)
        trained, loaded = (
            dict(one.stages[rank].modules[str(2 * rank + 1)].named_buffers()) for one in pipelines
        )
        assert trained["num_batches_tracked"] == 4
        assert all(torch.equal(trained[name], loaded[name]) for name in trained)
        del state["buffers"][f"{2 * rank + 1}.running_mean"]
        with pytest.raises(InputError, match=r"expected .*running_mean"):
            pipelines[1].load_state_dict(state)
        for one in pipelines:
            one.close()

    run_ranks_as_threads(2, body)


def _with_infinity(rank: int, plan: StagePlan) -> Any:
    scale = LossScale(8.0, dynamic=True, patience=2)
    rates: list[float] = []

    def schedule(one: torch.optim.Optimizer) -> Any:
        made = torch.optim.lr_scheduler.LambdaLR(one, lambda update: 1.0 / (1 + update))
        rates.append(one.param_groups[0]["lr"])
        return made

    pipeline = Pipeline(
        chain(), plan, loss=loss, optimizer=sgd, loss_scale=scale, schedule=schedule, timeout_s=30
    )
    feed = batches(5, plan)
    feed[2] = (feed[2][0] * float("inf"), feed[2][1])
    weights, factors = [], []
    for _ in pipeline.train(feed):
        pipeline.state_dict()
        weights.append({n: p.detach().clone() for n, p in pipeline.weights.named.items()})
        factors.append(scale.history[-1])
    pipeline.close()
    return weights, factors


@pytest.mark.slow
@pytest.mark.dist
def test_an_update_with_infinite_gradients_is_skipped_on_all_ranks() -> None:
    plan = plan_for(chain(), 2, style="2bw", microbatches=3)
    for weights, factors in run_ranks_as_processes(2, _with_infinity, plan):
        changed = [any(not torch.equal(one[n], other[n]) for n in one) for one, other in pairwise(weights)]
        # Update 2 is skipped; 3 and 4 use versions from before it and after it.
        assert changed == [True, False, True, True]
        assert all(torch.isfinite(p).all() for one in weights for p in one.values())
        assert factors == [8.0, 16.0, 8.0, 8.0, 16.0]


def test_different_plans_on_two_ranks_are_refused_by_both() -> None:
    plans = [plan_for(chain(), 2, style=style, microbatches=4) for style in ("1f1b", "eager")]
    built = [chain(), chain()]

    def body(rank: int, group: Any, store: Any) -> str:
        with pytest.raises(PlanError) as caught:
            Pipeline(built[rank], plans[rank], loss=loss, optimizer=sgd, process_group=group, store=store)
        return str(caught.value)

    assert all("ranks [1] have another plan" in text for text in run_ranks_as_threads(2, body))


def test_a_plan_for_another_world_size_is_refused() -> None:
    plan, built = plan_for(chain(), 4, style="1f1b", microbatches=4), chain()

    def body(rank: int, group: Any, store: Any) -> None:
        with pytest.raises(PlanError, match="made for world size 4, the process group has 1 ranks"):
            Pipeline(built, plan, loss=loss, optimizer=sgd, process_group=group, store=store)

    run_ranks_as_threads(1, body)


@pytest.mark.slow
def test_a_silent_stage_is_named_by_those_that_wait_for_it() -> None:
    plan = plan_for(chain(), 3, style="1f1b", microbatches=3)
    built = [chain() for _ in range(3)]

    def body(rank: int, group: Any, store: Any) -> str:
        pipeline = Pipeline(
            built[rank], plan, loss=loss, optimizer=sgd, process_group=group, store=store, timeout_s=1.5
        )
        if rank == 1:
            time.sleep(8)
            return ""
        with pytest.raises(PeerError) as caught:
            list(pipeline.train(batches(1, plan)))
        with pytest.raises(InputError, match="make a new Pipeline and load the state"):
            list(pipeline.train(batches(1, plan)))
        return str(caught.value)

    messages = run_ranks_as_threads(3, body)
    assert "stage 0 on rank 0 waits for stage 1 on rank 1" in messages[0] and "log of rank 1" in messages[0]
    assert "stage 2 on rank 2 waits for stage 1 on rank 1" in messages[2] and "log of rank 1" in messages[2]


def _dies(rank: int, plan: StagePlan) -> str:
    import os

    pipeline = Pipeline(chain(), plan, loss=loss, optimizer=sgd, timeout_s=20)
    feed = batches(4, plan)
    before = {n: p.detach().clone() for n, p in pipeline.weights.named.items()}
    try:
        for one in pipeline.train(feed):
            before = {n: p.detach().clone() for n, p in pipeline.weights.named.items()}
            if rank == 1 and one.update == 1:
                os._exit(3)
    except PeerError as error:
        assert all(torch.equal(before[n], p) for n, p in pipeline.weights.named.items())
        return str(error)
    return "ended"


@pytest.mark.dist
def test_a_killed_stage_ends_the_others_with_their_last_weights() -> None:
    plan = plan_for(chain(), 2, style="1f1b", microbatches=3)
    begin = time.monotonic()
    with pytest.raises((ChildProcessError, RankError), match="rank 1"):
        run_ranks_as_processes(2, _dies, plan)
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"rows": 9}, r"expected 8 rows, 4 microbatches of 2"),
        (
            {"module": nn.LSTM(WIDTH, WIDTH).double()},
            r"module '7' of stage 0 returned tuple; expected one tensor",
        ),
        ({"clip": -1.0}, "expected a norm above 0"),
        ({"loss_scale": 0.0}, "got loss scale 0.0"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0"),
        ({"delay_correction": "nesterov"}, "keeps one version of the weights"),
    ],
)
def test_what_cannot_be_trained_is_refused(change: dict[str, Any], match: str) -> None:
    plan = plan_for(chain(), 1, style="1f1b", microbatches=4)
    rows, module = change.pop("rows", 8), change.pop("module", None)
    layers = chain()
    if module is not None:
        layers = LayerGraph([*list(layers.modules.values())[:-1], module])

    def body(rank: int, group: Any, store: Any) -> None:
        with pytest.raises(InputError, match=match):
            pipeline = Pipeline(
                layers, plan, loss=loss, optimizer=sgd, process_group=group, store=store, **change
            )
            list(pipeline.train([(torch.zeros(rows, WIDTH).double(), torch.zeros(rows, WIDTH).double())]))

    run_ranks_as_threads(1, body)


@pytest.mark.slow
def test_microbatches_of_other_shapes_are_refused() -> None:
    plan = plan_for(chain(), 2, style="1f1b", microbatches=2)

    class Cut(nn.Module):
        count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x[: 3 - self.count]

    built = [LayerGraph([Cut(), nn.Linear(WIDTH, WIDTH).double()]) for _ in range(2)]
    plan = plan_for(built[0], 2, style="gpipe", microbatches=2)

    def body(rank: int, group: Any, store: Any) -> str:
        pipeline = Pipeline(
            built[rank],
            plan,
            loss=lambda out, _: out.sum(),
            optimizer=sgd,
            process_group=group,
            store=store,
            timeout_s=2,
        )
        try:
            list(pipeline.train(batches(1, plan)))
        except (InputError, PeerError) as error:
            return str(error)
        return ""

    assert "[1, 6] for one microbatch" in run_ranks_as_threads(2, body)[0]


def test_a_training_that_goes_on_with_more_batches_is_one_training() -> None:
    plan = plan_for(chain(), 2, style="2bw", microbatches=3)
    expected, _ = alone(chain, plan, [batches(4, plan)], sgd)
    built = [chain(), chain()]

    def body(rank: int, group: Any, store: Any) -> Any:
        pipeline = Pipeline(
            built[rank], plan, loss=loss, optimizer=sgd, process_group=group, store=store, timeout_s=20
        )
        feed = batches(4, plan)
        assert [one.update for one in pipeline.train(feed[:1])] == [0]
        assert [one.update for one in pipeline.train(feed[1:])] == [1, 2, 3]
        pipeline.close()
        return {n: p.detach() for n, p in pipeline.weights.named.items()}

    ranks = run_ranks_as_threads(2, body)
    assert worst(ranks[0] | ranks[1], expected) == 0.0
    names = set(parameters_of(chain()))
    assert set(ranks[0]) | set(ranks[1]) == names
