"""No field of a fusion plan is passed over: each changes what an executor does, or is refused by its name."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.captured import alone
from tests.runtime.data_parallel.examples import batch, made, plan_of
from wirewise.errors import PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.plans.splits import piece_name
from wirewise.runtime.data_parallel import (
    Compression,
    InFlightGroup,
    Reducer,
    TrainingStep,
    changes,
    hook,
    parallel,
)
from wirewise.runtime.data_parallel.exchanges import AllReduces

FIGURES = {
    "planner",
    "seed",
    "predicted_step_s",
    "baseline_step_s",
    "lower_bound_s",
    "compressed_step_s",
    "uncompressed_step_s",
    "unsplit_step_s",
    "predicted_memory_bytes",
}
"""Fields that tell who planned, and what was predicted: nothing that could be carried out."""
RANKS = 2


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 4))


def loss_of(model: nn.Module, one: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(one[0]), one[1])


STEP = TrainingStep(loss_of, batch(0, 0, width=64), compiler="none")


def plain() -> FusionPlan:
    return plan_of(build(), [["2.bias", "2.weight"], ["0.bias", "0.weight"]], RANKS)


def with_buckets(**fields: Any) -> FusionPlan:
    return msgspec.structs.replace(
        plain(), buckets=tuple(msgspec.structs.replace(bucket, **fields) for bucket in plain().buckets)
    )


def with_first(**fields: Any) -> FusionPlan:
    first, *others = plain().buckets
    return msgspec.structs.replace(plain(), buckets=(msgspec.structs.replace(first, **fields), *others))


def split() -> FusionPlan:
    """0.weight, of 8192 elements, in two pieces, in two buckets."""
    pieces = [Bucket(parameters=(piece_name("0.weight", i),), size_bytes=4 * 4096) for i in range(2)]
    first = plan_of(build(), [["2.bias", "2.weight", "0.bias"]], RANKS).buckets
    return msgspec.structs.replace(plain(), buckets=(*first, *pieces), splits={"0.weight": 4096})


BUCKETS = {
    "parameters": with_first(parameters=("ghost",)),
    "size_bytes": with_buckets(size_bytes=1 << 20),
    "chunks": with_buckets(chunks=3),
    "codec": with_buckets(codec="bf16"),
    "scheme": with_buckets(scheme="hierarchical"),
    "decode": with_buckets(codec="efsign", scheme="all_gather", decode="lazy"),
}
"""Each field of a bucket with another value."""
PLANS = {
    "world_size": msgspec.structs.replace(plain(), world_size=3),
    "buckets": plan_of(build(), [["2.bias", "2.weight", "0.bias", "0.weight"]], RANKS),
    "splits": split(),
    "fused_ops": msgspec.structs.replace(plain(), fused_ops=(("0", "1"),)),
    "regions": msgspec.structs.replace(plain(), regions=(("ghost",),)),
    "precision": msgspec.structs.replace(plain(), precision="bfloat16"),
    "recompute": msgspec.structs.replace(plain(), recompute=("1",)),
    "accumulation": msgspec.structs.replace(plain(), accumulation=2),
}
"""Each field of a plan likewise."""
CASES = {**{f"bucket.{name}": plan for name, plan in BUCKETS.items()}, **PLANS}
REFUSED = {
    "bucket.parameters": "not in the model: ghost",
    "bucket.size_bytes": r"size_bytes 1048576 of bucket 0, .* 2064 bytes",
    "world_size": "made for world size 3",
    "regions": "operators that the captured step does not have: ghost",
}
"""What `parallel` says of values that do not fit the model or the ranks; all others it carries out."""
BASES = {"bucket.decode": with_buckets(codec="efsign", scheme="all_gather")}
"""Plans that differ in the one field, where that is not the plain one."""


def test_every_field_has_a_case():
    assert set(BUCKETS) == set(Bucket.__struct_fields__)
    assert set(PLANS) | FIGURES == set(FusionPlan.__struct_fields__)
    decided = {name for plan in CASES.values() for name in plan.decisions}
    assert decided == (set(BUCKETS) | set(PLANS)) - {"parameters", "size_bytes", "world_size", "buckets"}


@pytest.fixture
def notes(monkeypatch):
    """What executors did: all-reduces, groups that travelled and where they were decoded, modules, compilers."""
    found: list[str] = []

    def note(owner: Any, name: str, told: Any) -> None:
        real = getattr(owner, name)

        def noting(*args: Any, **options: Any) -> Any:
            found.append(told(*args))
            return real(*args, **options)

        monkeypatch.setattr(owner, name, noting)

    note(AllReduces, "start", lambda _, tensor, *rest: f"all-reduce of {tensor.numel()}")
    note(InFlightGroup, "decode", lambda one: f"{one.codec}, {type(one.way).__name__}, {_thread()}")
    note(nn.Tanh, "forward", lambda _, x: f"a module of {x.dtype}")
    monkeypatch.setattr(torch, "compile", lambda f: (found.append("compiled"), f)[1])
    changes.compiler_obstacle.cache_clear()
    yield found
    changes.compiler_obstacle.cache_clear()


def _thread() -> str:
    return threading.current_thread().name.rpartition("-")[0]


def carried_out(plan: FusionPlan, notes: list[str]) -> list[str]:
    """All that was noted of two back-propagations on each rank, in order."""

    def body(rank: int, group: Any, store: Any) -> None:
        model = made(build)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {
            "step": STEP,
            "compression": Compression(ranks_per_host=1),
            "store": store,
            "timeout_s": 20,
        }
        wrapped = parallel(model, plan, optimizer, group, **options)
        for number in range(2):
            wrapped.step(batch(rank, number, width=64))
        wrapped.reducer.close()

    notes.clear()
    run_ranks_as_threads(RANKS, body)
    return sorted(notes)


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_parallel_carries_each_field_out_or_names_it(case, notes):
    plan = CASES[case]
    if case in REFUSED:
        with pytest.raises(PlanError, match=REFUSED[case]):
            carried_out(plan, notes)
        return
    base = carried_out(BASES.get(case, plain()), notes)
    assert base and carried_out(plan, notes) != base


@pytest.mark.parametrize("name", ["fused_ops", "regions", "precision", "recompute", "accumulation"])
def test_the_hook_names_what_distributed_data_parallel_does_not_do(name):
    with pytest.raises(
        PlanError, match=rf"decides on {name}; the hook .* use runtime\.data_parallel\.parallel"
    ):
        hook(PLANS[name])


@pytest.mark.parametrize("name", ["fused_ops", "regions", "precision", "recompute"])
def test_a_reducer_names_what_is_not_about_gradients(name):
    with pytest.raises(
        PlanError, match=rf"decides on {name}; a reducer .* use runtime\.data_parallel\.parallel"
    ):
        Reducer(build(), PLANS[name], alone())


def test_a_place_to_decode_takes_a_codec():
    with pytest.raises(PlanError, match=r"at `\$\.buckets\[0\]`: decode 'lazy' has no codec to decode"):
        with_buckets(decode="lazy").check_itself()
