"""SWIFT: training that recovers from the failure of any rank, compared with baselines under the same kills.

Y. Zhong, G. Sheng, J. Liu, J. Yuan, C. Wu: SWIFT: Expedited Failure Recovery for Large-scale DNN Training, TPDS 2024.
Composes `runtime.recovery` (protection), `planners.recovery` (predictions, interval of checkpoints), `kills` and
`lab`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from wirewise import options as opt
from wirewise import topology
from wirewise.cost.links import Links
from wirewise.errors import PeerError
from wirewise.files import owns_folder
from wirewise.lab import Lab
from wirewise.lab.faults import random_kills
from wirewise.planners import recovery as planning
from wirewise.planners.recovery.interval import young_s
from wirewise.plans import RecoveryPlan, save
from wirewise.trace.recovery import ProtectedStage, RecoveryTrace, StageMessages, write_recovery_trace
from wirewise.trials.last_words import failure_reason
from wirewise.trials.start import Hosts, choose_network, open_network
from wirewise_papers.swift.job import MICROBATCHES, SwiftJob
from wirewise_papers.swift.records import FinalState, RecoveryRun
from wirewise_papers.swift.script import FEATURES
from wirewise_papers.swift.ways import (
    TrainingSummary,
    checkpoint_seconds,
    final_states,
    record_of,
    recoveries_of,
    train_with_checkpoints,
    train_with_commits,
    train_with_spares,
)

__all__ = ["SwiftJob", "checkpoint_interval", "kills_of", "predict_recovery", "run"]

_COMMIT_STEPS = 5
"""Steps between commits in memory, which cost a copy of the state each."""


@owns_folder
def run(job: SwiftJob, folder: Path, log: Callable[[str], None]) -> RecoveryRun:
    """Train without failures and under kills, with protection and by the baselines.

    Args:
        job: Settings of the run.
        folder: Folder for settings, steps, logs and recoveries of every training.
        log: Called with progress messages.

    Raises:
        LabError: No lab can be built here.
        PeerError: A training did not finish; the message quotes the end of its output.
    """
    found = {}
    chosen, notes = choose_network(job.network, loopback=False)
    for note in notes:
        log(note)
    with open_network(chosen, job.hosts, job.link) as network:
        assert isinstance(network, Hosts)
        links = _links(network, folder, job)
        # One checkpoint, at the end, says how long one takes.
        plain = train_with_checkpoints(network, folder / "unprotected", job, every=job.steps)
        log(f"unprotected, no failures: {1e3 * plain.step_s:.0f} ms a step")
        still = train_with_spares(network, folder / "undisturbed", job)
        log(f"protected, no failures: {1e3 * still.step_s:.0f} ms a step")
        kills, mtbf_s = kills_of(job, still), still.seconds / max(job.kills, 1)
        every = checkpoint_interval(mtbf_s, checkpoint_seconds(folder / "unprotected"), plain.step_s)
        found["protected"] = train_with_spares(network, folder / "protected", job, kills=kills)
        log(_told("protected", found["protected"]))
        for name, train, steps in (
            ("checkpoint", train_with_checkpoints, every),
            ("commit", train_with_commits, _COMMIT_STEPS),
        ):
            if name in job.others:
                found[name] = train(network, folder / name, job, every=steps, kills=kills)
                log(_told(name, found[name]))
    states, undisturbed = final_states(folder / "protected", job), final_states(folder / "undisturbed", job)
    trace, plan = predict_recovery(job, plain, states[0], mtbf_s, links)
    write_recovery_trace(trace, folder / "recovery-trace.json")
    save(plan, folder / "plan.json")
    equal = [one.digest for one in states] == [one.digest for one in undisturbed]
    ways = {name: record_of(name, one, plain.mean_step_s) for name, one in found.items()}
    baseline = ways.get("checkpoint")
    own_s = _median([one.recovered_s for one in found["protected"].survived])
    return RecoveryRun(
        job=job.job,
        hosts=job.hosts,
        link=opt.OWN_RATE if chosen == "slurm" else job.link,
        optimizer=job.optimizer,
        consistency=job.consistency,
        strategy=job.strategy,
        state_bytes=states[0].bytes,
        kills=len(found["protected"].kills),
        recoveries=recoveries_of(folder / "protected", found["protected"], equal, plan),
        bit_equal=equal,
        step_s=still.step_s,
        unprotected_step_s=plain.step_s,
        overhead=still.step_s / plain.step_s - 1,
        goodput=ways["protected"].goodput,
        baseline_goodput=None if baseline is None else baseline.goodput,
        baseline=f"every {every} steps, by Young's rule for a failure every {mtbf_s:.1f} s",
        speedup=_median(baseline.resumed_s) / own_s
        if baseline and baseline.resumed_s and found["protected"].survived
        else None,
        ways={**ways, "protected": record_of("protected", found["protected"], plain.mean_step_s, equal)},
    )


def kills_of(job: SwiftJob, undisturbed: TrainingSummary) -> list[tuple[float, int]]:
    """Time after the first step and rank of each kill, one per equal part of the failure-free run, in seconds."""
    within_s = (0.05 * undisturbed.seconds, 0.95 * undisturbed.seconds)
    return random_kills(job.hosts, job.kills, within_s, job.seed)


def checkpoint_interval(mtbf_s: float, checkpoint_s: float, step_s: float) -> int:
    """Checkpoint interval in steps, by Young's rule."""
    return max(1, round(young_s(mtbf_s, checkpoint_s) / step_s))


def predict_recovery(
    job: SwiftJob, plain: TrainingSummary, state: FinalState, mtbf_s: float, links: Links | None = None
) -> tuple[RecoveryTrace, RecoveryPlan]:
    """Recovery trace of the job, and the plan with predicted recovery phases.

    Args:
        job: Settings of the run.
        plain: Unprotected training without failures.
        state: State of a rank at the end of the protected training.
        mtbf_s: Mean time between failures, in seconds.
        links: Links between the hosts. Defaults to those of the job's lab.
    """
    ranks, size = tuple(range(job.hosts)), float(state.bytes)
    if job.job == "pipeline":
        # Stages compute alike; the others wait while a pipeline fills and empties.
        compute_s = plain.step_s * MICROBATCHES / (MICROBATCHES + job.hosts - 1)
        stages = tuple(ProtectedStage(ranks=(n,), compute_s=compute_s, state_bytes=size) for n in ranks)
        sent = 4.0 * FEATURES * job.batch_size
        messages = tuple(
            StageMessages(source=a, target=b, size_bytes=sent)
            for n in ranks[1:]
            for a, b in ((n - 1, n), (n, n - 1))
        )
    else:
        stages = (ProtectedStage(ranks=ranks, compute_s=plain.step_s, state_bytes=size),)
        messages = ()
    trace = RecoveryTrace(
        stages=stages,
        messages=messages,
        step_s=plain.step_s,
        microbatches=MICROBATCHES if messages else 1,
        model=job.job,
    )
    links = links or Links.of_lab([job.link] * job.hosts)
    plan = planning.swift(trace, links, mtbf_s=mtbf_s, spares=max(job.spares, 1))
    assert isinstance(plan, RecoveryPlan)
    return trace, plan


def _links(network: Hosts, folder: Path, job: SwiftJob) -> Links:
    """Links between the hosts: those of the lab as they are shaped, others as they are measured."""
    if isinstance(network, Lab):
        return Links.of_lab([job.link] * job.hosts)
    file, logs = folder / "links.toml", folder / "probe"
    probe = ["-m", "wirewise", "topo", "probe", "-o", str(file)]
    result = network.run(probe, launcher="direct", folder=logs)
    if not result.ok:
        raise PeerError(failure_reason(result, logs))
    return Links.of(topology.load(file))


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else math.nan


def _told(name: str, found: TrainingSummary) -> str:
    after = f", a new step {_median([one.recovered_s for one in found.survived]):.2f} s after a kill"
    return (
        f"{name}: {len(found.kills)} kills{after if found.survived else ''}, "
        f"{found.seconds:.1f} s for {found.steps} steps"
    )
