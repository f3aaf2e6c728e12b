"""Parameters that travel in pieces of several groups."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.harness.processes import run_ranks_as_processes
from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import batch, made, mean_gradients, names_of, sequential
from tests.runtime.data_parallel.test_compressed_training import run, train, weights
from wirewise.errors import PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.plans.splits import pieces, splits_of
from wirewise.runtime import data_parallel
from wirewise.runtime.data_parallel import Compression, GroupSender, Pools, resize
from wirewise.runtime.transport import Transport

BIG = ("0.weight", "2.weight")
"""Parameters of 12 * 2000 and 2000 * 12 elements."""


def wide() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 2000), nn.Tanh(), nn.Linear(2000, 12), nn.Tanh(), nn.Linear(12, 4))


def members(model: nn.Module, most: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """Elements of all that travels, the last first, and the splits of a plan."""
    sizes = {name: dict(model.named_parameters())[name].numel() for name in names_of(model)}
    splits = splits_of(sizes, most) if most else {}
    found: dict[str, int] = {}
    for name, size in sizes.items():
        cut = pieces(name, size, splits[name]) if name in splits else {name: (0, size)}
        found |= {piece: end - begin for piece, (begin, end) in cut.items()}
    return found, splits


def split_plan(
    model: nn.Module, ranks: int, groups: int, codec: str = "none", scheme: str = "all_gather",
    most: int | None = 10_000, decode: str = "inline",
) -> FusionPlan:  # fmt: skip
    """Groups of about as many members."""
    sizes, splits = members(model, most)
    names = list(sizes)
    cuts = [len(names) * i // groups for i in range(groups + 1)]
    way = {"codec": codec, "scheme": "all_reduce" if codec == "none" else scheme, "decode": decode}
    buckets = tuple(
        Bucket(parameters=tuple(names[a:b]), size_bytes=4 * sum(sizes[n] for n in names[a:b]), **way)
        for a, b in itertools.pairwise(cuts)
    )
    return FusionPlan(world_size=ranks, planner="test", buckets=buckets, splits=splits)


def trained(plan_of: Any, ranks: int = 2, steps: int = 20, **options: Any) -> torch.Tensor:
    """Weights after training under the plan; the same on all ranks."""

    def body(model, start, rank):
        train(*start(plan_of(model), **options), rank, range(steps))
        return weights(model)

    first, *others = run(ranks, wide, body)
    assert all(torch.equal(first, other) for other in others)
    return first


def test_the_mean_is_that_of_all_ranks_without_a_codec():
    """D4: groups of pieces are all-reduced as they are."""

    def body(model, start, rank):
        wrapped, _ = start(split_plan(model, 2, 7))
        x, y = batch(rank, 0)
        nn.functional.cross_entropy(wrapped(x), y).backward()
        assert len(wrapped.reducer.buckets) == 7
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = mean_gradients(made(wide), 2)
    for found in run(2, wide, body):
        torch.testing.assert_close(found, expected)


WAYS = [
    ("efsign", "all_gather", {}),
    ("topk", "all_gather", {}),
    ("dgc", "all_gather", {}),
    ("signum", "all_gather", {}),
    ("qsgd", "all_gather", {"block": 512}),
    ("fp16", "all_reduce", {}),
]


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(("codec", "scheme", "options"), WAYS)
def test_groups_of_pieces_do_not_change_the_numbers(codec, scheme, options):
    """A6: the same pieces in one group, in five, and each on its own."""
    compression = Compression(**options)
    found = [
        trained(
            lambda model, g=g, d=d: split_plan(model, 2, g, codec, scheme, decode=d), compression=compression
        )
        for g, d in ((1, "inline"), (5, "lazy"), (len(members(made(wide), 10_000)[0]), "queue"))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-6)
    assert (found[0] - weights(made(wide))).abs().max() > 1e-3


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("codec", "options"),
    [("int8", {}), ("int4", {}), ("qsgd", {"block": 1024}), ("terngrad", {"block": 4096})],
)
def test_codecs_of_blocks_send_the_same_with_and_without_pieces(codec, options):
    """Scales, and draws where there are any, are those of blocks, whichever piece holds them."""
    compression = Compression(**options)
    whole, split = (
        trained(
            lambda model, m=m, g=g: split_plan(model, 2, g, codec, most=m), steps=5, compression=compression
        )
        for m, g in ((None, 2), (10_000, 5))
    )
    assert torch.equal(whole, split)


def test_residuals_stay_when_other_tensors_are_split():
    """A5, of the pools that training keeps: nothing moves but into other buffers."""

    def body(model, start, rank):
        wrapped, optimizer = start(split_plan(model, 2, 5, "efsign"))
        train(wrapped, optimizer, rank, range(3))
        before = wrapped.pools.state_dict()
        for most, groups in ((None, 2), (5_000, 4), (10_000, 1), (20_000, 7)):
            wrapped.use(split_plan(model, 2, groups, "topk", most=most))
        wrong = msgspec.structs.replace(split_plan(model, 2, 2, "topk"), world_size=3)
        with pytest.raises(PlanError, match="world size 3"):
            wrapped.use(wrong)
        after = wrapped.pools.state_dict()
        train(wrapped, optimizer, rank, range(3, 5))
        return all(torch.equal(after["residual"][n], v) and v.any() for n, v in before["residual"].items())

    assert run(2, wide, body) == [True, True]


SIZES = {"a": 9_000, "b": 1, "c": 20_000, "d": 300}
CHANGING = [("efsign", "all_gather"), ("topk", "divisible"), ("onebit", "divisible"), ("none", "all_reduce"),
            ("topk", "hierarchical"), ("int4", "all_gather"), ("randomk", "all_reduce")]  # fmt: skip


def gradient(rank: int, step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}


def random_ways(draw: random.Random) -> tuple[dict[str, int], list[tuple[Any, ...]]]:
    """Splits, and groups in any order of parameters, each with its way."""
    splits = splits_of(SIZES, draw.choice([4_096, 8_192, 12_000, 50_000]))
    names = [
        piece
        for name in draw.sample(list(SIZES), len(SIZES))
        for piece in (pieces(name, SIZES[name], splits[name]) if name in splits else [name])
    ]
    cuts = [0, *sorted(draw.sample(range(1, len(names)), min(3, len(names) - 1))), len(names)]
    places = ["inline", "lazy", "queue"]
    groups = [tuple(names[a:b]) for a, b in itertools.pairwise(cuts)]
    return splits, [(group, *draw.choice(CHANGING), draw.choice(places)) for group in groups]


@pytest.mark.slow
def test_nothing_is_lost_when_plans_split_other_tensors():
    """A5: what was sent and what waits add up to the gradients, over 200 steps and 20 plans with other pieces."""
    steps, ranks = 200, 2

    def rank_body(rank, group, store):
        draw, sent = random.Random(5), {name: torch.zeros(size).double() for name, size in SIZES.items()}
        compression = Compression(
            ranks_per_host=1, options={"topk": {"ratio": 0.2}, "randomk": {"ratio": 0.3}}
        )
        transport, pools = Transport(group, timeout_s=20, store=store), Pools(SIZES, compression)
        for step in range(steps):
            if step % 10 == 0:
                splits, ways = random_ways(draw)
                pools.split(splits)
                carrier = GroupSender(transport, pools, compression)
            own, travelling = gradient(rank, step), []
            where = {m: (n, pools.member(m)) for n in SIZES for m in pools.members_of(n)}
            for names, codec, scheme, decode in ways:
                parts = [own[n][m.begin : m.begin + m.size] for n, m in (where[name] for name in names)]
                flat = torch.cat(parts)
                travelling.append(carrier.begin(names, flat, codec=codec, scheme=scheme, decode=decode))
            carrier.finish(travelling)
            for one, (names, *_) in zip(travelling, ways, strict=True):
                parts = one.flat.split([where[name][1].size for name in names])
                for (name, member), part in zip((where[n] for n in names), parts, strict=True):
                    sent[name][member.begin : member.begin + member.size] += part
            if step % 10 == 9:
                carrier.close()
        return sent, pools.state_dict()

    results = run_ranks_as_threads(ranks, rank_body)
    waiting = resize([state for _, state in results], 1)["residual"]
    for name in SIZES:
        total = sum(gradient(r, s)[name].double() for r in range(ranks) for s in range(steps)) / ranks
        for sent, _ in results:
            found = sent[name] + waiting[name].flatten()
            assert float((found - total).norm() / total.norm()) <= 1e-5


def hooked(rank: int) -> tuple[torch.Tensor, list[Any], torch.Tensor]:
    """Gradients by DistributedDataParallel's hook, its groups, and the gradients by `parallel`."""
    found = []
    plan = split_plan(made(wide), 2, 5, "efsign")
    model = made(wide)
    ddp = DistributedDataParallel(model)
    state, hook = data_parallel.hook(plan, model=model)
    ddp.register_comm_hook(state, hook)
    own = made(wide)
    wrapped = data_parallel.parallel(own, plan, torch.optim.SGD(own.parameters(), lr=0.1))
    for one in (ddp, wrapped):
        for step in range(2):
            one.zero_grad()
            x, y = batch(rank, step)
            nn.functional.cross_entropy(one(x), y).backward()
        found.append(torch.cat([p.grad.flatten() for p in one.parameters()]))
    groups = [one.way.group.names for one in state._travelling]
    state.close()
    wrapped.reducer.close()
    return found[0], groups, found[1]


@pytest.mark.slow
@pytest.mark.dist
def test_the_hook_sends_pieces_in_their_groups():
    for by_hook, groups, by_reducer in run_ranks_as_processes(2, hooked):
        torch.testing.assert_close(by_hook, by_reducer, rtol=1e-6, atol=1e-6)
        # DistributedDataParallel hands all over at once, in the order of the model.
        assert sum(any(name.startswith("0.weight[") for name in group) for group in groups) > 1


@pytest.mark.parametrize(
    ("codec", "compression", "words"),
    [
        ("powersgd", Compression(), r"holds pieces of '\w.weight', but it needs whole matrices"),
        ("qsgd", Compression(block=300), "no multiple of the block of 300"),
    ],
)
def test_codecs_that_pieces_would_change_are_refused(codec, compression, words):
    def body(model, start, rank):
        with pytest.raises(PlanError, match=words):
            start(split_plan(model, 1, 3, codec), compression=compression)

    run(1, wide, body)


def test_plans_that_do_not_fit_the_model_are_refused():
    def body(model, start, rank):
        other = nn.Sequential(
            nn.Linear(12, 3000), nn.Tanh(), nn.Linear(3000, 12), nn.Tanh(), nn.Linear(12, 4)
        )
        with pytest.raises(
            PlanError, match=r"pieces of 12288 elements of '2.weight', the model 24000 elements"
        ):
            start(split_plan(other, 1, 3))

    run(1, wide, body)
    with pytest.raises(PlanError, match="the model is not given"):
        data_parallel.hook(split_plan(made(wide), 1, 3))


def test_small_models_have_no_pieces():
    assert members(made(sequential), 4_096)[1] == {}
    assert set(members(made(wide), 10_000)[1]) == set(BIG)
