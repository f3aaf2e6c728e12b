"""Codecs in stock DistributedDataParallel by its hook, and uncompressed plans that train as it does."""

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
    made,
    mean_gradients,
    names_of,
    plan_of,
    random_plan,
    sequential,
    whole,
)  # fmt: skip
from wirewise.errors import InputError, PlanError
from wirewise.runtime import data_parallel
from wirewise.runtime.data_parallel import Compression, resize


def backward(model: nn.Module, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    nn.functional.cross_entropy(model(x), y).backward()


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for _, p in sorted(model.named_parameters())])


def waiting(states: list[dict[str, Any]], names: list[str]) -> torch.Tensor:
    residual = resize(states, 1)["residual"]
    return torch.cat([residual[name].flatten() for name in sorted(names)])


def kept(rank: int, codec: str, named: bool) -> Any:
    """Sum of what came in five steps, what waits, the groups of each step, and the state after."""
    model = made(Branching)
    names = names_of(model)
    plan = plan_of(model, [names[:3], names[3:4], names[4:7], names[7:]], 2)
    ddp = DistributedDataParallel(model, **data_parallel.bucket_caps(plan))
    state, hook = data_parallel.hook(codec=codec, model=model if named else None)
    ddp.register_comm_hook(state, hook)
    sent, groups = torch.zeros(0), []
    for step in range(5):
        ddp.zero_grad()
        backward(ddp, rank, step)
        sent = gradients(model) if step == 0 else sent + gradients(model)
        groups.append([one.way.group.names for one in state._travelling])
    state.close()
    return sent, groups, state.state_dict(), state.bytes_sent


@pytest.mark.slow
@pytest.mark.dist
def test_residuals_stay_with_their_parameters_when_buckets_are_made_anew():
    """Two lines in the user's script; what came and what waits are all gradients, over a rebuild of the buckets."""
    results = run_ranks_as_processes(2, kept, "efsign", True)
    model = made(Branching)
    names = [name for name, _ in model.named_parameters()]
    total = 0
    for step in range(5):
        found = mean_gradients(model, 2, step)
        total = total + torch.cat([found[name].flatten() for name in sorted(found)])
    left = waiting([state for *_, state, _ in results], names)
    for sent, groups, _, bytes_sent in results:
        assert groups[0] != groups[1] == groups[4] and len(groups[1]) > 2
        assert float((sent + left - total).norm() / total.norm()) <= 1e-5
        assert 0 < bytes_sent < 5 * 4 * len(sent) / 4
    assert torch.equal(results[0][0], results[1][0])


def goes_on(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights after six steps, without and with a restart of everything after three."""
    found = []
    for stops in ((6,), (3, 6)):
        model, saved, done = made(sequential), None, 0
        for stop in stops:
            if saved is not None:
                model = made(sequential, seed=9)
                model.load_state_dict(saved[0])
            # Buckets of one process are those of the other from the beginning: one holds all.
            ddp = DistributedDataParallel(model)
            state, hook = data_parallel.hook(codec="qsgd", compression=Compression(seed=3))
            ddp.register_comm_hook(state, hook)
            if saved is not None:
                state.load_state_dict(saved[1])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(done, stop):
                optimizer.zero_grad()
                backward(ddp, rank, step)
                optimizer.step()
            saved, done = (model.state_dict(), state.state_dict()), stop
            state.close()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return found[0], found[1]


def refuses(rank: int) -> bool:
    """A gradient that is not finite is named where `backward` was called, on all ranks; so are other plans."""
    model = made(sequential)
    ddp = DistributedDataParallel(model)
    state, hook = data_parallel.hook(codec="topk", model=model)
    ddp.register_comm_hook(state, hook)
    if rank == 1:
        model[2].weight.register_hook(lambda g: g * torch.nan)
    with pytest.raises(InputError, match=r"gradient of '2.weight' \(found by rank 1\)"):
        backward(ddp, rank, 0)
    state.close()
    model = made(sequential)
    ddp = DistributedDataParallel(model)
    state, hook = data_parallel.hook(codec=["efsign", "topk"][rank])
    ddp.register_comm_hook(state, hook)
    with pytest.raises(PlanError, match=r"ranks \[1\] gave the hook another plan, codec"):
        backward(ddp, rank, 0)
    return True


def by_plan(rank: int) -> list[list[tuple[str, str]]]:
    """Codec and scheme of each bucket in the second step, by names and by bytes."""
    found = []
    for named in (True, False):
        model = made(sequential)
        names = names_of(model)
        plan = plan_of(model, [names[:2], names[2:6], names[6:]], 2)
        ways = [("none", "all_reduce"), ("efsign", "divisible"), ("fp16", "all_reduce")]
        buckets = [
            msgspec.structs.replace(
                b, codec=codec, scheme=scheme, decode="inline" if codec == "none" else "lazy"
            )
            for b, (codec, scheme) in zip(plan.buckets, ways, strict=True)
        ]
        plan = msgspec.structs.replace(plan, buckets=tuple(buckets))
        ddp = DistributedDataParallel(model, **data_parallel.bucket_caps(plan))
        state, hook = data_parallel.hook(plan, model=model if named else None)
        ddp.register_comm_hook(state, hook)
        for step in range(2):
            backward(ddp, rank, step)
        found.append([(one["codec"], one["scheme"]) for one in state.account()])
        state.close()
    return found


def in_turn(rank: int) -> list[Any]:
    return [goes_on(rank), refuses(rank), by_plan(rank)]


@pytest.mark.slow
@pytest.mark.dist
def test_hooks_go_on_after_a_restart_and_say_what_is_wrong():
    """D5 for the hook, NaN, ranks that differ, and a plan with several codecs."""
    for (once, twice), refused, (named, by_bytes) in run_ranks_as_processes(2, in_turn):
        assert torch.equal(once, twice) and refused
        assert named == by_bytes
        if len(named) == 3:
            assert named == [("none", "all_reduce"), ("efsign", "divisible"), ("fp16", "all_reduce")]


class Chosen(nn.Module):
    """Uses one of its layers in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.out = sequential(), nn.Linear(12, 4), nn.Linear(4, 4)
        self.with_side = True

    def forward(self, x):
        found = self.body(x)
        return self.out(found + self.side(x) if self.with_side else found)


def trained(rank: int, kind: str, amp: bool) -> torch.Tensor:
    """Weights after 50 steps with no_sync, an unused layer, clipping, and AMP or not."""
    model = made(Chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if kind == "ddp":
        wrapped: Any = DistributedDataParallel(model, find_unused_parameters=True)
    else:
        plan = whole(model, 2) if kind == "whole" else random_plan(model, 2, 4)
        wrapped = data_parallel.parallel(model, plan, optimizer, unused="zeros")
    scaler = torch.amp.GradScaler("cpu", enabled=amp, init_scale=2.0**10, growth_interval=20)
    for step in range(50):
        model.with_side = step % 3 != rank
        optimizer.zero_grad()
        for micro in range(2):
            x, y = batch(rank, 2 * step + micro)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
                loss = nn.functional.cross_entropy(wrapped(x), y)
            if micro == 0 and step % 2:
                with wrapped.no_sync():
                    scaler.scale(loss).backward()
            else:
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    if kind != "ddp":
        wrapped.reducer.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def fifty_steps(rank: int) -> list[float]:
    worst = []
    for amp in (False, True):
        reference = trained(rank, "ddp", amp)
        for kind in ("whole", "random"):
            worst.append(float((trained(rank, kind, amp) - reference).abs().max()))
    return worst


@pytest.mark.slow
@pytest.mark.dist
def test_fifty_uncompressed_steps_are_those_of_ddp():
    """D4."""
    for worst in run_ranks_as_processes(2, fifty_steps):
        assert max(worst) <= 1e-7, worst


def test_a_hook_takes_a_plan_or_a_codec():
    plan = whole(sequential(), 2)
    with pytest.raises(InputError, match="expected one of them"):
        data_parallel.hook()
    with pytest.raises(InputError, match="expected one of them"):
        data_parallel.hook(plan, codec="efsign")
    with pytest.raises(InputError, match="unknown gradient codec 'zip'"):
        data_parallel.hook(codec="zip")
    state, _ = data_parallel.hook(plan)
    assert not state.compresses
