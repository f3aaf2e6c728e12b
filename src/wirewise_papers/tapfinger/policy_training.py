"""Training of TapFinger's network: imitation of the earliest finish, then proximal policy optimisation.

    python -m wirewise_papers.tapfinger.policy_training weights.npz [QUEUE.json]

The network first imitates `heft` in states reached by its own decisions (S. Ross et al.: DAgger, AISTATS 2011), then
learns from its own returns (J. Schulman et al.: PPO, 2017): minus the number of present jobs, per slot.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wirewise.planners.jobs.attention import ObservationTensors, TapFinger
from wirewise.planners.jobs.policy import Episode, Round, amount_features, decide, observe, run_episodes
from wirewise.planners.jobs.problem import JobProblem, problem_of
from wirewise.planners.jobs.rules import start_all
from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights, write_weights
from wirewise.sim.jobs import EVEN, UNEVEN, draw_queue
from wirewise.sim.jobs.engine import RUNNING, WAITING, QueueState
from wirewise.trace.queues import JobQueue, read_queue

__all__ = ["TrainingSettings", "imitate", "improve", "paper_queues"]

M = TypeVar("M", bound=tuple[Any, ...])

Draw = Callable[[int], JobProblem]
"""Function of a seed that returns a queue; all queues have equally many clusters."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of training: duration and learning rates."""

    games: int = 16
    """Number of queues scheduled in parallel."""
    imitated: int = 16_000
    """Number of rounds of imitation of `heft`."""
    improved: int = 90_000
    """Number of rounds of reinforcement learning."""
    batch: int = 128
    """Number of rounds per gradient."""
    rate: float = 1e-3
    """Learning rate of the imitation of `heft`."""
    fine_rate: float = 3e-5
    """Learning rate of reinforcement learning."""
    valued: int = 8
    """Number of rollouts at the start that train only the value function."""
    horizon: int = 64
    """Number of rounds of each game between updates of reinforcement learning."""
    clip: float = 0.2
    """Clipping range of PPO's probability ratio."""
    trace_decay: float = 0.95
    """Lambda of generalised advantage estimation."""
    entropy: float = 0.001
    """Weight of the entropy bonus."""


def paper_queues(number: int) -> Draw:
    """Random queues of three equal or six unequal clusters, with varied load and all kinds of jobs."""
    clusters, rate = ((EVEN, 3.0), (UNEVEN, 6.0))[number]

    def draw(seed: int) -> JobProblem:
        random = np.random.default_rng([seed, number])
        load = rate * random.uniform(0.5, 1.3)
        queue = draw_queue(
            clusters, load, swing=random.uniform(0.0, 0.5), noise=random.choice([0.0, 0.3]), seed=seed
        )
        return problem_of(queue, kept=1.0)

    return draw


class _Stream:
    """Games that are followed by new ones as they end."""

    def __init__(self, draw: Draw, count: int, seed: int):
        self.draw, self.next = draw, seed * 1_000_000
        self.games = [self._new() for _ in range(count)]

    def _new(self) -> Episode:
        self.next += 1
        return Episode(self.draw(self.next))

    def skip_idle(self) -> None:
        """Let slots pass in which nobody waits, and replace games that are over."""
        for number, game in enumerate(self.games):
            while not game.over and not game.state.counts[WAITING]:
                game.pass_slot()
            if game.over:
                self.games[number] = self._new()


def imitate(
    network: TapFinger, draws: Sequence[Draw], settings: TrainingSettings, *, seed: int = 0
) -> Iterator[float]:
    """Train by imitation of `heft`; yields the loss of every update."""
    optimizer = torch.optim.Adam(network.parameters(), settings.rate)
    generator = torch.Generator().manual_seed(seed)
    random = np.random.default_rng(seed)
    streams = [_Stream(draw, settings.games, seed + number) for number, draw in enumerate(draws)]
    rounds = settings.imitated // settings.games
    kept: list[list[_Answered]] = [[] for _ in draws]
    for step in range(rounds):
        which = step % len(streams)
        stream = streams[which]
        stream.skip_idle()
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * min(1.0, 2.0 * (1.0 - step / rounds))
        answered = _answers(stream.games, random)
        kept[which].append(answered)
        started = decide(network, stream.games, generator).started
        for game, one in zip(stream.games, started, strict=True):
            if not one:
                game.pass_slot()
        if len(kept[which]) * settings.games < settings.batch:
            continue
        recent = kept[which][-400:]
        chosen = [recent[int(i)] for i in random.integers(len(recent), size=settings.batch // settings.games)]
        loss = _imitation_loss(network, _together(chosen))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
        yield float(loss.detach())


def _together(moments: Sequence[M]) -> M:
    """Moments of several games after each other as one batch."""
    first = moments[0]
    return type(first)(
        *(
            _together([one[place] for one in moments])
            if isinstance(part, tuple)
            else torch.cat([one[place] for one in moments])
            for place, part in enumerate(first)
        )
    )


class _Answered(NamedTuple):
    """Moments of games with what `heft` would do."""

    seen: ObservationTensors
    pick: Tensor
    """Place of the window whose job is started, [E, A]; where none is, of a drawn one."""
    starts: Tensor
    """Clusters that start a job, [E, A]."""
    features: Tensor
    legal: Tensor
    amount: Tensor
    """Index of its amount, or 0, [E, A]."""


def _answers(games: Sequence[Episode], random: np.random.Generator) -> _Answered:
    seen, jobs = observe(games)
    pick = np.zeros(jobs.shape[:2], np.int64)
    amount = np.zeros_like(pick)
    for number, game in enumerate(games):
        answers = _first_starts(game)
        for cluster in range(jobs.shape[1]):
            own = jobs[number, cluster]
            taken = [job for _, job, _ in answers]
            left = [place for place, job in enumerate(own) if job >= 0 and job not in taken]
            if left:
                pick[number, cluster] = random.choice(left)
            for where, job, given in answers:
                same = (game.amounts[game.believed.kind[job]] == given).all(axis=1)
                if where == cluster and job in own and same.any():
                    pick[number, cluster] = int(np.flatnonzero(own == job)[0])
                    amount[number, cluster] = int(same.argmax())
                    break
    picked = np.take_along_axis(jobs, pick[..., None], 2)[..., 0]
    features, legal = amount_features(games, picked)
    return _Answered(
        seen, torch.from_numpy(pick), torch.from_numpy(amount > 0), features, legal, torch.from_numpy(amount)
    )


def _first_starts(game: Episode) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Cluster, job and amount of what `heft` starts now, in its order."""
    after = QueueState._make(array.copy() for array in game.state)
    before = int(after.counts[RUNNING])
    start_all(game.believed, after, game.known)
    return [
        (int(after.cluster[job]), int(job), after.held[job])
        for job in after.running[before : after.counts[RUNNING]]
    ]


def _imitation_loss(network: TapFinger, one: _Answered) -> Tensor:
    clusters, jobs = network.embeddings(one.seen)
    pointed = network.pointers(clusters, jobs, one.seen.window).gather(-1, one.pick[..., None]).squeeze(-1)
    there = one.seen.window[..., 0] >= 0
    chosen = torch.gather(jobs, 2, one.pick[..., None, None].expand(-1, -1, 1, jobs.shape[-1])).squeeze(2)
    amounts = (
        network.amounts(clusters, chosen, one.features, one.legal)
        .gather(-1, one.amount[..., None])
        .squeeze(-1)
    )
    of_picks = (pointed * one.starts).sum() / one.starts.sum().clamp(min=1)
    return -of_picks - (amounts * there).sum() / there.sum().clamp(min=1)


def improve(
    network: TapFinger, draws: Sequence[Draw], settings: TrainingSettings, *, seed: int = 0
) -> Iterator[float]:
    """Train by reinforcement; yields the mean number of jobs in the queue of every collection."""
    optimizer = torch.optim.Adam(network.parameters(), settings.fine_rate)
    generator = torch.Generator().manual_seed(seed)
    streams = [_Stream(draw, settings.games, 1000 + seed + number) for number, draw in enumerate(draws)]
    scale = _Scale()
    for step in range(settings.improved // (settings.games * settings.horizon)):
        stream = streams[step % len(streams)]
        rounds, rewards, ends = _collect(network, stream, settings.horizon, generator)
        advantages, returns = _advantages(rounds, rewards, ends, scale, settings.trace_decay)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        for _ in range(2):
            order = torch.randperm(len(rounds), generator=generator)
            for some in order.split(max(1, settings.batch // settings.games)):
                batch = _together([rounds[int(i)] for i in some])
                loss = _value_loss(network, batch, returns[some].flatten(0, 1))
                if step >= settings.valued:
                    loss = loss + _policy_loss(network, batch, advantages[some].flatten(0, 1), settings)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                optimizer.step()
        yield float(-rewards[rewards < 0].mean())


class _Scale:
    """Mean and spread of returns so far, so that values are learned near 0 and 1."""

    def __init__(self) -> None:
        self.mean, self.spread = 0.0, 1.0

    def update(self, returns: Tensor) -> None:
        """Move towards the mean and the spread of these."""
        share = 0.5 if self.mean == 0.0 else 0.1
        self.mean += share * (float(returns.mean()) - self.mean)
        self.spread += share * (float(returns.std()) + 1e-3 - self.spread)


def _collect(
    network: TapFinger, stream: _Stream, horizon: int, generator: torch.Generator
) -> tuple[list[Round], Tensor, Tensor]:
    """Rounds, rewards of each game after each, [H, E], and whether a game ended there, [H, E]."""
    rounds, rewards, ends = [], [], []
    for _ in range(horizon):
        stream.skip_idle()
        found = decide(network, stream.games, generator)
        earned, over = np.zeros(len(stream.games)), np.zeros(len(stream.games), np.bool_)
        for number, game in enumerate(stream.games):
            if found.started[number]:
                continue
            # Slots until somebody waits again belong to this decision.
            while True:
                earned[number] -= game.present
                game.pass_slot()
                if game.over or game.state.counts[WAITING]:
                    break
            over[number] = game.over
        rounds.append(found)
        rewards.append(earned)
        ends.append(over)
    return rounds, torch.tensor(np.array(rewards), dtype=torch.float32), torch.from_numpy(np.array(ends))


_DISCOUNT = 0.98


def _advantages(
    rounds: Sequence[Round], rewards: Tensor, ends: Tensor, scale: _Scale, decay: float
) -> tuple[Tensor, Tensor]:
    """Advantages and scaled returns of each round, game and cluster, [H, E, A]."""
    values = torch.stack([one.value for one in rounds]) * scale.spread + scale.mean
    # Slots that pass are discounted, rounds within a slot are not.
    passing = torch.where(rewards < 0, _DISCOUNT, 1.0)[..., None] * (~ends)[..., None]
    advantages = torch.zeros_like(values)
    after, value = torch.zeros_like(values[0]), values[-1]
    for step in reversed(range(len(rounds))):
        delta = rewards[step][:, None] + passing[step] * value - values[step]
        after = delta + passing[step] * decay * after
        advantages[step], value = after, values[step]
    returns = advantages + values
    scale.update(returns)
    return advantages, (returns - scale.mean) / scale.spread


def _value_loss(network: TapFinger, one: Round, returns: Tensor) -> Tensor:
    # What values learn must not move the embeddings that decisions rest on.
    clusters = network.embeddings(one.seen)[0].detach()
    error = (network.value(clusters).squeeze(-1) - returns) ** 2
    return (error * one.acts).sum() / one.acts.sum().clamp(min=1)


def _policy_loss(network: TapFinger, one: Round, advantages: Tensor, settings: TrainingSettings) -> Tensor:
    clusters, jobs = network.embeddings(one.seen)
    pointed = network.pointers(clusters, jobs, one.seen.window)
    chosen = torch.gather(jobs, 2, one.pick[..., None, None].expand(-1, -1, 1, jobs.shape[-1])).squeeze(2)
    amounts = network.amounts(clusters, chosen, one.features, one.legal)
    told = pointed.gather(-1, one.pick[..., None]).squeeze(-1) * one.acts
    told = told + amounts.gather(-1, one.amount[..., None]).squeeze(-1) * one.wins
    ratio = (told - one.log_probability).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    spread = -(pointed.exp() * pointed.clamp(min=-30)).sum(-1) - (amounts.exp() * amounts.clamp(min=-30)).sum(
        -1
    )
    return -((gain + settings.entropy * spread) * one.acts).sum() / one.acts.sum().clamp(min=1)


def _like(queue: JobQueue) -> Draw:
    """Queues of the same kinds, clusters and load, drawn anew: jobs in another order at the arrivals of this one."""

    def draw(seed: int) -> JobProblem:
        random = np.random.default_rng(seed)
        order = random.permutation(len(queue.queue))
        jobs = (
            msgspec.structs.replace(
                queue.queue[int(other)], name=str(number), arrival=queue.queue[number].arrival, pace=1.0
            )
            for number, other in enumerate(order)
        )
        return JobProblem(msgspec.structs.replace(queue, queue=tuple(jobs)), kept=1.0)

    return draw


def main(out: str, queue: str | None = None) -> None:
    """Train on the paper's queues, or fine-tune the default weights on queues like a given one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = TapFinger() if queue is None else read_weights(SHIPPED)
    draws = [paper_queues(0), paper_queues(1)] if queue is None else [_like(read_queue(queue))]
    settings = TrainingSettings()
    for number, loss in enumerate(imitate(network, draws, settings)):
        if number % _TOLD == 0:
            sys.stderr.write(f"imitation, update {number}: loss {loss:.3f}\n")
    best, kept = _judged(network, draws), copy.deepcopy(network)
    for number, _ in enumerate(improve(network, draws, settings), 1):
        if number % _TOLD == 0:
            slots = _judged(network, draws)
            sys.stderr.write(f"returns, collection {number}: {slots:.3f} mean slots\n")
            if slots < best:
                best, kept = slots, copy.deepcopy(network)
    write_weights(kept.eval(), out)


_TOLD, _JUDGED = 8, range(300, 312)
"""Updates between two figures, and seeds of queues by which the best weights are chosen."""


def _judged(network: TapFinger, draws: Sequence[Draw]) -> float:
    """Mean slots from a job's arrival to its end on queues that training does not see."""
    problems = [[draw(seed) for seed in _JUDGED] for draw in draws]
    means = [
        np.where(state.finish < 0, _GIVEN_UP, state.finish - one.arrays.arrival).mean()
        for queues in problems
        for state, one in zip(run_episodes(network, queues, _GIVEN_UP), queues, strict=True)
    ]
    return float(np.mean(means))


_GIVEN_UP = 5000
"""Slot at which a queue is given up, which a policy that lets jobs wait for ever comes to."""


if __name__ == "__main__":
    main(*sys.argv[1:])
