"""Placements of GNN training tasks, carried out on hosts and compared with their simulated times.

Z. Luo, Y. Bao, C. Wu: Optimizing Task Placement and Online Scheduling for Distributed GNN Training Acceleration,
INFOCOM 2022. Links, TCP and bytes are real; executions are emulated: a task sleeps its time. A host runs
`-m wirewise.recipes.gnn_tasks FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch

from wirewise import options as opt
from wirewise.cost.links import Links
from wirewise.errors import InputError, PeerError
from wirewise.files import owns_folder
from wirewise.planners.placement import PLANNERS, PlacementProblem
from wirewise.plans import PlacementPlan, save
from wirewise.recipes.gnn_tasks_job import Wish, host_names
from wirewise.recipes.own_links import settled
from wirewise.results import PlacementRecord, PlacementRun
from wirewise.runtime.flows import ORDERS, Connections, execute
from wirewise.sim.flows.measured import Compared, OpTimes, compare_plan
from wirewise.trace.tasks import KINDS, TaskSet
from wirewise.trials.rank import Rank, main
from wirewise.trials.start import open_network, run_ranks
from wirewise.trials.windows import turns

__all__ = [
    "PAYLOAD_SHARE",
    "PlacementJob",
    "Wish",
    "lab_links",
    "lab_problem",
    "make_job",
    "plan_file",
    "run",
    "summarise",
]

PAYLOAD_SHARE = 0.9
"""Share of a link's rate that hosts use both ways at once: less than `TCP_PAYLOAD`, as acknowledgements of the
other way take 0.02, and what is left keeps queues short."""


class PlacementJob(opt.Options, frozen=True, kw_only=True):
    """What hosts carry out.

    Raises:
        InputError: No turn, no plan, plans for another number of hosts than there are links, or a policy whose rates
            chunks do not give.
    """

    tasks: TaskSet
    network: opt.HostNetwork = "lab"
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


def lab_links(links: tuple[str, ...]) -> Links:
    """What hosts of a lab with these rates send and receive of payload."""
    return Links.of_lab(links, payload=PAYLOAD_SHARE)


def lab_problem(tasks: TaskSet, links: tuple[str, ...]) -> PlacementProblem:
    """The problem on hosts of a lab, named host0, host1, ...

    Raises:
        InputError, PlanError: As `PlacementProblem`.
    """
    return PlacementProblem(tasks, host_names(len(links)), lab_links(links))


def make_job(wish: Wish, tasks: TaskSet, say: Callable[[str], None] = lambda _: None) -> PlacementJob:
    """Plan every method under every policy; plans are named METHOD:POLICY.

    Args:
        wish: Methods, policies and hosts; links of an allocation are measured.
        tasks: Tasks to place.
        say: Called with what network was chosen.

    Raises:
        InputError, PlanError: As `PlacementProblem` and the planners.
    """
    wish = settled(wish, wish.hosts, say)
    problem = lab_problem(tasks, wish.rates)
    plans = {
        f"{method}:{policy}": cast(
            PlacementPlan, PLANNERS[method](problem, policy=policy, steps=wish.steps, seed=wish.seed)
        )
        for policy in wish.policies
        for method in wish.methods
    }
    return PlacementJob(
        tasks=tasks,
        network=wish.network,
        links=wish.rates,
        plans=plans,
        turns=wish.turns,
        timeout_s=wish.timeout_s,
    )


def plan_file(folder: Path, name: str) -> Path:
    """The file of a run's folder that holds a plan."""
    return folder / f"plan-{name.replace(':', '-')}.json"


@owns_folder
def run(job: PlacementJob, folder: Path, say: Callable[[str], None]) -> dict[str, Compared]:
    """Carry out all plans of a job, a process on each host of a lab or of an allocation of Slurm.

    Args:
        job: Settings of the run.
        folder: Takes the job, the plans, logs and the measured times.
        say: Called with messages on the progress.

    Raises:
        InputError: There is no allocation with so many hosts.
        LabError: No lab can be built here.
        PeerError: A host failed; the message holds its last words.
    """
    for name, one in job.plans.items():
        save(one, plan_file(folder, name))
    hosts, worker = len(job.links), "wirewise.recipes.gnn_tasks"
    with open_network(job.network, hosts, job.links) as network:
        measured = run_ranks(
            worker, folder, dict[str, list[OpTimes]], network=network, ranks=hosts, job=job, log=say
        )
    return compare(job, measured)


def compare(job: PlacementJob, measured: Mapping[str, Sequence[OpTimes]]) -> dict[str, Compared]:
    """Each plan of a job, simulated and measured."""
    simulator = lab_problem(job.tasks, job.links).simulator
    return {name: compare_plan(simulator, plan, measured[name]) for name, plan in job.plans.items()}


def summarise(job: PlacementJob, found: Mapping[str, Compared]) -> PlacementRun:
    """All plans of a job next to its first one, as a command writes them."""
    first = found[next(iter(job.plans))]
    return PlacementRun(
        emulated="executions of tasks are slept; links, TCP, bytes and the order of flows are real",
        network=job.network,
        hosts=len(job.links),
        links=job.links,
        tasks=len(job.tasks.tasks),
        iterations=job.tasks.iterations,
        turns=job.turns,
        plans={name: _record(job, name, found[name], first) for name in job.plans},
        fastest=min(job.plans, key=lambda name: found[name].measured_s),
    )


def _record(job: PlacementJob, name: str, one: Compared, first: Compared) -> PlacementRecord:
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


def _work(rank: Rank[PlacementJob]) -> None:
    """Carry out one host's part of every plan, in turns."""
    measured: dict[str, list[OpTimes]] = {name: [] for name in rank.job.plans}
    with Connections(rank.transport) as peers:
        for _, name in turns(list(measured), rank.job.turns):
            measured[name].append(_carried_out(rank, name, peers))
    rank.outcome(measured)


def _carried_out(rank: Rank[PlacementJob], name: str, peers: Connections) -> OpTimes:
    """Times of all ops, those of other hosts among them."""
    job = rank.job
    own = np.stack(execute(job.plans[name], job.tasks, peers, lab_links(job.links)))
    every = rank.transport.all_gather(torch.from_numpy(own), f"the times of plan {name!r}")
    start_s, end_s = np.nanmax(torch.stack(every).numpy(), axis=0)
    if never := int(np.isnan(start_s + end_s).sum()):
        raise PeerError(f"plan {name!r}: {never} ops never ended; see the hosts' logs")
    rank.log(f"{name}: {end_s.max() / job.tasks.iterations:.3f} s an iteration")
    return OpTimes(start_s=start_s.tolist(), end_s=end_s.tolist())


if __name__ == "__main__":
    main(PlacementJob, _work, sys.argv[1])
