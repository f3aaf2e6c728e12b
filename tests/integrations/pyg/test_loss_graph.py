"""Plain losses are those of one process, or refused: none is wrong without a word."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.harness.threads import run_ranks_as_threads
from tests.integrations.pyg.jobs import job_of
from tests.integrations.pyg.loss_table import REFUSED, RIGHT, Loss
from tests.integrations.pyg.spread import a_model
from tests.integrations.test_pyg_law import a_graph, distance
from wirewise.errors import InputError

WORLD = 3


def gradients(model: Any, data: Any, loss: Loss) -> list[Any]:
    model.zero_grad()
    loss(model(data.x, data.edge_index), data).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def outcome(model: Any, data: Any, loss: Loss, expected: list[Any]) -> str:
    try:
        found = gradients(model, data, loss)
    except InputError as error:
        return str(error)
    off = distance(found, expected)
    return "right" if off < 1e-5 else f"wrong by {off:.1e}"


def outcomes(losses: dict[str, Loss]) -> list[dict[str, str]]:
    """What becomes of each loss, on each rank."""
    data, model = a_graph("directed"), a_model()
    expected = {name: gradients(model, data, loss) for name, loss in losses.items()}
    copies = [copy.deepcopy(model) for _ in range(WORLD)]

    def body(rank: int, group: Any, store: Any) -> dict[str, str]:
        job = job_of(data, rank, group, store)
        mine = job.distribute(copies[rank])
        return {name: outcome(mine, job.data, loss, expected[name]) for name, loss in losses.items()}

    return run_ranks_as_threads(WORLD, body)


def test_means_over_training_nodes_are_right() -> None:
    for found in outcomes(RIGHT):
        assert {name: text for name, text in found.items() if text != "right"} == {}


def test_other_losses_are_refused_on_all_ranks() -> None:
    for found in outcomes(REFUSED):
        assert {name: text for name, text in found.items() if "the loss " not in text} == {}


@pytest.mark.parametrize("number", [0, 1])
def test_the_message_says_what_the_loss_does(number: int) -> None:
    names = ("class weights", "root of mse")
    words = ("weighs classes", r"goes through Sqrt")
    for rank, found in enumerate(outcomes({names[number]: REFUSED[names[number]]})):
        text = found[names[number]]
        assert "job.mean(values, mask)" in text
        assert rank > 0 or words[number] in text
