"""Recording and replay of a training command, and a plan of its buckets, kept only if measured steps get shorter.

dPRO (Hu et al., MLSys 2022) profiles, replays and optimises data-parallel training. Here all three are applied to an
unmodified script: the plan is executed in place of its DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from wirewise import plans
from wirewise.cost.intervals import gain_of
from wirewise.errors import InputError
from wirewise.files import make_folder, owns_folder, write_json
from wirewise.planners import planner
from wirewise.planners.fusion import from_trace
from wirewise.sim.analysis import TraceAnalysis, analyse
from wirewise.sim.traces import replay_trace
from wirewise.trace import Trace, load
from wirewise.trials.inside import Record, RunPlan, environment
from wirewise.trials.start import hosts_of_command, run_command
from wirewise.trials.windows import alternate
from wirewise_papers.dpro.job import DproOptions
from wirewise_papers.dpro.records import DproResult

__all__ = ["DproOptions", "DproResult", "run"]


@owns_folder
def run(
    command: Sequence[str], folder: Path, options: DproOptions, log: Callable[[str], None]
) -> tuple[DproResult, TraceAnalysis, Trace]:
    """Record, replay and plan, and measure the plan alternately with the unmodified script.

    Args:
        command: Program and arguments; started once for each measurement and stopped after the last step.
        folder: Folder for the traces, the plan and `result.json`.
        options: Options of measurement and planning.
        log: Called with progress messages.

    Raises:
        PeerError: The command failed; the message quotes the end of its output.
        TraceError: It recorded no steps.
        PlanError: There is nothing to plan.
        InputError: No recorded step reveals which parameters are in which bucket of DistributedDataParallel.
    """
    log("recording the command as it is")
    trace = _record(command, folder / "recorded", options)
    analysis = analyse(trace)
    log(analysis.diagnosis.sentence)
    problem = from_trace(trace)
    if not all(problem.modules[i].parameters for i in problem.gradients):
        last = options.warmup + options.steps - 1
        raise InputError(
            f"steps {options.warmup} to {last} (--warmup {options.warmup}, --steps {options.steps}) do not tell which "
            "parameters are in the buckets of DistributedDataParallel, which makes them anew in its second step and "
            "tells after it, and with find_unused_parameters never: expected --warmup 1 or more, and a model that "
            "DistributedDataParallel wraps without find_unused_parameters"
        )
    # Other planners do not search.
    budget_s = options.time_budget_s if options.planner in ("dpro", "mcmc") else None
    found = planner("fusion", options.planner)(problem, time_budget_s=budget_s)
    assert isinstance(found, plans.FusionPlan)
    path = folder / "plan.json"
    plans.save(found, path)
    predicted = 1.0 - found.predicted_step_s / found.baseline_step_s
    log(f"the plan has {len(found.buckets)} buckets; simulated, it saves {predicted:.1%} of a step")
    ways = {"present": [], "planned": [RunPlan(plan=str(path.resolve()))]}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for pair, name in alternate(list(ways), options.pairs):
        report = replay_trace(_record(command, folder / f"{name}-{pair}", options, ways[name]))
        times[name].append(report.measured_step_s)
        log(f"{name}, run {pair + 1} of {options.pairs}: {report.measured_step_s * 1e3:.1f} ms a step")
    result = _result(analysis, found, times, path, hosts_of_command(command))
    write_json(folder / "result.json", result)
    return result, analysis, trace


def _record(
    command: Sequence[str], folder: Path, options: DproOptions, first: Sequence[RunPlan] = ()
) -> Trace:
    """Run the command with every rank recorded, after the tasks `first`."""
    make_folder(folder)
    for old in folder.glob("rank-*.jsonl"):
        old.unlink()
    task = Record(folder=str(folder.resolve()), warmup=options.warmup, steps=options.steps, stop=True)
    run_command(command, folder / "log.txt", environment(*first, task, trial=folder.name))
    return load([folder])


def _result(
    analysis: TraceAnalysis, found: plans.FusionPlan, times: dict[str, list[float]], path: Path, hosts: int
) -> DproResult:
    present, planned = np.array(times["present"]), np.array(times["planned"])
    gain = gain_of(1.0 - planned / present)
    report = analysis.report
    return DproResult(
        sentence=analysis.diagnosis.sentence,
        hosts=hosts,
        ranks=report.ranks,
        measured_step_s=report.measured_step_s,
        replayed_step_s=report.predicted_step_s,
        error=report.error,
        predicted_step_s=found.predicted_step_s,
        predicted_gain=1.0 - found.predicted_step_s / found.baseline_step_s,
        present_step_s=times["present"],
        planned_step_s=times["planned"],
        gain=gain.mean,
        ci95=gain.ci95,
        kept=gain.kept,
        plan=str(path),
    )
