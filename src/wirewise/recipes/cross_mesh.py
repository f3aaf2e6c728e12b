"""Tensors moved between meshes on hosts of the lab or of Slurm, next to other strategies and to what was predicted.

Y. Zhuang et al.: On Optimizing the Communication of Model Parallelism, MLSys 2023. Links, TCP and bytes are real.
Composes `planners.reshard`, `sim` (predictions), `runtime.pipeline.reshard` (moves) and `lab` or Slurm (the network).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

from wirewise import sim
from wirewise.cost.links import Links
from wirewise.files import owns_folder
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import ReshardPlan, save
from wirewise.recipes.cross_mesh_job import ReshardJob, ReshardWish, ranks_per_host
from wirewise.recipes.own_links import settled
from wirewise.results import MovedTimes, ReshardRecord, ReshardRun
from wirewise.trials.start import open_network, run_ranks

__all__ = ["links_of", "make_job", "predicted_s", "run", "summarise"]


def make_job(plan: ReshardPlan, wish: ReshardWish, say: Callable[[str], None] = lambda _: None) -> ReshardJob:
    """The plan, and others for the same tensors.

    Args:
        plan: What to carry out.
        wish: What beside it; links of an allocation are measured.
        say: Called with what network was chosen.

    Raises:
        InputError: The plan's hosts are none of a lab.
    """
    own = ranks_per_host(plan)
    hosts = plan.world_size // own
    wish = settled(wish, hosts, say)
    rates = tuple(wish.links.get(host, wish.link) for host in range(hosts))
    links, plans = Links.of_lab(rates, ranks_per_host=own, payload=1.0), {"plan": plan}
    for strategy in wish.against:
        if strategy != plan.strategy:
            other = cross_mesh(plan.tensors, links, strategy=strategy, seed=plan.seed)
            assert isinstance(other, ReshardPlan)
            plans[strategy] = other
    return ReshardJob(
        plans=plans, network=wish.network, links=rates, turns=wish.turns, timeout_s=wish.timeout_s
    )


@owns_folder
def run(job: ReshardJob, folder: Path, say: Callable[[str], None]) -> ReshardRun:
    """Carry out all plans of a job in turns, in a lab or in an allocation of Slurm.

    Args:
        job: Plans and links.
        folder: Takes the job, the plans, logs and what was measured.
        say: Called with messages on the progress.

    Raises:
        InputError: There is no allocation with so many hosts.
        LabError: No lab can be built here.
        PeerError: A rank failed; the message holds its last words.
    """
    for name, one in job.plans.items():
        save(one, folder / f"plan-{name}.json")
    worker, ranks = "wirewise.recipes.cross_mesh_worker", job.first.world_size
    with open_network(job.network, len(job.links), job.links) as network:
        found = run_ranks(
            worker, folder, dict[str, MovedTimes], network=network, ranks=ranks, job=job, log=say
        )
    return summarise(job, found)


def predicted_s(job: ReshardJob, plan: ReshardPlan) -> float:
    """Seconds that are simulated on the lab's links, less the headers of TCP, IP and Ethernet."""
    return sim.predict(plan, None, links_of(job)).step_s


def links_of(job: ReshardJob) -> Links:
    """Links of a job's ranks with what TCP leaves of them."""
    return Links.of_lab(job.links, ranks_per_host=ranks_per_host(job.first))


def summarise(job: ReshardJob, found: Mapping[str, MovedTimes]) -> ReshardRun:
    """All plans of a job, as a command writes them."""
    records = {name: _record(job, plan, found[name]) for name, plan in job.plans.items()}
    own = records[next(iter(job.plans))]
    return ReshardRun(
        network=job.network,
        hosts=len(job.links),
        links=job.links,
        ranks=job.first.world_size,
        tensors=len(job.first.tensors),
        turns=job.turns,
        measured_s=own.measured_s,
        bound_s=own.bound_s,
        predicted_s=own.predicted_s,
        equal=all(one.equal for one in found.values()),
        plans=records,
    )


def _record(job: ReshardJob, plan: ReshardPlan, found: MovedTimes) -> ReshardRecord:
    links = Links.of_lab(job.links, ranks_per_host=ranks_per_host(plan), payload=1.0)
    exact = cross_mesh(plan.tensors, links, strategy="p2p", order="size")
    assert isinstance(exact, ReshardPlan)
    return ReshardRecord(
        strategy=plan.strategy,
        measured_s=statistics.median(found.seconds),
        turns_s=tuple(found.seconds),
        bound_s=exact.bound_s,
        predicted_s=predicted_s(job, plan),
        equal=found.equal,
        bytes_sent=plan.bytes_sent,
        bytes_between_hosts=plan.bytes_between_hosts,
        received_bytes=tuple(found.received_bytes),
        sent_bytes=tuple(found.sent_bytes),
    )
