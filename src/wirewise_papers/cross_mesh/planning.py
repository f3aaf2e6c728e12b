"""Plans for the same tensors, their predictions, and the comparison of measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from wirewise import sim
from wirewise.cost.links import Links
from wirewise.planners.reshard import cross_mesh
from wirewise.plans import ReshardPlan
from wirewise_papers.cross_mesh.job import CrossMeshOptions, ReshardJob, ranks_per_host
from wirewise_papers.cross_mesh.records import MoveFacts, ReshardRecord, ReshardRun
from wirewise_papers.interleaved import Measurements
from wirewise_papers.own_links import resolve_links

__all__ = ["links_of", "make_job", "predicted_s", "summarise"]


def make_job(
    plan: ReshardPlan, options: CrossMeshOptions, log: Callable[[str], None] = lambda _: None
) -> ReshardJob:
    """Make the job: the given plan, and other strategies for the same tensors.

    Args:
        plan: Plan to execute.
        options: Strategies and network; links of an allocation are measured.
        log: Called with progress messages.

    Raises:
        InputError: The plan's hosts are none of a lab.
    """
    own = ranks_per_host(plan)
    hosts = plan.world_size // own
    options = resolve_links(options, hosts, log)
    rates = tuple(options.links.get(host, options.link) for host in range(hosts))
    links, plans = Links.of_lab(rates, ranks_per_host=own, payload=1.0), {"plan": plan}
    for strategy in options.against:
        if strategy != plan.strategy:
            other = cross_mesh(plan.tensors, links, strategy=strategy, seed=plan.seed)
            assert isinstance(other, ReshardPlan)
            plans[strategy] = other
    return ReshardJob(
        plans=plans, network=options.network, links=rates, turns=options.turns, timeout_s=options.timeout_s
    )


def predicted_s(job: ReshardJob, plan: ReshardPlan) -> float:
    """Simulated time on the lab's links, minus headers of TCP, IP and Ethernet, in seconds."""
    return sim.predict(plan, None, links_of(job)).step_s


def links_of(job: ReshardJob) -> Links:
    """Links of a job's ranks, at the payload rates of TCP."""
    return Links.of_lab(job.links, ranks_per_host=ranks_per_host(job.first))


def summarise(job: ReshardJob, measurements: Mapping[str, Measurements]) -> ReshardRun:
    """Compare all plans of a job with the first one."""
    records = {name: _record(job, plan, measurements[name]) for name, plan in job.plans.items()}
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
        equal=all(one.equal for one in records.values()),
        plans=records,
    )


def _record(job: ReshardJob, plan: ReshardPlan, one: Measurements) -> ReshardRecord:
    links = Links.of_lab(job.links, ranks_per_host=ranks_per_host(plan), payload=1.0)
    exact = cross_mesh(plan.tensors, links, strategy="p2p", order="size")
    assert isinstance(exact, ReshardPlan)
    return ReshardRecord(
        strategy=plan.strategy,
        measured_s=one.step_s,
        turns_s=tuple(one.steps_s),
        bound_s=exact.bound_s,
        predicted_s=predicted_s(job, plan),
        equal=msgspec.convert(one.outcome, MoveFacts).equal,
        bytes_sent=plan.bytes_sent,
        bytes_between_hosts=plan.bytes_between_hosts,
        received_bytes=tuple(one.received_by_rank) or (0,) * plan.world_size,
        sent_bytes=tuple(one.sent_by_rank) or (0,) * plan.world_size,
    )
