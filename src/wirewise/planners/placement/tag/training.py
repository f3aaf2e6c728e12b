"""Training of TAG's network: it learns what actions are worth next to the best strategy that a long search finds.

    python -m wirewise.planners.placement.tag.training weights.npz [MODEL.json TOPOLOGY.toml ...]

Problems are drawn (`drawn`); pairs of files, a profile of `wirewise profile stages` and a topology, are learned beside
them, ten times as often, from the weights that come with wirewise on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.planners.placement.tag.drawn import random_problem
from wirewise.planners.placement.tag.features import Observation, see
from wirewise.planners.placement.tag.network import SHIPPED, new_weights, read_weights, scores, write_weights
from wirewise.planners.placement.tag.problem import DeploymentProblem, problem_of
from wirewise.planners.placement.tag.search import StrategyTimes, descend, inherited
from wirewise.topology import load
from wirewise.trace import read_stage_trace

__all__ = ["Lesson", "lessons", "train"]

FIRST_SEED = 10_000
"""Seeds of the problems that are learned; those below are left for tests."""
_SHARP = 40.0
"""An action that costs a fortieth of a step more is e times less likely."""


class Lesson(NamedTuple):
    """What is seen, and how likely each action should be."""

    seen: Observation
    target: Tensor


def lessons(problem: DeploymentProblem, *, simulations: int, places: int, seed: int) -> list[Lesson]:
    """What actions are worth where earlier op groups are as in the best strategy that was found.

    Args:
        problem: Model and devices.
        simulations: Strategies to simulate in the search for the best.
        places: Places in the order to take, the first among them.
        seed: Seed of search and places.
    """
    times, random = StrategyTimes(problem, simulations), np.random.default_rng(seed)
    starts = [
        problem.baseline(),
        *(problem.everywhere(w, proportional=True) for w in ("allreduce", "duplicate")),
    ]
    best = descend(times, min(starts, key=times.of), seed=seed)
    times.most, best_s, order = np.inf, times.of(best), problem.order
    if not np.isfinite(best_s):
        return []
    chosen = {0, *random.choice(len(order), min(places, len(order)), replace=False).tolist()}
    found = []
    for place in sorted(chosen):
        group = order[place]
        seconds = np.array(
            [times.of((*best[:group], a, *best[group + 1 :])) for a in range(len(problem.actions[group]))]
        )
        likely = np.exp(-_SHARP * np.minimum(seconds / best_s - 1.0, 10.0))
        decided = tuple(best[g] for g in order[:place])
        found.append(
            Lesson(_tensors(see(problem, inherited(problem, decided), place)), _tensor(likely / likely.sum()))
        )
    return found


def _tensor(array: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.float32))


def _tensors(seen: Observation) -> Observation:
    found: dict[str, Any] = {
        name: _tensor(getattr(seen, name)) for name in Observation._fields if name != "group"
    }
    return seen._replace(**found)


def train(
    taught: Sequence[Lesson],
    weights: dict[str, NDArray[np.float32]],
    *,
    epochs: int,
    rate: float = 2e-3,
    seed: int = 0,
) -> Iterator[float]:
    """Learn in place; yields the mean cross-entropy above that of the targets, by epoch.

    Args:
        taught: Lessons, in any order.
        weights: Weights by name, which become those that were learned.
        epochs: Passes over all lessons.
        rate: Learning rate at the beginning; it falls to nothing.
        seed: Seed of the order.
    """
    random = np.random.default_rng(seed)
    learned = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in weights.items()}
    optimizer, batch = torch.optim.Adam(learned.values(), rate), 16
    steps = epochs * (len(taught) // batch + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
    for _ in range(epochs):
        total = 0.0
        order = random.permutation(len(taught))
        for begin in range(0, len(taught), batch):
            some = order[begin : begin + batch]
            loss = torch.stack([_loss(learned, taught[number]) for number in some]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learned.values(), 0.6)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(some)
        for name, tensor in learned.items():
            weights[name] = tensor.detach().numpy()
        yield total / len(taught)


def _loss(weights: dict[str, Tensor], lesson: Lesson) -> Tensor:
    likely = torch.log_softmax(scores(weights, lesson.seen, torch), 0)
    known = torch.log(lesson.target.clamp(min=1e-12))
    return (lesson.target * (known - likely)).sum()


def _drawn(seed: int) -> DeploymentProblem:
    """A small problem: many kinds of clusters are seen in little time."""
    random = np.random.default_rng(seed)
    groups, devices, hosts = (int(random.choice(of)) for of in ([4, 4, 6, 8], [1, 2, 4], [2, 2, 3, 4]))
    return random_problem(seed, groups=groups, most_devices=devices, hosts=hosts)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> None:
    """Train, print what is learned, write the weights."""
    out, *files = words
    problems, epochs = 160, 10
    torch.set_num_threads(1)
    taught, begin = list[Lesson](), time.perf_counter()
    weights = read_weights(SHIPPED) if files else new_weights(0)
    for trace, topology in zip(files[::2], files[1::2], strict=True):
        own = problem_of(read_stage_trace(trace), load(topology))
        taught += 10 * lessons(own, simulations=3000, places=12, seed=0)
    for number in range(problems // 10 if files else problems):
        taught += lessons(_drawn(FIRST_SEED + number), simulations=250, places=3, seed=FIRST_SEED + number)
        if number % 20 == 19:
            _say(f"{number + 1} problems, {len(taught)} lessons, {time.perf_counter() - begin:.0f} s")
    for epoch, loss in enumerate(train(taught, weights, epochs=epochs)):
        _say(f"epoch {epoch}: {loss:.4f} nats, {time.perf_counter() - begin:.0f} s")
        write_weights(weights, out)


if __name__ == "__main__":
    main(sys.argv[1:])
