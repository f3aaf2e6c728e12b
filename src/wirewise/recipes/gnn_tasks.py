"""Placements of GNN training tasks, carried out in the lab and compared with their simulated times.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022. Links, TCP and bytes are real; executions are emulated: a task sleeps its time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise import options as opt
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.files import atomic_file, make_folder, owns_folder
from wirewise.planners.placement import PlacementProblem
from wirewise.planners.placement import plan as make_plan
from wirewise.plans import PlacementPlan, save
from wirewise.plans.placement import FlowPolicy
from wirewise.recipes.gnn_tasks_job import Wish, host_names
from wirewise.recipes.launch import in_lab
from wirewise.results import PlacementRecord, PlacementRun
from wirewise.runtime.flows import ORDERS
from wirewise.sim.flows import FlowRun, FlowSimulator
from wirewise.topology import lab_hosts
from wirewise.trace.tasks import KINDS, TaskSet

__all__ = [
    "PAYLOAD_SHARE",
    "Compared",
    "Job",
    "LineTimes",
    "OpTimes",
    "Wish",
    "lab_links",
    "lab_problem",
    "make_job",
    "plan_file",
    "run",
    "summarise",
]

PAYLOAD_SHARE = 0.9
"""Of a link's rate that hosts use both ways at once: less than `TCP_PAYLOAD`, as acknowledgements of the other way take
0.02, and what is left keeps queues short."""


class Job(opt.Options, frozen=True, kw_only=True):
    """What the hosts of a lab carry out.

    Raises:
        InputError: No turn, no plan, plans for another number of hosts than there are links, or a policy whose rates
            chunks do not give.
    """

    tasks: TaskSet
    links: tuple[str, ...]
    """Rate of each host."""
    plans: dict[str, PlacementPlan]
    turns: opt.Count = 3
    """Every plan is carried out so often, in turns."""
    timeout_s: opt.Timeout = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.plans:
            raise InputError("got no plan; expected one or more")
        for name, plan in self.plans.items():
            if plan.world_size != len(self.links):
                raise InputError(
                    f"plan {name!r} is for {plan.world_size} hosts; expected {len(self.links)}, one a link"
                )
            if plan.policy not in ORDERS:
                raise InputError(
                    f"plan {name!r} shares links under {plan.policy!r}, which chunks cannot follow; expected one of: "
                    f"{', '.join(ORDERS)}"
                )


class OpTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When each op began and ended, of a whole run of a plan or of a part of it, [ops]."""

    start_s: list[float]
    end_s: list[float]


class LineTimes(NamedTuple):
    """A task or a flow between hosts; seconds since the hosts began together, a figure an iteration."""

    kind: str
    """Of the task; "flow"."""
    name: str
    simulated: OpTimes
    """When an execution or a flow could begin, and when it ended."""
    measured: OpTimes

    @property
    def late_s(self) -> tuple[float, ...]:
        """How much later than simulated each iteration ended."""
        pairs = zip(self.measured.end_s, self.simulated.end_s, strict=True)
        return tuple(measured_s - simulated_s for measured_s, simulated_s in pairs)


class Compared(NamedTuple):
    """A plan, simulated and measured."""

    simulated_s: float
    """Of an iteration."""
    measured_s: float
    """The same, median over turns."""
    all_s: tuple[float, ...]
    """Of each turn."""
    lines: tuple[LineTimes, ...]
    """Tasks that execute and flows between hosts, in the turn of the median, or the one before it."""

    @property
    def error(self) -> float:
        """Of the simulated time: simulated / measured - 1."""
        return self.simulated_s / self.measured_s - 1.0

    def latest(self, kind: str) -> LineTimes | None:
        """Of tasks or flows of a kind, the one that ended an iteration furthest from its simulated time."""
        lines = [line for line in self.lines if line.kind == kind]
        return max(lines, key=lambda line: max(map(abs, line.late_s)), default=None)


def lab_links(links: tuple[str, ...]) -> Links:
    """What hosts of a lab with these rates send and receive of payload."""
    return Links.of(lab_hosts(links), payload=PAYLOAD_SHARE)


def lab_problem(tasks: TaskSet, links: tuple[str, ...]) -> PlacementProblem:
    """The problem on hosts of a lab, named host0, host1, ...

    Raises:
        InputError, PlanError: As `PlacementProblem`.
    """
    return PlacementProblem(tasks, host_names(len(links)), lab_links(links))


def make_job(wish: Wish, tasks: TaskSet) -> Job:
    """Plan every method under every policy; plans are named METHOD:POLICY.

    Raises:
        InputError, PlanError: As `PlacementProblem` and `planners.placement.plan`.
    """
    problem = lab_problem(tasks, wish.rates)
    plans = {
        f"{method}:{policy}": make_plan(
            problem, method=method, policy=cast(FlowPolicy, policy), steps=wish.steps, seed=wish.seed
        )
        for policy in wish.policies
        for method in wish.methods
    }
    return Job(tasks=tasks, links=wish.rates, plans=plans, turns=wish.turns, timeout_s=wish.timeout_s)


def plan_file(folder: Path, name: str) -> Path:
    """The file of a run's folder that holds a plan."""
    return folder / f"plan-{name.replace(':', '-')}.json"


@owns_folder
def run(job: Job, folder: Path, say: Callable[[str], None]) -> dict[str, Compared]:
    """Carry out all plans of a job, a process on each host of a lab.

    Args:
        job: What.
        folder: Takes the job, the plans, logs and the measured times.
        say: Hears what goes on.

    Raises:
        LabError: No lab can be built here.
        PeerError: A host failed; the message holds its last words.
    """
    make_folder(folder)
    with atomic_file(folder / "job.json") as file:
        file.write(msgspec.json.encode(job))
    for name, one in job.plans.items():
        save(one, plan_file(folder, name))
    outcome = in_lab(
        "wirewise.recipes.gnn_tasks_worker",
        folder,
        len(job.links),
        job.links[0],
        say,
        links=dict(enumerate(job.links)),
    )
    measured = msgspec.json.decode(outcome, type=dict[str, list[OpTimes]])
    return compare(job, measured)


def summarise(job: Job, found: Mapping[str, Compared]) -> PlacementRun:
    """All plans of a job next to its first one, as a command writes them."""
    first = found[next(iter(job.plans))]
    return PlacementRun(
        emulated="executions of tasks are slept; links, TCP, bytes and the order of flows are real",
        links=job.links,
        tasks=len(job.tasks.tasks),
        iterations=job.tasks.iterations,
        turns=job.turns,
        plans={name: _record(job, name, found[name], first) for name in job.plans},
        fastest=min(job.plans, key=lambda name: found[name].measured_s),
    )


def _record(job: Job, name: str, one: Compared, first: Compared) -> PlacementRecord:
    plan, steps = job.plans[name], job.tasks.iterations
    places = plan.places
    crossing = [flow for flow in job.tasks.flows if places[flow.source] != places[flow.target]]
    worst = {kind: line for kind in (*KINDS, "flow") if (line := one.latest(kind)) is not None}
    return PlacementRecord(
        method=plan.planner,
        policy=plan.policy,
        simulated_s=one.simulated_s,
        measured_s=one.measured_s,
        turns_s=one.all_s,
        error=one.error,
        simulated_gain=1 - one.simulated_s / first.simulated_s,
        measured_gain=1 - one.measured_s / first.measured_s,
        lower_bound_s=plan.lower_bound_s / steps,
        crossing_bytes=sum(sum(job.tasks.numbers(flow.size_bytes)) for flow in crossing) / steps,
        latest={kind: (line.name, max(line.late_s, key=abs)) for kind, line in worst.items()},
    )


def compare(job: Job, measured: Mapping[str, list[OpTimes]]) -> dict[str, Compared]:
    """Seconds of an iteration, and of each task and flow, simulated and measured, of each plan."""
    simulator = lab_problem(job.tasks, job.links).simulator
    found, steps = {}, job.tasks.iterations
    for name, plan in job.plans.items():
        places = np.array([plan.places[task.name] for task in job.tasks.tasks])
        turns = sorted(measured[name], key=lambda one: max(one.end_s))
        simulated = simulator.run(places, plan.policy)
        seconds = tuple(max(one.end_s) / steps for one in measured[name])
        found[name] = Compared(
            float(simulated.end_s.max()) / steps,
            statistics.median(seconds),
            seconds,
            tuple(_lines(simulator, places, simulated, turns[(len(turns) - 1) // 2])),
        )
    return found


def _lines(
    simulator: FlowSimulator, places: NDArray[np.int64], simulated: FlowRun, measured: OpTimes
) -> Iterator[LineTimes]:
    """Lines that take time."""
    graph, steps = simulator.graph, simulator.tasks.iterations
    takes = (graph.duration > 0) | ((graph.size > 0) & (places[graph.source] != places[graph.target]))
    for number, (kind, name) in enumerate(simulator.lines):
        ops = slice(number * steps, (number + 1) * steps)
        if takes[ops].any():
            fluid = OpTimes(start_s=simulated.start_s[ops].tolist(), end_s=simulated.end_s[ops].tolist())
            real = OpTimes(start_s=measured.start_s[ops], end_s=measured.end_s[ops])
            yield LineTimes(kind, name, fluid, real)
