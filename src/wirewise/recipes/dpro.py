"""dPRO: record a training command, replay it, plan its buckets, and keep the plan if steps get measurably shorter.

dPRO (Hu et al., MLSys 2022) profiles, replays and optimises data-parallel training. Here all three come together
for a script that knows nothing of it: the plan is carried out in place of its DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy.stats import t

from wirewise import plans
from wirewise.errors import PeerError
from wirewise.files import atomic_file, make_folder, owns_folder
from wirewise.lab import run_owned
from wirewise.planners import planner
from wirewise.planners.fusion import from_trace
from wirewise.profile.launch import TraceWish, environment, find_program, last_words, tracing_environment
from wirewise.recipes.scripts import Wish
from wirewise.sim.analysis import Analysis, analyse
from wirewise.sim.traces import replay_trace
from wirewise.trace import Trace, load

__all__ = ["DproResult", "Wish", "gain_of_runs", "run"]

_PLAN_ENTRY = "wirewise.runtime.data_parallel.unmodified:install"
_PLAN_VARIABLE = "WIREWISE_FUSION_PLAN"


class DproResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was said to give, and what it gave."""

    sentence: str
    """What bounds a step."""
    ranks: int
    measured_step_s: float
    """Of the recorded run."""
    replayed_step_s: float
    error: float
    """replayed / measured - 1."""
    predicted_step_s: float
    """Under the plan, simulated."""
    predicted_gain: float
    """Share of the step that the plan saves, simulated."""
    present_step_s: list[float]
    """Each run without the plan, measured."""
    planned_step_s: list[float]
    """Each run with it, measured."""
    gain: float
    """Share of the step that the plan saves, measured: mean of pairs."""
    ci95: tuple[float, float]
    """Interval of the gain, by Student's t over pairs."""
    kept: bool
    """Whether the whole interval is above zero."""
    plan: str
    """File of the plan."""


@owns_folder
def run(
    command: Sequence[str], folder: Path, wish: Wish, say: Callable[[str], None]
) -> tuple[DproResult, Analysis, Trace]:
    """Record, replay, plan, and measure the plan against the script as it is, in turns.

    Args:
        command: The program and its arguments; started once for each measurement and stopped after the last step.
        folder: Takes the traces, the plan and `result.json`.
        wish: How.
        say: Hears what goes on.

    Raises:
        PeerError: The command failed; the message holds its last words.
        TraceError: It recorded no steps.
        PlanError: There is nothing to plan.
    """
    make_folder(folder)
    say("recording the command as it is")
    trace = _record(command, folder / "recorded", wish)
    analysis = analyse(trace)
    say(analysis.diagnosis.sentence)
    problem = from_trace(trace)
    found = planner("fusion", wish.planner)(problem, time_budget_s=_budget(wish))
    assert isinstance(found, plans.FusionPlan)
    path = folder / "plan.json"
    plans.save(found, path)
    predicted = 1.0 - found.predicted_step_s / found.baseline_step_s
    say(f"the plan has {len(found.buckets)} buckets; simulated, it saves {predicted:.1%} of a step")
    base = {"present": None, "planned": environment({_PLAN_ENTRY: {_PLAN_VARIABLE: str(path.resolve())}})}
    times: dict[str, list[float]] = {name: [] for name in base}
    for pair in range(wish.pairs):
        # As ABBA, so that a slow drift of the machine favours none.
        for name in sorted(base, reverse=pair % 2 == 0):
            report = replay_trace(_record(command, folder / f"{name}-{pair}", wish, base[name]))
            times[name].append(report.measured_step_s)
            say(f"{name}, run {pair + 1} of {wish.pairs}: {report.measured_step_s * 1e3:.1f} ms a step")
    result = _result(analysis, found, times, path)
    with atomic_file(folder / "result.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(result)))
    return result, analysis, trace


def _budget(wish: Wish) -> float | None:
    return wish.time_budget_s if wish.planner in ("dpro", "mcmc") else None


def _record(command: Sequence[str], folder: Path, wish: Wish, base: Mapping[str, str] | None = None) -> Trace:
    """Run the command with every rank recorded, in the environment `base`."""
    make_folder(folder)
    for old in folder.glob("rank-*.jsonl"):
        old.unlink()
    log = folder / "log.txt"
    told = TraceWish(folder=str(folder.resolve()), warmup=wish.warmup, steps=wish.steps, stop=True)
    with log.open("wb") as file:
        code = run_owned(
            [find_program(command[0]), *command[1:]],
            environment=tracing_environment(told, base),
            silent=True,
            output=file,
            errors=file,
        )
    if code:
        raise PeerError(
            f"the command ended with exit code {code}; its log is {log}, and ends:\n{last_words(log)}"
        )
    return load([folder])


def _result(
    analysis: Analysis, found: plans.FusionPlan, times: dict[str, list[float]], path: Path
) -> DproResult:
    present, planned = np.array(times["present"]), np.array(times["planned"])
    gain, interval = gain_of_runs(present, planned)
    report = analysis.report
    return DproResult(
        sentence=analysis.diagnosis.sentence,
        ranks=report.ranks,
        measured_step_s=report.measured_step_s,
        replayed_step_s=report.predicted_step_s,
        error=report.error,
        predicted_step_s=found.predicted_step_s,
        predicted_gain=1.0 - found.predicted_step_s / found.baseline_step_s,
        present_step_s=times["present"],
        planned_step_s=times["planned"],
        gain=gain,
        ci95=interval,
        kept=interval[0] > 0,
        plan=str(path),
    )


def gain_of_runs(present_s: np.ndarray, planned_s: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Mean share that a step gets shorter, and its 95 % interval, from pairs of runs next to each other.

    Args:
        present_s: Mean step of each run without the plan, [pairs].
        planned_s: The same with it, [pairs].
    """
    shares = 1.0 - planned_s / present_s
    count = len(shares)
    half = float(t.ppf(0.975, count - 1) * shares.std(ddof=1) / np.sqrt(count))
    mean = float(shares.mean())
    return mean, (mean - half, mean + half)
