"""Plans for a model on heterogeneous hosts, their predictions, and the comparison of measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from wirewise import sim
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.placement.tag import PLANNERS, DeploymentProblem
from wirewise.plans.deployment import DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.plans.fusion import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from wirewise.trace.stages import StageTrace
from wirewise_papers.interleaved import Measurements
from wirewise_papers.own_links import resolve_links
from wirewise_papers.tag.job import BASELINES, DeploymentJob, TagOptions
from wirewise_papers.tag.models import measured_trace, trace_of
from wirewise_papers.tag.records import DeploymentRecord, DeploymentRun, TrainingFacts

__all__ = ["lab_links", "make_job", "predicted_s", "problem_of", "summarise"]

_BUCKETS = (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES)
"""Bytes of the first bucket of DistributedDataParallel, and of the others."""
_EQUAL = 1e-5
_MESSAGE_S = 1e-3
"""Seconds of a message of gloo that carries nothing, an order of magnitude for a few ranks on busy processors."""


def lab_links(rates: Sequence[str], message_s: float = _MESSAGE_S) -> Links:
    """Links between lab hosts with one rank each, minus the headers of TCP, IP and Ethernet.

    Args:
        rates: Rate of each host's link.
        message_s: Measured time of an empty message, in seconds. Defaults to a rough estimate.
    """
    return Links.of_lab(rates, latency_s=message_s)


def problem_of(options: TagOptions, measurements: StageTrace | None = None) -> DeploymentProblem:
    """Problem for planners, with measured modules or those of the emulated devices."""
    devices = tuple(
        DeployedDevice(name=f"host{number}", host=f"host{number}", speed=speed)
        for number, speed in enumerate(options.speeds)
    )
    return DeploymentProblem(
        measurements or trace_of(options), lab_links(options.rates), devices, options.batch
    )


def make_job(options: TagOptions, log: Callable[[str], None] = lambda _: None) -> DeploymentJob:
    """Plan with every requested planner.

    Args:
        options: Model, hosts and planners; links of an allocation are measured.
        log: Called with progress messages.

    Raises:
        InputError: A planner is unknown, or throttling was requested for hosts of an allocation.
        PlanError: No plan of a planner fits into the memory.
    """
    options = resolve_links(options, len(options.speeds), log)
    if options.computing == "real" and options.network == "slurm":
        raise InputError(
            "computing is 'real', which stops the processes of slower hosts, and hosts of an allocation are as fast as "
            "they are; expected --computing slept, or --network lab"
        )
    measured = measured_trace(options) if options.computing == "real" else None
    problem, plans = problem_of(options, measured), dict[str, DeploymentPlan]()
    for name in options.plans:
        if name in BASELINES:
            plans[name] = _replicated(problem, proportional=name == "ddp-proportional")
        elif name in PLANNERS:
            found = PLANNERS[name](problem, seed=options.seed)
            assert isinstance(found, DeploymentPlan)
            plans[name] = found
        else:
            raise InputError(f"plans has {name!r}; expected some of: {', '.join([*BASELINES, *PLANNERS])}")
    return DeploymentJob(
        model=options.model,
        speeds=options.speeds,
        network=options.network,
        rates=options.rates,
        batch=options.batch,
        plans=plans,
        compute_ms=options.compute_ms,
        measured=measured,
        steps=options.steps,
        turns=options.turns,
        seed=options.seed,
        timeout_s=options.timeout_s,
    )


def _replicated(problem: DeploymentProblem, *, proportional: bool) -> DeploymentPlan:
    """Everything on all devices; a group for each bucket of gradients that DistributedDataParallel makes."""
    ranks = range(len(problem.devices))
    rows = problem.shares(list(ranks), proportional=proportional).tolist()
    buckets: list[list[str]] = [[]]
    size, limits = 0.0, iter((*_BUCKETS, *[_BUCKETS[-1]] * len(problem.trace.modules)))
    limit = next(limits)
    for module in reversed(problem.trace.modules):
        buckets[0].insert(0, module.name)
        size += module.parameter_bytes
        if size >= limit:
            buckets.insert(0, [])
            size, limit = 0.0, next(limits)
    groups = tuple(
        DeployedGroup(ops=tuple(names), devices=tuple(ranks), communication="allreduce", rows=tuple(rows))
        for names in buckets
        if names
    )
    plan = DeploymentPlan(
        world_size=len(ranks),
        planner="ddp-proportional" if proportional else "ddp",
        batch=problem.batch,
        devices=problem.devices,
        groups=groups,
        predicted_step_s=0.0,
        baseline_step_s=0.0,
        predicted_bytes=(0,) * len(ranks),
    )
    plan.check_itself()
    return plan


def predicted_s(
    plan: DeploymentPlan, trace: StageTrace, rates: Sequence[str], message_s: float = _MESSAGE_S
) -> float:
    """Simulated time of a step on lab hosts, in seconds; arguments as in `lab_links`."""
    return sim.predict(plan, trace, lab_links(rates, message_s)).step_s


def summarise(job: DeploymentJob, measurements: Mapping[str, Measurements]) -> DeploymentRun:
    """Compare all plans of a job with the first one."""
    trace = job.measured or trace_of(job)
    plans = {}
    for name, one in measurements.items():
        facts = msgspec.convert(one.outcome, TrainingFacts)
        plans[name] = DeploymentRecord(
            step_s=one.step_s,
            predicted_step_s=predicted_s(job.plans[name], trace, job.rates, facts.message_s or _MESSAGE_S),
            bytes_sent=one.bytes_sent or 0,
            loss_equal=facts.loss_error <= _EQUAL,
            loss_error=facts.loss_error,
            steps_s=tuple(one.steps_s),
        )
    first = plans[next(iter(plans))]
    best = min(plans, key=lambda name: plans[name].step_s)
    return DeploymentRun(
        emulated=(
            f"passes take at least the time of devices that need {job.compute_ms:g} ms, over their speed, for the "
            "whole batch; numbers, messages and links are real"
            if job.measured is None
            else "processes of slower hosts are stopped for a part of the time; all else is real"
        ),
        model=job.model,
        speeds=job.speeds,
        network=job.network,
        hosts=len(job.rates),
        links=job.rates,
        batch=job.batch,
        steps=job.steps * job.turns,
        meanings={
            name: BASELINES.get(name, f"plan by {job.plans[name].planner!r}, carried out by wirewise")
            for name in plans
        },
        plans=plans,
        fastest=best,
        speedup=first.step_s / plans["tag" if "tag" in plans else best].step_s,
    )
