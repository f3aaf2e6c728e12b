"""Training of TAG's network: learns action values relative to the best strategy of a long search.

    python -m wirewise_papers.tag.policy_training weights.npz [MODEL.json TOPOLOGY.toml ...]

Problems are sampled at random. Given pairs of files, a profile of `wirewise profile stages` and a topology, training
starts from the shipped weights and also learns these, ten times as often.
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

from wirewise.planners.placement.tag.features import Observation, observe
from wirewise.planners.placement.tag.network import SHIPPED, new_weights, read_weights, scores, write_weights
from wirewise.planners.placement.tag.problem import DeploymentProblem, problem_of
from wirewise.planners.placement.tag.search import StrategyTimes, descend, fill_undecided
from wirewise.topology import load
from wirewise.trace import read_stage_trace
from wirewise_papers.tag.random_models import random_problem

__all__ = ["TrainingExample", "build_examples", "train"]

FIRST_SEED = 10_000
"""First seed of training problems; lower seeds are reserved for tests."""
_SHARP = 40.0
"""An action that costs a fortieth of a step more is e times less likely."""


class TrainingExample(NamedTuple):
    """Observation, and the target probability of each action."""

    seen: Observation
    target: Tensor


def build_examples(
    problem: DeploymentProblem, *, simulations: int, positions: int, seed: int
) -> list[TrainingExample]:
    """Values of actions whose earlier op groups are placed as in the best strategy.

    Args:
        problem: Model and devices.
        simulations: Number of simulated strategies in the search for the best.
        positions: Number of positions in the order, including the first.
        seed: Seed of search and places.
    """
    times, random = StrategyTimes(problem, simulations), np.random.default_rng(seed)
    starts = [
        problem.baseline(),
        *(problem.uniform_strategy(w, proportional=True) for w in ("allreduce", "duplicate")),
    ]
    best = descend(times, min(starts, key=times.of), seed=seed)
    times.most, best_s, order = np.inf, times.of(best), problem.order
    if not np.isfinite(best_s):
        return []
    chosen = {0, *random.choice(len(order), min(positions, len(order)), replace=False).tolist()}
    found = []
    for place in sorted(chosen):
        group = order[place]
        seconds = np.array(
            [times.of((*best[:group], a, *best[group + 1 :])) for a in range(len(problem.actions[group]))]
        )
        likely = np.exp(-_SHARP * np.minimum(seconds / best_s - 1.0, 10.0))
        decided = tuple(best[g] for g in order[:place])
        found.append(
            TrainingExample(
                _tensors(observe(problem, fill_undecided(problem, decided), place)),
                _tensor(likely / likely.sum()),
            )
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
    examples: Sequence[TrainingExample],
    weights: dict[str, NDArray[np.float32]],
    *,
    epochs: int,
    rate: float = 2e-3,
    seed: int = 0,
) -> Iterator[float]:
    """Train in place; yields the mean excess cross-entropy of each epoch.

    Args:
        examples: Training examples in any order.
        weights: Weights by name, updated in place.
        epochs: Number of training epochs.
        rate: Initial learning rate; decays to zero.
        seed: Seed of the order.
    """
    random = np.random.default_rng(seed)
    learned = {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in weights.items()}
    optimizer, batch = torch.optim.Adam(learned.values(), rate), 16
    steps = epochs * (len(examples) // batch + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
    for _ in range(epochs):
        total = 0.0
        order = random.permutation(len(examples))
        for begin in range(0, len(examples), batch):
            some = order[begin : begin + batch]
            loss = torch.stack([_loss(learned, examples[number]) for number in some]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(learned.values(), 0.6)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(some)
        for name, tensor in learned.items():
            weights[name] = tensor.detach().numpy()
        yield total / len(examples)


def _loss(weights: dict[str, Tensor], lesson: TrainingExample) -> Tensor:
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
    """Train, print the progress, and write the weights."""
    out, *files = words
    problems, epochs = 160, 10
    torch.set_num_threads(1)
    taught, begin = list[TrainingExample](), time.perf_counter()
    weights = read_weights(SHIPPED) if files else new_weights(0)
    for trace, topology in zip(files[::2], files[1::2], strict=True):
        own = problem_of(read_stage_trace(trace), load(topology))
        taught += 10 * build_examples(own, simulations=3000, positions=12, seed=0)
    for number in range(problems // 10 if files else problems):
        taught += build_examples(
            _drawn(FIRST_SEED + number), simulations=250, positions=3, seed=FIRST_SEED + number
        )
        if number % 20 == 19:
            _say(f"{number + 1} problems, {len(taught)} lessons, {time.perf_counter() - begin:.0f} s")
    for epoch, loss in enumerate(train(taught, weights, epochs=epochs)):
        _say(f"epoch {epoch}: {loss:.4f} nats, {time.perf_counter() - begin:.0f} s")
        write_weights(weights, out)


if __name__ == "__main__":
    main(sys.argv[1:])
