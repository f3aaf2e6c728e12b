"""Gradients and weights that equal those of DistributedDataParallel, and what of a plan it can carry out itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import run_ranks_as_processes
from tests.runtime.data_parallel.examples import (
    Branching,
    batch,
    convolutional,
    made,
    names_of,
    plan_of,
    random_plan,
    sequential,
    whole,
)  # fmt: skip
from wirewise.errors import PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime import data_parallel

pytestmark = pytest.mark.dist

BUILDS = (Branching, sequential, convolutional)


def step(model: nn.Module, optimizer: Any, rank: int, number: int, width: int) -> None:
    optimizer.zero_grad()
    x, y = batch(rank, number, width=width)
    nn.functional.cross_entropy(model(x), y).backward()


def compare(build: Any, seed: int, rank: int, ranks: int) -> float:
    """Largest difference of gradients and weights over 5 steps."""
    width = 36 if build is convolutional else 12
    ours, theirs = made(build, seed), made(build, seed)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, theirs)]
    ddp = DistributedDataParallel(theirs)
    wrapped = data_parallel.parallel(ours, random_plan(ours, ranks, seed), optimizers[0])
    worst = 0.0
    for number in range(5):
        step(wrapped, optimizers[0], rank, number, width)
        step(ddp, optimizers[1], rank, number, width)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            worst = max(worst, float((a.grad - b.grad).abs().max()))
        for optimizer in optimizers:
            optimizer.step()
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            worst = max(worst, float((a - b).abs().max()))
    wrapped.reducer.close()
    return worst


def unused_like_ddp(rank: int, ranks: int) -> list[set[str]]:
    """Names of the parameters that have a gradient where one rank skips a layer and no rank uses another."""
    found = []
    for kind in ("ours", "theirs"):
        model = made(lambda: nn.ModuleList([nn.Linear(12, 4) for _ in range(3)]))

        class Chosen(nn.Module):
            def __init__(self, layers) -> None:
                super().__init__()
                self.layers = layers

            def forward(self, x):
                return self.layers[0](x) + (self.layers[1](x) if rank == 0 else 0)

        chosen = Chosen(model)
        optimizer = torch.optim.SGD(chosen.parameters(), lr=0.1)
        if kind == "ours":
            wrapped = data_parallel.parallel(chosen, whole(chosen, ranks), optimizer, unused="zeros")
        else:
            wrapped = DistributedDataParallel(chosen, find_unused_parameters=True)
        for number in range(2):
            step(wrapped, optimizer, rank, number, 12)
            optimizer.step()
        found.append({n: p.grad.sum().item() for n, p in chosen.named_parameters() if p.grad is not None})
    return found


def compare_all(rank: int) -> tuple[list[float], list[dict[str, float]]]:
    worst = [compare(build, seed, rank, 3) for build in BUILDS for seed in range(4)]
    return worst, unused_like_ddp(rank, 3)


def test_gradients_and_weights_equal_those_of_ddp():
    for worst, (ours, theirs) in run_ranks_as_processes(3, compare_all):
        assert max(worst) <= 1e-6, worst
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert {"layers.2.weight"} & set(ours) == set()


def plan_by_readiness(model: nn.Module) -> FusionPlan:
    names = names_of(model)
    return plan_of(model, [names[:2], names[2:6], names[6:]], 2)


def hooked(rank: int) -> tuple[list[int], list[int], float]:
    """Sizes of DDP's buckets in step 2 with the caps of a plan, those of the plan, and the hook's error."""
    torch.manual_seed(0)
    model, plain = made(sequential), made(sequential)
    plan = plan_by_readiness(model)
    chunked = FusionPlan(
        world_size=2,
        planner="test",
        buckets=tuple(
            Bucket(parameters=b.parameters, size_bytes=b.size_bytes, chunks=3) for b in plan.buckets
        ),
    )
    ddp, reference = DistributedDataParallel(model, **data_parallel.bucket_caps(plan)), plain
    reference = DistributedDataParallel(plain)
    sizes: list[int] = []
    state, hook = data_parallel.hook(chunked)

    def noting(state, bucket):
        sizes.append(bucket.buffer().nbytes)
        return hook(state, bucket)

    ddp.register_comm_hook(state, noting)
    worst = 0.0
    for number in range(3):
        sizes.clear()
        optimizer = torch.optim.SGD([*ddp.parameters(), *reference.parameters()], lr=0.1)
        for wrapped in (ddp, reference):
            x, y = batch(rank, number)
            nn.functional.cross_entropy(wrapped(x), y).backward()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            worst = max(worst, float((a.grad - b.grad).abs().max()))
        optimizer.step()
        optimizer.zero_grad()
    return sizes, [b.size_bytes for b in plan.buckets], worst


@pytest.mark.slow
def test_ddp_takes_chunks_by_hook_and_buckets_by_caps():
    for found, planned, worst in run_ranks_as_processes(2, hooked):
        if "bucket_cap_mb_list" in data_parallel.bucket_caps(plan_by_readiness(sequential())):
            assert found == planned
        assert worst <= 1e-6


def test_chunks_of_the_hook_are_those_of_the_bucket_next_in_size():
    sizes = ((1000, 2), (100_000, 5))
    plan = FusionPlan(
        world_size=2,
        planner="test",
        buckets=tuple(
            Bucket(parameters=(str(size),), size_bytes=size, chunks=chunks) for size, chunks in sizes
        ),
    )
    state, _ = data_parallel.hook(plan)
    assert [state.chunks(size) for size in (1000, 100, 100_000, 200_000)] == [2, 1, 5, 10]


def made_for_others(rank: int) -> bool:
    """A plan for other ranks is named where `backward` was called, with codecs and without."""
    for codec in ("none", "fp16"):
        model = made(sequential)
        plan = plan_by_readiness(model)
        plan = msgspec.structs.replace(
            plan, world_size=3, buckets=tuple(msgspec.structs.replace(b, codec=codec) for b in plan.buckets)
        )
        ddp = DistributedDataParallel(model)
        state, hook = data_parallel.hook(plan, model=model)
        ddp.register_comm_hook(state, hook)
        x, y = batch(rank, 0)
        with pytest.raises(PlanError, match="made for world size 3, the process group has 2 ranks"):
            nn.functional.cross_entropy(ddp(x), y).backward()
        state.close()
    return True


@pytest.mark.slow
def test_a_plan_for_other_ranks_is_refused_by_the_hook():
    assert all(run_ranks_as_processes(2, made_for_others))
