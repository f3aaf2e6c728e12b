"""Placements of GNN training tasks, carried out in the lab and compared with their simulated times.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022. Links, TCP and bytes are real; executions are emulated: a task sleeps its time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from wirewise.cost.interfaces import Links
from wirewise.errors import InputError
from wirewise.files import atomic_file, make_folder
from wirewise.planners.placement import PlacementProblem, host_links
from wirewise.plans import PlacementPlan
from wirewise.recipes.launch import in_lab
from wirewise.sim.flows import TaskSet
from wirewise.topology import lab_hosts
from wirewise.units import parse_rate

__all__ = ["PAYLOAD_SHARE", "Compared", "Job", "Measured", "lab_links", "lab_problem", "run"]

PAYLOAD_SHARE = 0.9
"""Of a link's rate that hosts use both ways at once. 0.956 is payload of full packets, acknowledgements take 0.02, and
what is left keeps queues short."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the hosts of a lab carry out.

    Raises:
        InputError: No turn, no plan, or plans for another number of hosts than there are links.
    """

    tasks: TaskSet
    links: tuple[str, ...]
    """Rate of each host."""
    plans: dict[str, PlacementPlan]
    turns: int = 3
    """Every plan is carried out so often, in turns."""
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name, plan in self.plans.items():
            if plan.world_size != len(self.links):
                raise InputError(
                    f"plan {name!r} is for {plan.world_size} hosts; expected {len(self.links)}, one a link"
                )
        if self.turns < 1 or not self.plans or not 0 < self.timeout_s < float("inf"):
            raise InputError(
                f"got {len(self.plans)} plans, {self.turns} turns, a timeout of {self.timeout_s} s; expected one or "
                "more of both, and a time above 0"
            )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a plan; when each op began and ended, [ops]."""

    start_s: list[float]
    end_s: list[float]


class Compared(NamedTuple):
    """A plan, simulated and measured."""

    simulated_s: float
    """Of an iteration."""
    measured_s: float
    """The same, median over turns."""
    all_s: tuple[float, ...]
    """Of each turn."""

    @property
    def error(self) -> float:
        """Of the simulated time: simulated / measured - 1."""
        return self.simulated_s / self.measured_s - 1.0


def lab_links(links: tuple[str, ...]) -> Links:
    """What hosts of a lab with these rates send and receive of payload."""
    return host_links(lab_hosts([PAYLOAD_SHARE * parse_rate(rate) for rate in links]))


def lab_problem(tasks: TaskSet, links: tuple[str, ...]) -> PlacementProblem:
    """The problem on hosts of a lab, named host0, host1, ...

    Raises:
        InputError, PlanError: As `PlacementProblem`.
    """
    return PlacementProblem(tasks, tuple(f"host{number}" for number in range(len(links))), lab_links(links))


def run(job: Job, folder: Path, say: Callable[[str], None]) -> dict[str, Compared]:
    """Carry out all plans of a job, a process on each host of a lab.

    Args:
        job: What.
        folder: Takes the job, logs and the measured times.
        say: Hears what goes on.

    Raises:
        LabError: No lab can be built here.
        PeerError: A host failed; the message holds its last words.
    """
    make_folder(folder)
    with atomic_file(folder / "job.json") as file:
        file.write(msgspec.json.encode(job))
    outcome = in_lab(
        "wirewise.recipes.gnn_tasks_worker",
        folder,
        len(job.links),
        job.links[0],
        say,
        links=dict(enumerate(job.links)),
    )
    measured = msgspec.json.decode(outcome, type=dict[str, list[Measured]])
    return compare(job, measured)


def compare(job: Job, measured: Mapping[str, list[Measured]]) -> dict[str, Compared]:
    """Seconds of an iteration, simulated and measured, of each plan."""
    simulator = lab_problem(job.tasks, job.links).simulator
    found, steps = {}, job.tasks.iterations
    for name, plan in job.plans.items():
        places = np.array([plan.places[task.name] for task in job.tasks.tasks])
        seconds = tuple(max(one.end_s) / steps for one in measured[name])
        found[name] = Compared(
            simulator.seconds(places, plan.policy) / steps, statistics.median(seconds), seconds
        )
    return found
