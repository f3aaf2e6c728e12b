"""Several changes of the script together: the best of each family, found by coordinate descent over the replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wirewise.advice.ranking import Answers
from wirewise.advice.records import LEAST_GAIN, Candidate
from wirewise.errors import InputError
from wirewise.sim.whatif import Change

if TYPE_CHECKING:
    from wirewise.advice.families.replayed import ReplayedJob

__all__ = ["combine"]

_ROUNDS = 3
"""Most rounds over the families; a round that changes nothing is the last."""

Chosen = dict[str, Candidate]


def combine(job: ReplayedJob, answers: Answers) -> list[Candidate] | str:
    """Candidate of several changes together, if it saves clearly more than the best of them alone.

    Args:
        job: Replayed job, which knows the changes of its candidates.
        answers: Candidates of single families.
    """
    options = _options(job, answers)
    if len(options) < 2:
        return "fewer than two families have changes of the script that leave what the model learns as it is"
    chosen, step_s = _descend(job, options)
    alone_s = min(one.predicted_step_s or job.step_s for of_family in options.values() for one in of_family)
    # Of the step as it is: what is a large part of the little that a worker of the loader leaves is no reason.
    if len(chosen) < 2 or step_s > min(alone_s, job.step_s) - LEAST_GAIN * job.step_s:
        return f"no two changes together are predicted to save {LEAST_GAIN:.0%} of the step more than the best alone"
    parts = list(chosen.values())
    return [
        job.candidate(
            "combinations",
            " and ".join(f"{one.family} {one.planner}" for one in parts),
            _changes(job, parts),
            lines=tuple(line for one in parts for line in one.lines),
            arguments={name: value for one in parts for name, value in one.arguments.items()}
            if all(one.arguments for one in parts)
            else {},
            note="their savings do not add up; this is the replay of all",
        )
    ]


def _options(job: ReplayedJob, answers: Answers) -> dict[str, list[Candidate]]:
    """Changes of the script that can be replayed and change nothing of what is learned, by family."""
    found: dict[str, list[Candidate]] = {}
    for family, answer in answers.items():
        for one in () if isinstance(answer, str) else answer:
            if one.lines and not one.risk and one.work == 1 and (family, one.planner) in job.changes:
                found.setdefault(family, []).append(one)
    return found


def _descend(job: ReplayedJob, options: dict[str, list[Candidate]]) -> tuple[Chosen, float]:
    """Take for one family after another the change, or none, that makes the step shortest beside the others."""
    chosen: Chosen = {}
    step_s = job.step_s
    for _ in range(_ROUNDS):
        before = dict(chosen)
        for family, candidates in options.items():
            others = {name: one for name, one in chosen.items() if name != family}
            for changed in (others, *({**others, family: one} for one in candidates)):
                if (found_s := _step_s(job, list(changed.values()))) < step_s:
                    chosen, step_s = changed, found_s
        if chosen == before:
            break
    return chosen, step_s


def _changes(job: ReplayedJob, parts: Sequence[Candidate]) -> list[Change]:
    return [change for one in parts for change in job.changes[one.family, one.planner]]


def _step_s(job: ReplayedJob, parts: Sequence[Candidate]) -> float:
    """Seconds of a step under several changes; infinite if they do not fit together."""
    if not parts:
        return job.step_s
    try:
        return job.predict(_changes(job, parts)).predicted_step_s * job.scale
    except InputError:
        return float("inf")
