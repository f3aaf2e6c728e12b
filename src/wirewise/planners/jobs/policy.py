"""Decision rounds: each cluster picks a job and an amount, and conflicts are resolved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax
from torch import Tensor

from wirewise.planners.jobs.attention import ObservationTensors, TapFinger
from wirewise.planners.jobs.problem import JobProblem
from wirewise.planners.jobs.rules import Knowledge, expected_queue, knowledge
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
from wirewise.sim.jobs.views import OPTIONS, new_views, write_amounts, write_view
from wirewise.trace.queues import QueueArrays

__all__ = [
    "ABLATIONS",
    "Episode",
    "Round",
    "decide",
    "decide_several",
    "match_clusters",
    "observe",
    "proposal_of",
    "run_episodes",
]

ABLATIONS = ("pointer", "bayes")
"""Parts that `run_episodes` can leave out: without them, the oldest job is picked, and clusters that pick one job win
in rotation."""

_NEVER = -1e4
"""Worth of a job for a cluster whose window does not hold it."""

AMOUNTS = 32
"""Maximum number of amounts of a kind: none, and up to 31 that are faster than any smaller one."""


@dataclass
class Episode:
    """Queue that is being scheduled, as an episode."""

    problem: JobProblem
    believed: QueueArrays = field(init=False)
    known: Knowledge = field(init=False)
    amounts: NDArray[np.int64] = field(init=False)
    """CPUs and accelerators, [K, AMOUNTS, 2]; the first amount is zero, and so is padding."""
    state: QueueState = field(init=False)

    def __post_init__(self) -> None:
        self.believed = self.problem.believed
        self.known = self.problem.knowledge()
        self.amounts = _amounts(self.believed, self.known)
        self.state = new_state(self.problem.arrays)
        self.advance_to_next()

    @classmethod
    def running(cls, problem: JobProblem, forecast: QueueArrays, state: QueueState) -> Episode:
        """Episode that continues from the current state of a queue.

        Args:
            problem: Jobs and clusters.
            forecast: Jobs and clusters according to current knowledge.
            state: State, updated by decisions.
        """
        game = cls.__new__(cls)
        game.problem, game.believed, game.state = problem, forecast, state
        game.known = knowledge(forecast, problem.window)
        game.amounts = _amounts(forecast, game.known)
        return game

    @property
    def over(self) -> bool:
        """Whether all jobs are done."""
        return int(self.state.counts[ARRIVED]) == len(self.problem.arrays.arrival) and not self.present

    @property
    def present(self) -> int:
        """Number of jobs that have arrived and are not done."""
        return int(self.state.counts[WAITING] + self.state.counts[RUNNING])

    def advance_to_next(self) -> None:
        """Advance to the next slot with a present job, unless all are done."""
        arrive(self.problem.arrays, self.state)
        if not self.present and not self.over:
            self.state.counts[SLOT] = self.problem.arrays.arrival[self.state.counts[ARRIVED]]
            arrive(self.problem.arrays, self.state)

    def pass_slot(self) -> None:
        """Advance by one slot."""
        advance(self.problem.arrays, self.state, self.problem.kept)
        self.advance_to_next()


def _amounts(forecast: QueueArrays, knowledge: Knowledge) -> NDArray[np.int64]:
    found = np.zeros((len(forecast.least), AMOUNTS, 2), np.int64)
    for kind, best in enumerate(knowledge.best):
        quicker = np.unique(best.reshape(-1, 2), axis=0)
        quicker = quicker[(quicker >= forecast.least[kind]).all(axis=1)]
        # Of more than there is room for, those evenly spread, with the least and the quickest.
        kept = np.unique(np.linspace(0, len(quicker) - 1, min(len(quicker), AMOUNTS - 1)).round().astype(int))
        found[kind, 1 : 1 + len(kept)] = quicker[kept]
    return found


class Round(NamedTuple):
    """Decisions of all clusters of E episodes at one time."""

    seen: ObservationTensors
    pick: Tensor
    """Position in the window, [E, A]."""
    features: Tensor
    """Features of amounts for the job that was picked, [E, A, O, OPTIONS]."""
    legal: Tensor
    """Feasible amounts, [E, A, O]."""
    amount: Tensor
    """Index of the chosen amount, [E, A]."""
    acts: Tensor
    """Whether a cluster's window is not empty, [E, A]."""
    wins: Tensor
    """Whether a cluster won the job that it picked, [E, A]."""
    log_probability: Tensor
    """Logarithm of the probability of the pick, and of the amount where the job was won, [E, A]."""
    value: Tensor
    """Expected return of each cluster, [E, A]."""
    started: Tensor
    """Episodes in which a job was started, [E]."""


def observe(episodes: Sequence[Episode]) -> tuple[ObservationTensors, NDArray[np.int64]]:
    """Observe episodes with equally many clusters; also returns the job at each window position, [E, A, W]."""
    clusters, window = len(episodes[0].problem.arrays.room), episodes[0].problem.window
    views = new_views(len(episodes), clusters, window)
    for number, game in enumerate(episodes):
        write_view(game.believed, game.state, game.known.slots, game.known.best, views, number)
    jobs = np.take_along_axis(views.job, views.window.clip(0).reshape(len(episodes), -1), 1).reshape(
        views.window.shape
    )
    arrays = (views.cluster, views.pending, views.adjacent, views.window, views.active, views.runs)
    return ObservationTensors(*map(torch.from_numpy, arrays)), np.where(views.window < 0, -1, jobs)


def amount_features(episodes: Sequence[Episode], jobs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Features of amounts for one job of each cluster, [E, A, O, OPTIONS], and whether they are feasible, [E, A, O]."""
    features = np.zeros((*jobs.shape, AMOUNTS, OPTIONS), np.float32)
    legal = np.zeros((*jobs.shape, AMOUNTS), np.bool_)
    for number, game in enumerate(episodes):
        write_amounts(
            game.believed,
            game.state,
            game.known.slots,
            game.amounts,
            jobs[number],
            features[number],
            legal[number],
        )
    return torch.from_numpy(features), torch.from_numpy(legal)


def resolve_conflicts(
    episodes: Sequence[Episode], jobs: NDArray[np.int64], likelihood: NDArray[np.float64], bayes: bool = True
) -> NDArray[np.bool_]:
    """Resolve jobs picked by several clusters: the largest room times probability of the pick wins, [E, A].

    The room is a softmax over those clusters of how many times their free resources hold the job's minimum. Without
    `bayes`, clusters win in rotation.
    """
    wins = np.zeros(jobs.shape, np.bool_)
    for number, game in enumerate(episodes):
        least = game.believed.least[game.believed.kind[jobs[number]]]
        room = (game.state.free / np.maximum(least, 1e-9)).min(axis=1)
        for job in set(jobs[number].tolist()) - {-1}:
            same = np.flatnonzero(jobs[number] == job)
            if not bayes:
                wins[number, same[(int(game.state.counts[SLOT]) + job) % len(same)]] = True
                continue
            prior = np.exp(room[same] - room[same].max())
            wins[number, same[np.argmax(prior / prior.sum() * likelihood[number, same])]] = True
    return wins


def match_clusters(
    episodes: Sequence[Episode], jobs: NDArray[np.int64], likelihood: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Match clusters and jobs optimally; returns window positions, or -1, with no job given to two clusters, [E, A].

    A pair is worth the logarithm of the score compared by `resolve_conflicts`: the room for the job, as a softmax over
    the clusters whose windows hold it, times the probability of the pick.

    Args:
        episodes: E episodes at one time each.
        jobs: Jobs in windows, or -1, [E, A, W].
        likelihood: Probabilities of picks, [E, A, W].
    """
    picks = np.full(jobs.shape[:2], -1)
    for number, (game, own) in enumerate(zip(episodes, jobs, strict=True)):
        known, column = np.unique(own, return_inverse=True)
        column = column.reshape(own.shape)
        at = np.arange(len(own))[:, None], column
        least = np.maximum(game.believed.least[game.believed.kind[own]], 1e-9)
        room, chance = np.full((2, len(own), len(known)), -np.inf)
        room[at] = (game.state.free[:, None] / least).min(axis=-1)
        chance[at] = np.log(likelihood[number] + 1e-300)
        worth = np.maximum(log_softmax(room, axis=0) + chance, _NEVER)
        worth[:, known < 0] = _NEVER
        for cluster, job in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
            if worth[cluster, job] > _NEVER:
                picks[number, cluster] = (column[cluster] == job).argmax()
    return picks


@torch.no_grad()
def decide(
    network: TapFinger,
    episodes: Sequence[Episode],
    draw: torch.Generator | None = None,
    without: Collection[str] = (),
    matching: bool = False,
) -> Round:
    """Run one decision round: clusters pick, conflicts are resolved, winners start their job or let it wait.

    Args:
        network: Network with its weights.
        episodes: Episodes with equally many clusters and equal windows; updated.
        draw: Random generator of decisions. Defaults to taking the likeliest.
        without: Parts of `ABLATIONS` to leave out.
        matching: Whether clusters get jobs by optimal matching, rather than by their own pick.
    """
    seen, jobs = observe(episodes)
    of_clusters, of_jobs = network.embeddings(seen)
    pointed = network.pointers(of_clusters, of_jobs, seen.window)
    pick = torch.zeros_like(seen.window[..., 0]) if "pointer" in without else _choose(pointed, draw)
    acts = seen.window[..., 0] >= 0
    if matching:
        found = torch.from_numpy(match_clusters(episodes, jobs, pointed.exp().double().numpy()))
        pick, acts = found.clamp(min=0), acts & (found >= 0)
    picked = _picked(jobs, pick, acts)
    features, legal = amount_features(episodes, picked)
    scores = network.amounts(of_clusters, _at(of_jobs, pick), features, legal)
    amount = _choose(scores, draw)
    of_pick = pointed.gather(-1, pick[..., None]).squeeze(-1)
    wins = resolve_conflicts(episodes, picked, of_pick.exp().double().numpy(), "bayes" not in without)
    started = _start(episodes, picked, np.where(wins, amount.numpy(), 0))
    won = torch.from_numpy(wins)
    of_amount = scores.gather(-1, amount[..., None]).squeeze(-1)
    value = network.value(of_clusters).squeeze(-1)
    told = of_pick * acts + of_amount * won
    return Round(seen, pick, features, legal, amount, acts, won, told, value, torch.from_numpy(started))


@torch.no_grad()
def decide_several(network: TapFinger, episodes: Sequence[Episode]) -> None:
    """Run one round in which each cluster picks job after job, until it lets one wait or none is left.

    Job embeddings are those at the start of the round; cluster embeddings are updated after each allocation.
    Conflicts are resolved pick by pick. The likeliest decisions are taken.
    """
    seen, jobs = observe(episodes)
    first, of_jobs = network.embeddings(seen)
    of_clusters = first
    left = seen.window.clone()
    while (acts := (left >= 0).any(-1)).any():
        pointed = network.pointers(of_clusters, of_jobs, left)
        pick = pointed.argmax(-1)
        picked = _picked(jobs, pick, acts)
        amount = (
            network.amounts(of_clusters, _at(of_jobs, pick), *amount_features(episodes, picked))
            .argmax(-1)
            .numpy()
        )
        of_pick = pointed.gather(-1, pick[..., None]).squeeze(-1)
        wins = resolve_conflicts(episodes, picked, of_pick.exp().double().numpy())
        _start(episodes, picked, np.where(wins, amount, 0))
        # A cluster that lets its job wait is through; jobs that were started are gone from all windows.
        left[torch.from_numpy(wins & (amount == 0))] = -1
        gone = np.where(wins & (amount > 0), picked, -2)
        left[torch.from_numpy((jobs[..., None] == gone[:, None, None]).any(-1))] = -1
        of_clusters = network.moved(first, seen.cluster, observe(episodes)[0].cluster)


def _picked(jobs: NDArray[np.int64], pick: Tensor, acts: Tensor) -> NDArray[np.int64]:
    """Index of the job that each cluster picked, or -1, [E, A]."""
    return np.where(acts.numpy(), np.take_along_axis(jobs, pick.numpy()[..., None], 2)[..., 0], -1)


def _at(of_jobs: Tensor, pick: Tensor) -> Tensor:
    """Embeddings of the jobs that were picked, [E, A, d]."""
    return torch.gather(of_jobs, 2, pick[..., None, None].expand(-1, -1, 1, of_jobs.shape[-1])).squeeze(2)


def _start(
    episodes: Sequence[Episode], picked: NDArray[np.int64], amount: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Start jobs with the numbers of their amounts, where that is not 0; whether any was, [E]."""
    started = np.zeros(len(episodes), np.bool_)
    for number, cluster in np.argwhere(amount > 0).tolist():
        game, job = episodes[number], int(picked[number, cluster])
        cpus, gpus = game.amounts[game.believed.kind[job], int(amount[number, cluster])].tolist()
        start(game.state, job, cluster, cpus, gpus)
        started[number] = True
    return started


def _choose(scores: Tensor, draw: torch.Generator | None) -> Tensor:
    if draw is None:
        return scores.argmax(-1)
    return torch.multinomial(scores.exp().flatten(0, -2), 1, generator=draw).view(scores.shape[:-1])


def run_episodes(
    network: TapFinger,
    problems: Sequence[JobProblem],
    last: int,
    *,
    several: bool = False,
    without: Collection[str] = (),
    matching: bool = False,
) -> list[QueueState]:
    """Schedule queues with equally many clusters to their ends, or to slot `last`, with the likeliest decisions.

    Args:
        network: Network with its weights.
        problems: Queues to schedule.
        last: Slot at which to stop.
        several: Whether a cluster may start several jobs in a round (`decide_several`), after which the slot ends.
        without: Parts of `ABLATIONS` to leave out in rounds of one job each.
        matching: Whether clusters get jobs by optimal matching (`match_clusters`) in rounds of one job each.
    """
    games = [Episode(problem) for problem in problems]
    while running := [game for game in games if not game.over and game.state.counts[SLOT] < last]:
        deciding = [game for game in running if game.state.counts[WAITING]]
        started: list[bool] = []
        if deciding and several:
            decide_several(network, deciding)
            started = [False] * len(deciding)
        elif deciding:
            started = decide(network, deciding, without=without, matching=matching).started.tolist()
        ready = {id(game) for game, one in zip(deciding, started, strict=True) if one}
        for game in running:
            if id(game) not in ready:
                game.pass_slot()
    return [game.state for game in games]


def proposal_of(
    network: TapFinger, problem: JobProblem, *, several: bool = False
) -> Callable[[QueueArrays, QueueState], None]:
    """Make a function that applies the policy's likeliest decisions in the current slot.

    Args:
        network: Network with its weights.
        problem: Jobs and clusters.
        several: Whether a slot is one round in which a cluster may start several jobs (`decide_several`).
    """

    def propose(forecast: QueueArrays, state: QueueState) -> None:
        game = Episode.running(problem, expected_queue(forecast), state)
        if several:
            decide_several(network, [game])
            return
        while state.counts[WAITING] and bool(decide(network, [game]).started.any()):
            pass

    return propose
