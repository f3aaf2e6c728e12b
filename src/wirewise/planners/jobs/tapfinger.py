"""TapFinger: a learned policy that places jobs and allocates CPUs and accelerators.

Y. Li, T. Zeng, X. Zhang, J. Duan, C. Wu: TapFinger: Task Placement and Fine-Grained Resource Allocation for Edge
Machine Learning, INFOCOM 2023. Heterogeneous graph attention reads clusters and jobs, each cluster points at a job of
its window and chooses an amount, and a job picked by several clusters is assigned to the likeliest by Bayes' rule.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wirewise.decoding import ArchiveError, read_npz
from wirewise.errors import InputError, PlanError
from wirewise.files import atomic_file
from wirewise.planners.jobs.lookahead import LOOKED_AT, PROPOSED, TUNED, LookAhead, follow_policy
from wirewise.planners.jobs.problem import JobProblem, last_slot, plan_of, simulate_rule, tune
from wirewise.planners.jobs.rules import Knowledge
from wirewise.plans.jobs import JobPlan
from wirewise.sim.jobs.engine import QueueState

if TYPE_CHECKING:
    from wirewise.planners.jobs.attention import TapFinger

__all__ = ["SHIPPED", "plan_tapfinger", "read_weights", "write_weights"]

SHIPPED = Path(__file__).parent / "data" / "tapfinger.npz"
"""Weights for the paper's queues, by `wirewise_papers.tapfinger.policy_training`."""


def plan_tapfinger(
    problem: JobProblem,
    *,
    seed: int = 0,
    weights: str | None = None,
    safe: bool = True,
    several: bool = False,
) -> JobPlan:
    """Schedule jobs by the learned policy until all are done.

    Objective: the mean time from arrival to end. Variables: in each round of a slot, a job of its window and an
    amount for every cluster, or several jobs in sequence. Constraints: free resources of the clusters, a job's
    minimum resources and allowed clusters. A round takes time in proportion to clusters squared times windows and
    running jobs.

    Args:
        problem: Jobs and clusters.
        seed: Recorded in the plan; decisions are deterministic.
        weights: File of weights. Defaults to the shipped ones.
        safe: Whether each slot also simulates the rules and follows the best, and whether a single rule is followed
            throughout if it is expected to be faster still. A note says so.
        several: Whether clusters may start several jobs in a round, so that a slot takes one round.

    Raises:
        InputError: The file holds no weights, or `patience` is set and `safe` is off.
        PlanError: A job does not finish.
    """
    if problem.patience and not safe:
        raise InputError(
            f"got a patience of {problem.patience} slots and safe=False, with which the policy alone decides; expected "
            "safe=True, or no patience"
        )
    with _one_thread():
        return _plan(problem, seed, SHIPPED if weights is None else weights, safe, several)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: the policy's tensors are small, and threads that wait for each other cost more.

    Measured on two processors with others at work: 24 s of processor time for a queue of 192 jobs, 7 s on one thread,
    and the same plan.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _plan(problem: JobProblem, seed: int, weights: str | Path, safe: bool, several: bool) -> JobPlan:
    from wirewise.planners.jobs.policy import proposal_of, run_episodes

    network = read_weights(weights)
    last = last_slot(problem, problem.knowledge())
    if safe:
        usual = problem if problem.oracle else problem.at_ordinary_pace()
        tuned = {rule: tune([usual], rule) for rule in TUNED}

        def guarded(one: JobProblem) -> tuple[QueueState, LookAhead]:
            ahead = LookAhead(one, proposal_of(network, one, several=several), tuned)
            return follow_policy(one, ahead.decide, last), ahead

        state, ahead = guarded(usual)
        of_policy = _mean_slots(state, usual)
        rule, of_rule = _best_rule(usual, tuned)
        said = (
            f"{of_policy:.3f} slots on average are expected of the policy and rules that are looked at beside it, "
            f"{of_rule:.3f} of {rule!r} alone"
        )
        if of_rule < of_policy:
            state = simulate_rule(problem, rule, _known(usual, rule, tuned))
            return plan_of(problem, state, "tapfinger", seed, (f"{said}, which is followed",))
        if (problem.believed.pace != problem.arrays.pace).any():
            state, ahead = guarded(problem)
        said += (
            f"; the policy was followed in {ahead.followed[PROPOSED]} of {ahead.followed.total()} decisions"
        )
        return plan_of(problem, state, "tapfinger", seed, (said,))
    state = run_episodes(network, [problem], last, several=several)[0]
    if waiting := int((state.finish < 0).sum()):
        raise PlanError(
            f"the policy leaves {waiting} jobs waiting or running in slot {last}; leave safe on, or train it on queues "
            "like this one"
        )
    return plan_of(problem, state, "tapfinger", seed)


def _best_rule(usual: JobProblem, tuned: Mapping[str, Knowledge]) -> tuple[str, float]:
    """The rule that is expected to be quickest if it alone is followed, and its mean slots."""
    means = {}
    for rule in LOOKED_AT:
        try:
            means[rule] = _mean_slots(simulate_rule(usual, rule, _known(usual, rule, tuned)), usual)
        except PlanError:
            means[rule] = inf
    best = min(means, key=means.__getitem__)
    return best, means[best]


def _known(problem: JobProblem, rule: str, tuned: Mapping[str, Knowledge]) -> Knowledge:
    return tuned.get(rule) or problem.knowledge()


def _mean_slots(state: QueueState, problem: JobProblem) -> float:
    """Mean slots from arrival to end; infinite where a job does not end."""
    if (state.finish < 0).any():
        return inf
    return float((state.finish - problem.arrays.arrival).mean())


def read_weights(path: str | os.PathLike[str]) -> TapFinger:
    """Load the network with the weights in a file.

    Raises:
        InputError: The file is unreadable or malformed.
    """
    import torch

    from wirewise.planners.jobs.attention import TapFinger

    network = TapFinger()
    try:
        found = read_npz(path)
        network.load_state_dict({name: torch.from_numpy(array).float() for name, array in found.items()})
    except (ArchiveError, OSError, RuntimeError, TypeError) as error:
        line = str(error).splitlines()[0]
        raise InputError(
            f"{os.fspath(path)}: {line}; expected weights by `python -m wirewise_papers.tapfinger.policy_training`"
        ) from error
    return network.eval()


def write_weights(network: TapFinger, path: str | os.PathLike[str]) -> None:
    """Write the weights in half precision, atomically.

    Raises:
        InputError: The folder is missing, not writable or full.
    """
    found = {name: tensor.numpy().astype(np.float16) for name, tensor in network.state_dict().items()}
    with atomic_file(path) as file:
        np.savez_compressed(file, **found)
