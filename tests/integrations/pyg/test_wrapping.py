"""Wrappers, copies and pickles of a distributed model are refused by name."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.spread import a_model
from tests.integrations.pyg_models import Two, g
from tests.integrations.test_pyg_law import a_graph
from wirewise.errors import InputError


def average(model: nn.Module) -> None:
    torch.optim.swa_utils.AveragedModel(model)


def save(model: nn.Module) -> None:
    torch.save(model, io.BytesIO())


def data_parallel(model: nn.Module) -> None:
    group = model._wirewise_step.bundle.job.transport.group
    nn.parallel.DistributedDataParallel(model, process_group=group)


def replicate(model: nn.Module) -> None:
    """Make a replica, like DataParallel on GPUs."""
    model._replicate_for_data_parallel()


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (data_parallel, "DistributedDataParallel around a distributed model"),
        (replicate, "DataParallel around a distributed model"),
        (average, "cannot be copied, as by copy.deepcopy or AveragedModel"),
        (copy.deepcopy, "cannot be copied"),
        (save, r"cannot be pickled.*state_dict"),
        (pickle.dumps, "cannot be pickled"),
    ],
)
def test_wrappers_meet_an_error(wrap: Callable[[nn.Module], Any], message: str) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        mine = job_of(a_graph("directed"), rank, group, store).distribute(a_model())
        with pytest.raises(InputError, match=message):
            wrap(mine)

    run_ranks_as_threads(1, body)


def weight_norm(model: Any) -> None:
    parametrizations.weight_norm(model.head)


def pruned(model: Any) -> None:
    prune.random_unstructured(model.head, "weight", 0.5)


def without_bias(model: Any) -> None:
    model.head.bias = None


def converted(model: Any) -> None:
    model.double()


def moved(model: Any) -> None:
    model.to("meta")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (weight_norm, r"head\..*weight_norm"),
        (pruned, r"head\.weight.*prune"),
        (without_bias, r"head\.bias was replaced"),
        (converted, "changed their type or device"),
        (moved, "changed their type or device"),
    ],
)
def test_parameters_that_are_replaced_are_named_at_the_next_call(
    change: Callable[[nn.Module], None], message: str
) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(a_graph("directed"), rank, group, store)
        mine = job.distribute(a_model())
        change(mine)
        with pytest.raises(InputError, match=message):
            mine(job.data.x, job.data.edge_index)

    run_ranks_as_threads(1, body)


def test_the_model_itself_can_still_be_copied_and_saved() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        model = a_model()
        job = job_of(a_graph("directed"), rank, group, store)
        job.distribute(model)(job.data.x, job.data.edge_index)[job.data.train_mask].mean().backward()
        save(model)
        average(model)

    run_ranks_as_threads(1, body)


def replaced_class(model: Any) -> None:
    """Swap the class, like `fully_shard` and `replicate` do."""
    model.__class__ = type("FSDPTwo", (type(model),), {})


def test_a_class_that_was_swapped_is_named() -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        job = job_of(a_graph("directed"), rank, group, store)
        mine = job.distribute(a_model())
        replaced_class(mine)
        with pytest.raises(InputError, match="became a FSDPTwo, as fully_shard and replicate"):
            mine(job.data.x, job.data.edge_index)

    run_ranks_as_threads(1, body)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Two(lambda i, o: g.SAGEConv(-1, o)),
            "first.lin_l is a Linear whose sizes are not known yet",
        ),
        (
            lambda: nn.Sequential(g.SAGEConv(3, 3), nn.LazyLinear(3)),
            "1 is a LazyLinear whose sizes are not known",
        ),
        (lambda: "a model", "got a str; expected a torch.nn.Module"),
    ],
)
def test_what_cannot_be_distributed_yet_says_what_to_do(make: Callable[[], Any], message: str) -> None:
    def body(rank: int, group: Any, store: Any) -> None:
        with pytest.raises(InputError, match=message):
            job_of(a_graph("directed"), rank, group, store).distribute(make())

    run_ranks_as_threads(1, body)
