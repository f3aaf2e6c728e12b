"""Names of a plan and of a model, and ranks that agree on both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from tests.harness.threads import run_ranks_as_threads
from tests.runtime.data_parallel.examples import (
    Branching,
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
from wirewise.runtime.data_parallel import Reducer


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([["out.weight", "ghost"]], ("not in the model: ghost", "not in the plan: ", "scale")),
        ([["frozen"]], ("in the plan but not trained: frozen",)),
        ([["shared.weight", "again.weight"]], ("under two names: shared.weight",)),
    ],
)
def test_names_that_do_not_fit_are_listed(groups, words):
    def body(rank: int, group: Any, store: Any) -> str:
        model = Branching()
        model.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        sizes = {"ghost": 4, "frozen": 8}
        plan = plan_of(model, [[n for n in g if n not in sizes] or ["scale"] for g in groups], 1)
        bucket = msgspec.structs.replace(plan.buckets[0], parameters=tuple(groups[0]))
        with pytest.raises(PlanError) as caught:
            Reducer(model, msgspec.structs.replace(plan, buckets=(bucket,)), group)
        return str(caught.value)

    message = run_ranks_as_threads(1, body)[0]
    for word in (*words, "make the plan again"):
        assert word in message


def test_either_name_of_a_shared_parameter_is_right():
    model = made(Branching)
    names = [n.replace("shared", "again") for n in names_of(model)]

    def body(model, reducer, rank):
        loss_of(model, rank).backward()
        return gradients(model)

    for found in run(2, Branching, plan_of(model, [names[:3], names[3:]], 2), body):
        assert_equal(found, mean_gradients(made(Branching), 2))


def compressed(plan):
    buckets = [msgspec.structs.replace(b, codec="efsign", scheme="all_reduce") for b in plan.buckets]
    return msgspec.structs.replace(plan, buckets=tuple(buckets))


def test_plans_that_differ_or_are_for_other_ranks_are_refused_everywhere():
    def body(rank: int, group: Any, store: Any) -> str:
        model = made(sequential)
        with pytest.raises(PlanError, match=r"world size 3.*2 ranks"):
            Reducer(model, whole(model, 3), group, store=store)
        with pytest.raises(PlanError, match=r"ranks \[1\] have another plan") as caught:
            Reducer(model, random_plan(model, 2, rank), group, store=store)
        with pytest.raises(
            PlanError, match=r"bucket 0 .* as 'efsign' by 'all_reduce', but its payloads cannot"
        ):
            Reducer(model, compressed(whole(model, 2)), group, store=store)
        with pytest.raises(InputError, match="until"):
            Reducer(model, whole(model, 2), group, until="later")  # type: ignore[arg-type]
        return str(caught.value)

    run_ranks_as_threads(2, body)
