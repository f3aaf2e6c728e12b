"""Training under plans that compress: plans do not change the numbers, and checkpoints take up where they were."""

from __future__ import annotations

import io
import itertools
import random
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import batch, made, names_of, plan_of, sequential, whole
from wirewise.errors import InputError, PlanError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Compression, DataParallel, Reducer, parallel, resize


def compressed(
    plan: FusionPlan, codec: str, scheme: str = "all_gather", decode: str = "inline"
) -> FusionPlan:
    buckets = [msgspec.structs.replace(b, codec=codec, scheme=scheme, decode=decode) for b in plan.buckets]
    return msgspec.structs.replace(plan, buckets=tuple(buckets))


def grouped(model: nn.Module, groups: int, ranks: int, codec: str, **ways: str) -> FusionPlan:
    names = names_of(model)
    cuts = [len(names) * i // groups for i in range(groups + 1)]
    parts = [names[a:b] for a, b in itertools.pairwise(cuts)]
    return compressed(plan_of(model, parts, ranks), codec, **ways)


def run(ranks: int, build: Any, body: Any) -> list[Any]:
    """`body(model, start, rank)` on every rank; `start(plan, **options)` wraps the model for training."""

    def rank_body(rank: int, group: Any, store: Any) -> Any:
        model, opened = made(build), []

        def start(plan: FusionPlan, **options: Any) -> tuple[DataParallel, torch.optim.Optimizer]:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            opened.append(parallel(model, plan, optimizer, group, store=store, timeout_s=50, **options))
            return opened[-1], optimizer

        try:
            return body(model, start, rank)
        finally:
            for wrapped in opened:
                wrapped.reducer.close()

    return run_ranks_as_threads(ranks, rank_body)


def train(wrapped: DataParallel, optimizer: Any, rank: int, steps: range, clip: float = 0.0) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(rank, step)
        loss = nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(wrapped.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def judged(model: nn.Module) -> float:
    """Loss over samples of all ranks that training has seen, the same in worlds of any size."""
    x, y = (
        torch.cat(parts) for parts in zip(*(batch(r, s) for r in range(4) for s in range(30)), strict=True)
    )
    return float(nn.functional.cross_entropy(model(x), y))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("codec", ["efsign", "topk", "qsgd", "randomk", "onebit"])
def test_plans_do_not_change_the_numbers(codec):
    """A6, with D3: one group, five, or one for each parameter; and A7 (2): the optimizer steps."""
    ways = [("all_gather", "inline", 1), ("all_gather", "lazy", 5), ("all_gather", "queue", 10)]
    if codec == "randomk":
        ways[1] = ("all_reduce", "lazy", 5)
    found = []
    for scheme, decode, groups in ways:

        def body(model, start, rank, scheme=scheme, decode=decode, groups=groups):
            plan = grouped(model, groups, 2, codec, scheme=scheme, decode=decode)
            before = weights(model)
            train(*start(plan), rank, range(20))
            return weights(model), before

        (first, before), (second, _) = run(2, sequential, body)
        assert torch.equal(first, second)
        assert (first - before).abs().max() > 1e-3
        found.append(first)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-6)


def random_plan(model: nn.Module, ranks: int, seed: int) -> FusionPlan:
    draw = random.Random(seed)
    plan = grouped(model, draw.choice([1, 3, 5]), ranks, "none", scheme="all_reduce")
    ways = [("efsign", "all_gather"), ("topk", "divisible"), ("none", "all_reduce"), ("fp16", "all_reduce")]
    buckets = []
    for bucket in plan.buckets:
        codec, scheme = draw.choice(ways)
        decode = draw.choice(["inline", "lazy", "queue"])
        place = "inline" if codec == "none" else decode
        buckets.append(msgspec.structs.replace(bucket, codec=codec, scheme=scheme, decode=place))
    return msgspec.structs.replace(plan, buckets=tuple(buckets))


def test_residuals_stay_when_the_plan_changes():
    def body(model, start, rank):
        wrapped, optimizer = start(compressed(whole(model, 2), "efsign"))
        train(wrapped, optimizer, rank, range(3))
        before = wrapped.pools.state_dict()
        for seed in range(3):
            wrapped.use(random_plan(model, 2, seed))
        wrapped.use(grouped(model, 5, 2, "topk"))
        with pytest.raises(PlanError, match="cannot be added up"):
            wrapped.use(compressed(whole(model, 2), "topk", "all_reduce"))
        after = wrapped.pools.state_dict()
        train(wrapped, optimizer, rank, range(3, 6))
        assert after["step"] == 3 and wrapped.pools.step == 6
        return all(torch.equal(after["residual"][n], v) and v.any() for n, v in before["residual"].items())

    assert run(2, sequential, body) == [True, True]


@pytest.mark.parametrize("codec", ["efsign", "randomk", "signum"])
def test_a_checkpoint_goes_on_exactly(codec):
    """D5."""

    def plans(model):
        return grouped(model, 3, 2, codec, scheme="divisible"), grouped(model, 4, 2, codec)

    def uninterrupted(model, start, rank):
        first, second = plans(model)
        wrapped, optimizer = start(first)
        train(wrapped, optimizer, rank, range(4))
        saved = (
            {name: value.clone() for name, value in wrapped.state_dict().items()},
            optimizer.state_dict(),
            wrapped.pools.state_dict(),
        )
        saved = torch.load(_saved(saved), weights_only=True)
        train(wrapped, optimizer, rank, range(4, 6))
        wrapped.use(second)
        train(wrapped, optimizer, rank, range(6, 9))
        return weights(model), saved

    results = run(2, sequential, uninterrupted)

    def restored(model, start, rank):
        first, second = plans(model)
        wrapped, optimizer = start(first)
        state, of_optimizer, of_pools = results[rank][1]
        train(wrapped, optimizer, rank, range(2))
        wrapped.load_state_dict(state)
        optimizer.load_state_dict(of_optimizer)
        wrapped.reducer.load_state_dict(of_pools)
        train(wrapped, optimizer, rank, range(4, 6))
        wrapped.use(second)
        train(wrapped, optimizer, rank, range(6, 9))
        return weights(model)

    for found in run(2, sequential, restored):
        assert torch.equal(found, results[0][0])


def _saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def test_two_ranks_take_over_from_four():
    """D5: what waits to be sent is the mean over the old ranks; training goes on."""

    def four(model, start, rank):
        wrapped, optimizer = start(grouped(model, 2, 4, "efsign", scheme="divisible"))
        train(wrapped, optimizer, rank, range(30))
        return wrapped.state_dict(), wrapped.reducer.state_dict(), judged(model)

    results = run(4, sequential, four)
    state = resize([pools for _, pools, _ in results], 2)

    def two(model, start, rank):
        wrapped, optimizer = start(grouped(model, 2, 2, "efsign"))
        wrapped.load_state_dict(results[0][0])
        with pytest.raises(InputError, match=r"one of 4 ranks, there are 2"):
            wrapped.reducer.load_state_dict(results[0][1])
        wrapped.reducer.load_state_dict(state)
        losses = []
        for step in range(30, 40):
            train(wrapped, optimizer, rank, range(step, step + 1))
            losses.append(judged(model))
        return losses

    before = results[0][2]
    assert all(loss == before for *_, loss in results)
    for losses in run(2, sequential, two):
        assert max(losses) <= 1.03 * before


def test_accumulation_and_no_sync_leave_the_pools_alone():
    def body(model, start, rank):
        plan = msgspec.structs.replace(compressed(whole(model, 2), "efsign"), accumulation=2)
        wrapped, optimizer = start(plan)
        steps = []
        for micro in range(4):
            x, y = batch(rank, micro)
            nn.functional.cross_entropy(wrapped(x), y).backward()
            steps.append(wrapped.pools.step)
            if micro % 2:
                optimizer.step()
                optimizer.zero_grad()
        with wrapped.no_sync():
            before = wrapped.pools.state_dict()
            x, y = batch(rank, 9)
            nn.functional.cross_entropy(wrapped(x), y).backward()
        after = wrapped.pools.state_dict()
        assert all(torch.equal(after["residual"][n], v) for n, v in before["residual"].items())
        return steps

    assert run(2, sequential, body) == [[0, 1, 1, 2]] * 2


class Choosing(nn.Module):
    """Uses `side` on rank 1 only, and `never` never."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side, self.never = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(2, 2)
        self.with_side = False

    def forward(self, x):
        return self.main(x) + (self.side(x) if self.with_side else 0)


def test_zeros_stand_for_unused_parameters_on_all_ranks():
    def body(model, start, rank):
        wrapped, optimizer = start(compressed(whole(model, 2), "efsign"), unused="zeros")
        model.with_side = rank == 1
        train(wrapped, optimizer, rank, range(3))
        model.with_side = False
        optimizer.zero_grad()
        x, y = batch(rank, 3)
        nn.functional.cross_entropy(wrapped(x), y).backward()
        # What was not sent of the gradient of `side` goes on being sent.
        return weights(model), model.never.weight.grad is None, bool(model.side.weight.grad.any())

    (first, never, side), (second, *_) = run(2, Choosing, body)
    assert torch.equal(first, second)
    assert never and side


def test_clipping_sees_what_was_decoded():
    def body(model, start, rank):
        wrapped, optimizer = start(compressed(whole(model, 2), "efsign"))
        train(wrapped, optimizer, rank, range(3), clip=0.01)
        norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        return float(norm), weights(model)

    (norm, first), (_, second) = run(2, sequential, body)
    assert norm == pytest.approx(0.01, rel=1e-3)
    assert torch.equal(first, second)


@pytest.mark.parametrize("bad_layer", [0, 4])
def test_a_scaler_skips_the_step_of_all_ranks_and_residuals_stay(bad_layer):
    """One rank's gradient overflows, in a bucket with a codec or in one without."""

    def body(model, start, rank):
        plan = grouped(model, 2, 2, "efsign")
        last = msgspec.structs.replace(plan.buckets[1], codec="none", scheme="all_reduce")
        plan = msgspec.structs.replace(plan, buckets=(plan.buckets[0], last))
        wrapped, optimizer = start(plan, compression=Compression(nonfinite="skip"))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        seen = []
        for step in range(4):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            handle = None
            if step == 2 and rank == 1:
                handle = model[2 * bad_layer].weight.register_hook(lambda g: g * torch.inf)
            before, residual = weights(model), wrapped.pools.state_dict()["residual"]
            scaler.scale(nn.functional.cross_entropy(wrapped(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            if handle is not None:
                handle.remove()
            now = wrapped.pools.state_dict()["residual"]
            kept = bool(residual) and all(torch.equal(now[n], v) for n, v in residual.items())
            seen.append((torch.equal(before, weights(model)), kept, scaler.get_scale()))
        return seen, weights(model)

    (first, one), (second, other) = run(2, sequential, body)
    assert first == second == [(False, False, 8.0)] * 2 + [(True, True, 4.0), (False, False, 4.0)]
    assert torch.equal(one, other)


def test_a_gradient_that_is_not_finite_is_named_everywhere_and_the_next_step_goes_on():
    def body(model, start, rank):
        wrapped, optimizer = start(grouped(model, 3, 2, "topk"))
        handle = None
        if rank == 0:
            handle = model[4].weight.register_hook(lambda g: g * torch.nan)
        x, y = batch(rank, 0)
        loss = nn.functional.cross_entropy(wrapped(x), y)
        # The gradient of what lies before is not finite either, but that of 4.weight alone is made so.
        with pytest.raises(InputError, match=r"in step 0 in the gradient of '4.weight' \(found by rank 0\)"):
            loss.backward()
        if handle is not None:
            handle.remove()
        train(wrapped, optimizer, rank, range(1, 3))
        return weights(model)

    first, second = run(2, sequential, body)
    assert first.isfinite().all() and torch.equal(first, second)


def test_several_optimizers_wait_for_the_same_gradients():
    def body(model, start, rank):
        wrapped, _ = start(compressed(whole(model, 2), "efsign"), until="step")
        parts = [list(model[:4].parameters()), list(model[4:].parameters())]
        optimizers = [torch.optim.SGD(parts[0], lr=0.1), torch.optim.Adam(parts[1], lr=0.01)]
        for optimizer in optimizers:
            wrapped.attach(optimizer)
        for step in range(3):
            x, y = batch(rank, step)
            nn.functional.cross_entropy(wrapped(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return weights(model)

    first, second = run(2, sequential, body)
    assert torch.equal(first, second)


def test_parameters_frozen_or_added_since_the_plan_are_named():
    def body(model, start, rank):
        wrapped, optimizer = start(compressed(whole(model, 2), "efsign"))
        model[0].weight.requires_grad_(False)
        with pytest.raises(PlanError, match=r"frozen: 0.weight; make the plan again"):
            train(wrapped, optimizer, rank, range(1))
        model[0].weight.requires_grad_(True)
        model[2].extra = nn.Parameter(torch.zeros(2))
        with pytest.raises(PlanError, match=r"added: 2.extra; make the plan again"):
            train(wrapped, optimizer, rank, range(1))
        del model[2].extra
        train(wrapped, optimizer, rank, range(2))
        return True

    assert run(2, sequential, body) == [True, True]


def test_what_cannot_be_carried_out_or_differs_is_refused():
    def body(rank: int, group: Any, store: Any) -> bool:
        model = made(sequential)
        plan = compressed(whole(model, 2), "efsign")
        chunked = msgspec.structs.replace(plan.buckets[0], chunks=2)
        for changed, words in (
            (compressed(whole(model, 2), "zip"), "'zip' by 'all_gather': unknown gradient codec"),
            (compressed(whole(model, 2), "qsgd", "all_reduce"), "cannot be added up"),
            (msgspec.structs.replace(plan, buckets=(chunked,)), "in 2 chunks; expected 1"),
            (compressed(whole(model, 2), "none", "hierarchical"), "no number of ranks a host for 2 ranks"),
        ):
            with pytest.raises(PlanError, match=words):
                Reducer(model, changed, group, store=store)
        with pytest.raises(PlanError, match=r"ranks \[1\] have another plan, Compression"):
            Reducer(model, plan, group, store=store, compression=Compression(seed=rank))
        return True

    assert run_ranks_as_threads(2, body) == [True, True]


def test_the_account_of_a_step():
    def body(model, start, rank):
        wrapped, optimizer = start(grouped(model, 2, 2, "efsign", decode="queue"))
        assert wrapped.reducer.account() == []
        train(wrapped, optimizer, rank, range(1))
        return wrapped.reducer.account()

    for account in run(2, sequential, body):
        assert [(one["codec"], one["scheme"]) for one in account] == [("efsign", "all_gather")] * 2
        assert all(one["sent_bytes"] > 0 for one in account)
        assert all(one[f"{act}_s"] >= 0 for one in account for act in ("encode", "communicate", "decode"))
