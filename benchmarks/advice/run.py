"""Claims about `wirewise advise` on scripts as users write them: planted causes, predictions against trials, regret.

    python benchmarks/advice/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows are the scripts in `benchmarks/advice/scripts`, which know nothing of wirewise but for `growing`, which is watched.
Each is advised on as a user would, with trials. What is advised, without a risk and by lines of the script, is then
measured in fresh runs, interleaved with the script as it is (ABBA), so that the figures that chose it do not judge it.
The smoke preset runs three of them, unless --only names others. With --out what was measured is kept beside the page in
FILE.json; remove that file to start anew. `slow_link` needs a lab.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from common import KeptFigures, Page, arguments, need_lab, scratch, verdict
from wirewise.advice import Candidate
from wirewise.advice.options import AdviceOptions
from wirewise.advice.ranking import is_worthwhile
from wirewise.advice.running import advise_command
from wirewise.cost.drift import WatchEvent, read_history
from wirewise.report.figures import MISSING, signed
from wirewise.trials.inside import Restart, RunPlan, environment
from wirewise.trials.inside.restarting import read_results, result_file
from wirewise.trials.start import run_command
from wirewise.trials.windows import alternate

SCRIPTS = Path(__file__).resolve().parent / "scripts"
PLANTED = {"straggler": "straggler", "slow_loader": "data", "slow_link": "network", "uneven": "imbalance"}
"""Bound of each script with a planted cause that one kind of trace tells."""
UNTOLD = {"small_ops": "host and device are one lane of a CPU's trace: compute is the nearest that it tells"}
"""Planted causes that a trace of CPUs does not tell apart."""
ALONE = ("whole_graph",)
"""Scripts of one process."""
NO_WORSE = 1.01
"""Longest step under what is advised, as a multiple of the script as it is."""
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "scripts": ("whole_graph", "slow_loader", "growing"),
        "options": AdviceOptions(steps=4, warmup=2, trials=1, restarts=1, codecs=("fp16",), minutes=0.5),
        "windows": 1,
    },
    "paper": {"scripts": None, "options": AdviceOptions(steps=20, minutes=10.0), "windows": 4},
}


class Trial(NamedTuple):
    """A change that was tried while the script was advised on."""

    change: str
    predicted_s: float | None
    measured_s: float
    as_it_is_s: float
    work: float


class Found(msgspec.Struct, frozen=True):
    """Everything that is told of a script."""

    bound_by: str
    step_s: float
    advice: str
    trials: list[Trial]
    advised: str = ""
    """Change of the script that is advised without a risk; empty if it is best left as it is."""
    fresh: float | None = None
    """Step under it over that of the script as it is, in fresh runs. None if there is none."""


def command_of(name: str) -> list[str]:
    script = str(SCRIPTS / f"{name}.py")
    if name in ALONE:
        return [sys.executable, script]
    if name == "slow_link":
        return [
            sys.executable,
            "-m",
            "wirewise",
            "lab",
            "run",
            "--hosts",
            "2",
            "--link",
            "100mbit",
            "--",
            script,
        ]
    return ["torchrun", "--nproc-per-node", "2", script]


def measure(name: str, preset: dict[str, Any]) -> Found:
    command, asked = command_of(name), preset["options"]
    with scratch() as folder:
        advice = advise_command(command, folder / "advice", say, asked)
        tried = [
            Trial(
                f"{one.family}: {one.planner}",
                one.predicted_step_s,
                one.measured_step_s,
                one.baseline_step_time_s(advice.step_s),
                one.work,
            )
            for one in advice.candidates
            if one.measured_step_s is not None
        ]
        advised = next(
            (
                one
                for one in advice.candidates
                if one.lines
                and not one.risk
                and is_worthwhile(one, advice.step_s)
                and (one.arguments or one.plan_file)
            ),
            None,
        )
        found = Found(advice.bound_by, advice.step_s, advice.advice, tried)
        if advised is None:
            return found
        ratio = fresh(command, advised, folder, preset)
        label = f"{advised.family}: {advised.planner}"
        return msgspec.structs.replace(found, advised=label, fresh=ratio)


def say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def fresh(command: list[str], advised: Candidate, folder: Path, preset: dict[str, Any]) -> float:
    """Step under a change over that of the command as it is, for as many samples."""
    asked, seconds = preset["options"], {"as it is": [], "advised": []}
    for number, (_, which) in enumerate(alternate(list(seconds), preset["windows"])):
        results = folder / f"fresh-{number}"
        results.mkdir()
        arguments_of = advised.arguments if which == "advised" else {}
        timing = Restart(
            folder=str(results), arguments=dict(arguments_of), warmup=asked.warmup, steps=asked.steps
        )
        planned = which == "advised" and advised.plan_file
        tasks = (RunPlan(plan=str(Path(advised.plan_file).resolve())), timing) if planned else (timing,)
        say(f"fresh run {number + 1}: {which}")
        run_command(
            command, results / "log.txt", environment(*tasks, trial=which), result=result_file(results, 0)
        )
        seconds[which] += read_results(results).seconds
    return statistics.median(seconds["advised"]) / advised.work / statistics.median(seconds["as it is"])


def causes(page: Page, found: dict[str, Found]) -> None:
    page.add("## Causes\n\nWhere a cause is planted it has to be named.")
    with page.table("script", "step ms", "bound by", "planted", "named") as row:
        for name, one in found.items():
            planted = PLANTED.get(name)
            named = verdict(float(one.bound_by == planted), least=1) if planted else UNTOLD.get(name, MISSING)
            row(name, f"{1e3 * one.step_s:.1f}", one.bound_by, planted or MISSING, named)


def growth(page: Page) -> None:
    """A watched script whose memory grows."""
    page.add(
        "## Memory\n\nA script whose memory grows, watched by `wirewise.watch`, has to be told of once or more."
    )
    with scratch() as folder, page.table("script", "events of memory", "threshold") as row:
        run_command(
            [sys.executable, str(SCRIPTS / "growing.py"), str(folder)], folder / "log.txt", environment()
        )
        events = [
            one for one in read_history(folder) if isinstance(one, WatchEvent) and one.cause == "memory"
        ]
        row("growing", len(events), verdict(len(events), least=1))


def predictions(page: Page, found: dict[str, Found]) -> None:
    page.add("## Predicted and measured\n\nEach change that was tried; the error is of the prediction.")
    with page.table("script", "change", "as it is ms", "predicted ms", "measured ms", "error") as row:
        for name, one in found.items():
            for tried in one.trials:
                known = tried.predicted_s is not None
                row(
                    name,
                    tried.change,
                    f"{1e3 * tried.as_it_is_s:.1f}",
                    f"{1e3 * tried.predicted_s:.1f}" if known else MISSING,
                    f"{1e3 * tried.measured_s:.1f}",
                    signed(tried.predicted_s / tried.measured_s - 1) if known else MISSING,
                )


def regrets(page: Page, found: dict[str, Found]) -> None:
    page.add(
        "## Regret\n\nStep under what is advised, over that of the script as it is, in fresh runs; and over the best "
        "that was tried without a risk. Leaving the script as it is counts as 1."
    )
    with page.table(
        "script", "advised", "over as it is", f"at most {NO_WORSE}", "best tried", "regret"
    ) as row:
        for name, one in found.items():
            ratio = 1.0 if one.fresh is None else one.fresh
            risky = ("codecs", "accumulation", "ranks")
            tried = [
                t.measured_s / t.work / t.as_it_is_s for t in one.trials if not t.change.startswith(risky)
            ]
            best = min([1.0, *tried])
            row(
                name,
                one.advised or "leave it as it is",
                f"{ratio:.3f}",
                verdict(ratio, most=NO_WORSE),
                f"{best:.3f}",
                signed(ratio / best - 1),
            )


def main() -> None:
    names = sorted(file.stem for file in SCRIPTS.glob("*.py"))
    options = arguments(__doc__, names)
    preset = PRESETS[options.preset]
    chosen = preset["scripts"] or names if options.only == names else options.only
    if "slow_link" in chosen:
        need_lab()
    asked = preset["options"]
    page = Page(
        "Advice on scripts",
        options.preset,
        {
            "Setting": "two ranks on two processors, gloo over loopback; slow_link in a lab of two hosts",
            "Repeats": f"{asked.steps} steps, {asked.trials} windows of trials, {preset['windows']} of fresh runs",
        },
    )
    kept = KeptFigures(options.out and options.out.with_suffix(".json"))
    found: dict[str, Found] = {}
    for name in (one for one in chosen if one != "growing"):
        if name not in kept:
            print(f"{name}:", file=sys.stderr, flush=True)
            kept[name] = measure(name, preset)
        found[name] = msgspec.convert(kept[name], Found)
    if found:
        causes(page, found)
        predictions(page, found)
        regrets(page, found)
    if "growing" in chosen:
        growth(page)
    page.finish(options)


if __name__ == "__main__":
    main()
