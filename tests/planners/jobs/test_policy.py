"""Rounds of the learned policy: what it may do, and who gets a job that several clusters picked."""

from __future__ import annotations

from itertools import permutations
from math import inf

import numpy as np
import pytest
import torch

from wirewise.planners.jobs import problem_of
from wirewise.planners.jobs.attention import TapFinger
from wirewise.planners.jobs.policy import (
    Episode,
    amount_features,
    decide,
    decide_several,
    match_clusters,
    observe,
    resolve_conflicts,
    run_episodes,
)
from wirewise.planners.jobs.tapfinger import SHIPPED, read_weights
from wirewise.sim.jobs import draw_queue
from wirewise.sim.jobs.engine import SLOT, WAITING
from wirewise.trace import EdgeCluster, JobKind, JobQueue, QueuedJob


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return TapFinger(width=16, layers=1).eval()


def games(count, **more):
    return [
        Episode(problem_of(draw_queue(((4, 4), (8, 8), (12, 6)), 3.0, jobs=30, seed=n, **more)))
        for n in range(count)
    ]


def test_windows_hold_the_oldest_jobs_that_a_cluster_may_run():
    (game,) = games(1)
    game.problem.arrays.arrival[:] = 0
    game = Episode(game.problem)
    seen, jobs = observe([game])
    for cluster in range(3):
        own = [
            job
            for job in game.state.waiting[: game.state.counts[WAITING]]
            if game.believed.reach[job, cluster]
        ]
        assert [job for job in jobs[0, cluster] if job >= 0] == own[:10]
    assert (seen.adjacent.sum(-1) == (seen.window >= 0).sum(-1)).all()


def test_s2_only_what_is_legal_is_done(network):
    generator = torch.Generator().manual_seed(1)
    playing = games(4, noise=0.3)
    for _ in range(400):
        going = [game for game in playing if not game.over]
        for game in [game for game in going if game.state.counts[WAITING]]:
            before = game.state.free.copy()
            found = decide(network, [game], generator)
            given = before - game.state.free
            assert (game.state.free >= 0).all() and (given >= 0).all()
            assert not (found.wins & ~found.acts).any()
            if not found.started[0]:
                game.pass_slot()
        for game in going:
            if not game.over and not game.state.counts[WAITING]:
                game.pass_slot()
    assert all(game.over and (game.state.finish > game.problem.arrays.arrival).all() for game in playing)


def test_a_job_goes_to_the_likeliest_by_room_and_pick():
    queue = JobQueue(
        queue=(QueuedJob(name="a", kind="k", arrival=0), QueuedJob(name="b", kind="k", arrival=0)),
        kinds={"k": JobKind(progress=((0.0, 0.0), (0.1, 0.5)), cpus=1, gpus=1)},
        clusters=tuple(EdgeCluster(name=str(n), cpus=size, gpus=size) for n, size in enumerate((1, 2, 2))),
    )
    game = Episode(problem_of(queue))
    even = np.full((1, 3), 0.5)
    assert resolve_conflicts([game], np.array([[0, 0, 1]]), even).tolist() == [[False, True, True]]
    # Twice the room is e times as likely, which four times the probability of the pick outweighs.
    assert resolve_conflicts([game], np.array([[0, 0, -1]]), np.array([[0.8, 0.2, 0.0]])).tolist() == [
        [True, False, False]
    ]
    assert resolve_conflicts([game], np.array([[0, 0, -1]]), np.array([[0.8, 0.4, 0.0]])).tolist() == [
        [False, True, False]
    ]


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_the_best_matching_is_that_of_all_permutations(network, jobs):
    game = Episode(problem_of(draw_queue(((4, 4), (8, 8), (12, 6)), inf, jobs=jobs, seed=jobs)))
    seen, (own,) = observe([game])
    chances = network.pointers(*network.embeddings(seen), seen.window).exp().detach().double().numpy()
    (picks,) = match_clusters([game], own[None], chances)
    worth = np.full((3, jobs + 3), -1e4)  # the last three: nothing
    for cluster, place in np.argwhere(own >= 0).tolist():
        job = own[cluster, place]
        rooms = np.exp((game.state.free / game.believed.least[game.believed.kind[job]]).min(axis=1))
        share = rooms[cluster] / rooms[game.believed.reach[job]].sum()
        worth[cluster, job] = np.log(share * chances[0, cluster, place])
    found = [int(own[c, place]) if place >= 0 else jobs + c for c, place in enumerate(picks)]
    best = max(worth[[0, 1, 2], some].sum() for some in permutations(range(jobs + 3), 3))
    assert worth[[0, 1, 2], found].sum() == pytest.approx(best)
    decided = decide(network, [game], matching=True)
    assert decided.wins.equal(decided.acts) and decided.wins.sum() == (picks >= 0).sum()


def test_amounts_are_those_that_are_quicker_than_any_smaller_one():
    (game,) = games(1)
    image, text = (game.amounts[kind][1:].tolist() for kind in (0, 1))
    assert [one for one in image if one != [0, 0]] == [[2, 1]]
    slots = [int(game.known.slots[1, c, g]) for c, g in text if c]
    assert slots == sorted(set(slots), reverse=True) and {c for c, _ in text if c} == {2}
    features, legal = amount_features([game], np.array([[0, -1, -1]]))
    assert legal[0, 1].tolist() == [True] + [False] * 31 and legal[0, 0, 0]
    assert not features[0, 1, 1:].any()


@pytest.mark.slow
def test_s5_several_jobs_of_a_cluster_are_started_in_a_round():
    network = read_weights(SHIPPED)
    playing, most = games(4), 0
    for _ in range(200):
        for game in [game for game in playing if not game.over]:
            waiting, free = int(game.state.counts[WAITING]), game.state.free.copy()
            decide_several(network, [game])
            started = waiting - int(game.state.counts[WAITING])
            assert (game.state.free >= 0).all() and (game.state.free <= free).all()
            most = max(most, started)
            game.pass_slot()
    assert most > 3 and all(game.over for game in playing)
    # One cluster and room for one job a round: as rounds of one job each.
    narrow = problem_of(draw_queue(((2, 1),), 1.0, jobs=12, seed=2))
    one, other = (run_episodes(network, [narrow], 500, several=several)[0] for several in (False, True))
    assert (one.finish == other.finish).all()


def test_without_bayes_clusters_take_turns():
    (game,) = games(1)
    even = np.full((1, 3), 0.5)
    found = []
    for slot in range(3):
        game.state.counts[SLOT] = slot
        found.append(resolve_conflicts([game], np.array([[0, 0, 0]]), even, bayes=False)[0].argmax())
    assert sorted(found) == [0, 1, 2]


@pytest.mark.slow
def test_decisions_do_not_depend_on_what_is_decided_beside(network):
    """Batches of games, padded windows and empty ones change nothing for a game."""
    problems = [game.problem for game in games(3)]
    together = run_episodes(network, problems, 500)
    for problem, state in zip(problems, together, strict=True):
        assert (run_episodes(network, [problem], 500)[0].finish == state.finish).all()
