"""Rounds of decisions: each cluster points at a job and chooses an amount, and conflicts are resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.planners.jobs.attention import Seen, TapFinger
from wirewise.planners.jobs.problem import JobProblem
from wirewise.planners.jobs.rules import Knowledge, expected, knowledge
from wirewise.sim.jobs.engine import (
    ARRIVED,
    RUNNING,
    SLOT,
    WAITING,
    QueueState,
    advance,
    arrive,
    new_state,
    start,
)
from wirewise.sim.jobs.views import OPTIONS, look, new_views, weigh
from wirewise.trace.queues import QueueArrays

__all__ = ["Game", "Round", "decide", "play", "see"]

AMOUNTS = 32
"""Amounts that a kind's jobs are given: nothing, and up to 31 that are quicker than any smaller one."""


@dataclass
class Game:
    """A queue that is being scheduled."""

    problem: JobProblem
    believed: QueueArrays = field(init=False)
    known: Knowledge = field(init=False)
    amounts: NDArray[np.int64] = field(init=False)
    """Processors and accelerators, [K, AMOUNTS, 2]; the first is nothing, as is what there is no more of."""
    state: QueueState = field(init=False)

    def __post_init__(self) -> None:
        self.believed = expected(self.problem.arrays)
        self.known = knowledge(self.believed, self.problem.window)
        self.amounts = _amounts(self.believed, self.known)
        self.state = new_state(self.problem.arrays)
        self.to_next()

    @classmethod
    def running(cls, problem: JobProblem, believed: QueueArrays, state: QueueState) -> Game:
        """A game that goes on elsewhere, at its current state.

        Args:
            problem: Jobs and clusters.
            believed: The same as they are believed to be now.
            state: State, which decisions change.
        """
        game = cls.__new__(cls)
        game.problem, game.believed, game.state = problem, believed, state
        game.known = knowledge(believed, problem.window)
        game.amounts = _amounts(believed, game.known)
        return game

    @property
    def over(self) -> bool:
        """Whether all jobs are done."""
        return int(self.state.counts[ARRIVED]) == len(self.problem.arrays.arrival) and not self.present

    @property
    def present(self) -> int:
        """Jobs that have arrived and are not done."""
        return int(self.state.counts[WAITING] + self.state.counts[RUNNING])

    def to_next(self) -> None:
        """Go to the slot in which somebody is there, unless all are done."""
        arrive(self.problem.arrays, self.state)
        if not self.present and not self.over:
            self.state.counts[SLOT] = self.problem.arrays.arrival[self.state.counts[ARRIVED]]
            arrive(self.problem.arrays, self.state)

    def pass_slot(self) -> None:
        """Let a slot pass."""
        advance(self.problem.arrays, self.state, self.problem.kept)
        self.to_next()


def _amounts(believed: QueueArrays, known: Knowledge) -> NDArray[np.int64]:
    found = np.zeros((len(believed.least), AMOUNTS, 2), np.int64)
    for kind, best in enumerate(known.best):
        quicker = np.unique(best.reshape(-1, 2), axis=0)
        quicker = quicker[(quicker >= believed.least[kind]).all(axis=1)]
        # Of more than there is room for, those evenly spread, with the least and the quickest.
        kept = np.unique(np.linspace(0, len(quicker) - 1, min(len(quicker), AMOUNTS - 1)).round().astype(int))
        found[kind, 1 : 1 + len(kept)] = quicker[kept]
    return found


class Round(NamedTuple):
    """Decisions of all clusters of E games at one moment."""

    seen: Seen
    pick: Tensor
    """Place in the window, [E, A]."""
    features: Tensor
    """Features of amounts for the job that was picked, [E, A, O, OPTIONS]."""
    legal: Tensor
    """Amounts that can be given, [E, A, O]."""
    amount: Tensor
    """Number of the chosen amount, [E, A]."""
    acts: Tensor
    """Clusters whose window is not empty, [E, A]."""
    wins: Tensor
    """Clusters that got the job that they picked, [E, A]."""
    log_probability: Tensor
    """Logarithm of the probability of the pick, and of the amount where the job was won, [E, A]."""
    value: Tensor
    """Expected return of each cluster, [E, A]."""
    started: Tensor
    """Games in which a job was started, [E]."""


def see(games: Sequence[Game]) -> tuple[Seen, NDArray[np.int64]]:
    """What is seen of games with as many clusters each, and the job at each place of windows, [E, A, W]."""
    clusters, window = len(games[0].problem.arrays.room), games[0].problem.window
    views = new_views(len(games), clusters, window)
    for number, game in enumerate(games):
        look(game.believed, game.state, game.known.slots, game.known.best, views, number)
    jobs = np.take_along_axis(views.job, views.window.clip(0).reshape(len(games), -1), 1).reshape(
        views.window.shape
    )
    arrays = (views.cluster, views.pending, views.adjacent, views.window, views.active, views.runs)
    return Seen(*map(torch.from_numpy, arrays)), np.where(views.window < 0, -1, jobs)


def weighed(games: Sequence[Game], jobs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Features of amounts for one job of each cluster, [E, A, O, OPTIONS], and whether they can be given, [E, A, O]."""
    features = np.zeros((*jobs.shape, AMOUNTS, OPTIONS), np.float32)
    legal = np.zeros((*jobs.shape, AMOUNTS), np.bool_)
    for number, game in enumerate(games):
        weigh(
            game.believed,
            game.state,
            game.known.slots,
            game.amounts,
            jobs[number],
            features[number],
            legal[number],
        )
    return torch.from_numpy(features), torch.from_numpy(legal)


def winners(
    games: Sequence[Game], jobs: NDArray[np.int64], likelihood: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Who gets a job that several clusters picked: the greatest room for it times the probability of the pick, [E, A].

    The room is a softmax over those clusters of how often what is free holds the least that the job starts with.
    """
    wins = np.zeros(jobs.shape, np.bool_)
    for number, game in enumerate(games):
        least = game.believed.least[game.believed.kind[jobs[number]]]
        room = (game.state.free / np.maximum(least, 1e-9)).min(axis=1)
        for job in set(jobs[number].tolist()) - {-1}:
            same = np.flatnonzero(jobs[number] == job)
            prior = np.exp(room[same] - room[same].max())
            wins[number, same[np.argmax(prior / prior.sum() * likelihood[number, same])]] = True
    return wins


@torch.no_grad()
def decide(network: TapFinger, games: Sequence[Game], draw: torch.Generator | None = None) -> Round:
    """One round: clusters pick, conflicts are resolved, winners start their job with an amount or let it wait.

    Args:
        network: Network with its weights.
        games: Games with as many clusters and as wide windows each; they change.
        draw: Generator of what is drawn; None: the likeliest is taken.
    """
    seen, jobs = see(games)
    of_clusters, of_jobs = network.embeddings(seen)
    pointed = network.pointers(of_clusters, of_jobs, seen.window)
    pick = _choose(pointed, draw)
    acts = seen.window[..., 0] >= 0
    picked = np.where(acts.numpy(), np.take_along_axis(jobs, pick.numpy()[..., None], 2)[..., 0], -1)
    features, legal = weighed(games, picked)
    chosen = torch.gather(of_jobs, 2, pick[..., None, None].expand(-1, -1, 1, of_jobs.shape[-1])).squeeze(2)
    scores = network.amounts(of_clusters, chosen, features, legal)
    amount = _choose(scores, draw)
    of_pick = pointed.gather(-1, pick[..., None]).squeeze(-1)
    wins = winners(games, picked, of_pick.exp().double().numpy())
    started = np.zeros(len(games), np.bool_)
    for number, cluster in np.argwhere(wins & (amount.numpy() > 0)).tolist():
        game, job = games[number], int(picked[number, cluster])
        cpus, gpus = game.amounts[game.believed.kind[job], int(amount[number, cluster])].tolist()
        start(game.state, job, cluster, cpus, gpus)
        started[number] = True
    won = torch.from_numpy(wins)
    of_amount = scores.gather(-1, amount[..., None]).squeeze(-1)
    value = network.value(of_clusters).squeeze(-1)
    told = of_pick * acts + of_amount * won
    return Round(seen, pick, features, legal, amount, acts, won, told, value, torch.from_numpy(started))


def _choose(scores: Tensor, draw: torch.Generator | None) -> Tensor:
    if draw is None:
        return scores.argmax(-1)
    return torch.multinomial(scores.exp().flatten(0, -2), 1, generator=draw).view(scores.shape[:-1])


def play(network: TapFinger, problems: Sequence[JobProblem], last: int) -> list[QueueState]:
    """Schedule queues with as many clusters each to their ends, or to slot `last`, with the likeliest decisions."""
    games = [Game(problem) for problem in problems]
    while running := [game for game in games if not game.over and game.state.counts[SLOT] < last]:
        deciding = [game for game in running if game.state.counts[WAITING]]
        started = decide(network, deciding).started.tolist() if deciding else []
        ready = {id(game) for game, one in zip(deciding, started, strict=True) if one}
        for game in running:
            if id(game) not in ready:
                game.pass_slot()
    return [game.state for game in games]
