"""`wirewise run`: published systems as one command each."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wirewise.cli import collectives
from wirewise.cli.options import Given, on_hosts, with_options
from wirewise.cli.output import (
    FolderOption,
    JsonOption,
    note,
    print_text,
    run_folder,
    run_recipe,
    write_json,
    write_out,
)
from wirewise.cli.sampling import Tasks, chosen_tasks
from wirewise.errors import InputError, PeerError
from wirewise.options import fields_of
from wirewise.plans import ReshardPlan, load
from wirewise.recipes import (
    cross_mesh_job,
    cupcake_job,
    gnn_tasks_job,
    pipedream_2bw_job,
    rhino_job,
    salientpp_job,
    sea_er_job,
    swift_job,
    tag_job,
    tapfinger_job,
)
from wirewise.recipes.job import FullGraphJob
from wirewise.recipes.scripts import DproOptions
from wirewise.runtime.recovery.limits import AgentLimits
from wirewise.runtime.recovery.resume_options import ResumeOptions

if TYPE_CHECKING:
    from wirewise.report import TrainingProgress
    from wirewise.results import RunResult

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Run a published system end to end and report what it gained.")
app.command()(collectives.collective)


@app.command()
@with_options
def adaqp(
    given: Given[FullGraphJob],
    out: Annotated[Path | None, typer.Option(help="Folder of parts, logs, result and report.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Folder of a stopped run: go on from its checkpoints, with its settings."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Full-graph GNN training with adaptively quantized messages (AdaQP), next to full precision."""
    from wirewise import report
    from wirewise.recipes import adaqp as recipe

    job = on_hosts(given).record() if resume is None else _stopped_job(given, out, resume)
    quiet = json == "-"
    with run_folder(resume or out, "adaqp") as folder:
        result = _run(job, folder, report.TrainingProgress(to_stderr=quiet), resume=resume is not None)
        page = folder / "report.html"
        report.write_page(report.page_html(result, recipe.saved_plan(folder, job)), page)
    if not quiet:
        report.print_result(result)
        print_text(f"Report: {page}")
    write_json(json, report.to_json_object(result))


@app.command(context_settings={"allow_interspersed_args": False})
@with_options
def dpro(
    command: Annotated[list[str], typer.Argument(help="After --: torchrun ... train.py, unmodified.")],
    wish: DproOptions,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Record a training command, replay it, plan its gradient buckets, and measure the plan (dPRO)."""
    from wirewise.recipes import dpro as recipe
    from wirewise.report import shell
    from wirewise.report.replay_page import replay_html

    quiet = json == "-"
    with run_folder(out, "dpro") as folder:
        result, analysis, trace = recipe.run(command, folder, wish, lambda text: print_text(text, err=quiet))
        low, high = result.ci95
        told = {
            "recorded, replayed": f"{result.measured_step_s * 1e3:.1f} ms, {result.error:+.1%}",
            "saved by the plan, simulated": f"{result.predicted_gain:.1%} of a step",
            "saved by the plan, measured": f"{result.gain:.1%} ({low:.1%} to {high:.1%})",
            "keep it": "yes" if result.kept else "no: the gain is not above its interval",
        }
        page = folder / "report.html"
        gave = shell.section("What the plan gave", "", shell.terms(told))
        shell.write_page(replay_html(trace, analysis, gave), page)
    said = (["", ""], list(told.items())), f"Plan: {result.plan}, report: {page}"
    write_out(json, msgspec.to_builtins(result), *said)


@app.command()
@with_options
def cupcake(
    trace: Annotated[Path, typer.Option(help="JSON with name, elements and gap_us of each gradient.")],
    given: Given[cupcake_job.CupcakeJob],
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Measure codecs and links, plan compressed groups of gradients, and time the plans in turns (Cupcake)."""
    from wirewise.recipes import cupcake as recipe
    from wirewise.report.gradients_page import gradients_comparison, gradients_html

    job = recipe.make_job(trace, **on_hosts(given).values)
    run_recipe("cupcake", out, json, partial(recipe.run, job), gradients_html, gradients_comparison)


@app.command()
@with_options
def salientpp(
    given: Given[salientpp_job.MiniBatchJob], out: FolderOption = None, json: JsonOption = None
) -> None:
    """Mini-batch GNN training with cached remote features and a pipeline (SALIENT++), next to training without."""
    from wirewise.recipes import salientpp as recipe
    from wirewise.report.mini_batch_page import mini_batch_comparison, mini_batch_html

    run_recipe(
        "salientpp",
        out,
        json,
        partial(recipe.run, on_hosts(given).record()),
        mini_batch_html,
        mini_batch_comparison,
    )


@app.command("sea-er")
@with_options
def sea_er(
    given: Given[sea_er_job.IncrementalJob], out: FolderOption = None, json: JsonOption = None
) -> None:
    """Learn the tasks of a growing graph with rehearsal of old nodes (SEA-ER), next to other methods."""
    from wirewise.recipes import sea_er as recipe
    from wirewise.report.incremental_page import incremental_comparison, incremental_html

    job = on_hosts(given).record()
    run_recipe("sea-er", out, json, partial(recipe.run, job), incremental_html, incremental_comparison)


@app.command("gnn-tasks")
@with_options
def gnn_tasks(
    given: Given[gnn_tasks_job.Wish],
    tasks: Given[Tasks],
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Place the tasks of GNN training, and carry the placements out next to rules (Luo, Bao, Wu).

    Links, TCP and bytes are real. Computing is emulated: a task sleeps its time.
    """
    from wirewise.recipes import gnn_tasks as recipe
    from wirewise.report.placement_page import placement_comparison, placement_html

    wish = on_hosts(given).record()
    placed = recipe.make_job(wish, chosen_tasks(tasks, wish.names, wish.seed), note)
    run_recipe(
        "gnn-tasks",
        out,
        json,
        lambda folder, say: recipe.summarise(placed, recipe.run(placed, folder, say)),
        lambda found: placement_html(found, placed.plans),
        placement_comparison,
        plan=lambda folder, found: recipe.plan_file(folder, found.fastest),
    )


@app.command()
@with_options
def reshard(
    plan: Annotated[Path, typer.Argument(help="File of `wirewise plan reshard`.")],
    given: Given[cross_mesh_job.ReshardWish],
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Move tensors between meshes as a plan says, next to other strategies (cross-mesh resharding).

    Links, TCP and bytes are real; every part is compared with what slicing gives.
    """
    from wirewise.recipes import cross_mesh as recipe
    from wirewise.report.reshard_page import reshard_comparison, reshard_html

    found = load(plan)
    if not isinstance(found, ReshardPlan):
        raise InputError(f"{plan} is a {found.family} plan; expected one of `wirewise plan reshard`")
    job = recipe.make_job(found, on_hosts(given).record(), note)
    run_recipe(
        "reshard",
        out,
        json,
        partial(recipe.run, job),
        lambda run: reshard_html(run, job.plans, recipe.links_of(job)),
        reshard_comparison,
    )


@app.command("pipedream-2bw")
@with_options
def pipedream_2bw(
    given: Given[pipedream_2bw_job.PipelineJob], out: FolderOption = None, json: JsonOption = None
) -> None:
    """Train a language model in pipeline stages, with and without flushes between updates (PipeDream-2BW).

    Numbers, messages and links are real. Passes take at least the time of an accelerator: the rest is slept.
    """
    from wirewise.recipes import pipedream_2bw as recipe
    from wirewise.report.pipeline_page import pipeline_comparison, pipeline_html

    job = on_hosts(given).record()
    run_recipe(
        "pipedream-2bw",
        out,
        json,
        partial(recipe.run, job),
        lambda found: pipeline_html(found, recipe.plans_of(msgspec.structs.replace(job, link=found.link))),
        pipeline_comparison,
    )


@app.command()
@with_options
def tag(given: Given[tag_job.DeploymentWish], out: FolderOption = None, json: JsonOption = None) -> None:
    """Deploy a model on hosts of unequal speed and links by a plan of TAG, next to data parallelism.

    Numbers, messages and links are real. Passes take at least the time of a device, the rest is slept; with
    --computing real slower hosts are throttled.
    """
    from wirewise.recipes import tag as recipe
    from wirewise.report.deployment_page import deployment_comparison, deployment_html

    job = recipe.make_job(on_hosts(given).record(), note)
    run_recipe(
        "tag",
        out,
        json,
        partial(recipe.run, job),
        lambda found: deployment_html(found, job.plans),
        deployment_comparison,
        plan=lambda folder, found: folder / f"plan-{found.fastest}.json",
    )


@app.command()
@with_options
def rhino(given: Given[rhino_job.RhinoWish], out: FolderOption = None, json: JsonOption = None) -> None:
    """Plan how a model is split over ranks and train it so, next to DDP, FSDP2 and layers split by hand (Rhino).

    Numbers, messages and links are real. Operators take as long as on an accelerator: the rest is slept.
    """
    from wirewise.recipes import rhino as recipe
    from wirewise.report.parallel_page import parallel_comparison, parallel_html

    run_recipe(
        "rhino",
        out,
        json,
        partial(recipe.run, on_hosts(given).record()),
        parallel_html,
        parallel_comparison,
        plan=lambda folder, found: recipe.plan_file(folder),
    )


@app.command(context_settings={"allow_interspersed_args": False})
@with_options
def swift(
    given: Given[swift_job.SwiftJob],
    limits: Given[AgentLimits],
    changes: Given[ResumeOptions],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: torchrun ... train.py, a script of your own with the three lines."),
    ] = None,
    out: FolderOption = None,
    json: JsonOption = None,
) -> None:
    """Kill ranks of a training and see it go on, next to checkpoints and restarts under the same kills (SWIFT).

    Processes, kills, links and steps are real. With a command: its script is trained on this machine, protected.
    """
    from wirewise.report.recovery_page import recovery_comparison, recovery_html

    if command:
        _survive(command, given, limits.record(), changes.record(), out, json)
        return
    if changes.named:
        raise InputError(
            "--accept-changes is of a script of your own; expected it with -- torchrun ... train.py"
        )
    if limits.named:
        option = next(one.option for one in fields_of(AgentLimits) if one.name in limits.named)
        raise InputError(f"{option} is of a script of your own; expected it with -- torchrun ... train.py")
    from wirewise.recipes import swift as recipe

    run_recipe(
        "swift", out, json, partial(recipe.run, on_hosts(given).record()), recovery_html, recovery_comparison
    )


@app.command()
@with_options
def tapfinger(job: tapfinger_job.TapFingerJob, out: FolderOption = None, json: JsonOption = None) -> None:
    """Schedule queues of training jobs by a learned policy (TapFinger), next to rules, and run real jobs by it.

    Queues are simulated over several seeds. Real jobs run on clusters of the lab, are stopped and started again as the
    scheduler decides; what accelerators compute is slept.
    """
    from wirewise.recipes import tapfinger as recipe
    from wirewise.report.jobs_page import jobs_comparison, jobs_html

    run_recipe("tapfinger", out, json, partial(recipe.run, job), jobs_html, jobs_comparison)


def _survive(
    command: list[str],
    given: Given[swift_job.SwiftJob],
    limits: AgentLimits,
    changes: ResumeOptions,
    out: Path | None,
    json: str | None,
) -> None:
    """Train a user's script under an agent, and tell of its recoveries."""
    from wirewise.recipes import swift_command
    from wirewise.report import shell
    from wirewise.report.recovery_page import recovery_timeline
    from wirewise.trials.start import expect_one_host

    if others := sorted(given.named - {"spares", "kills", "seed"}):
        raise InputError(
            f"--{others[0].replace('_', '-')} is of the built-in training; with a command expected --spares, --kills, "
            "--seed: the script says the rest"
        )
    expect_one_host(
        "run swift",
        "start `wirewise recover -- SCRIPT` on each host by srun --ntasks-per-node=1",
    )
    asked = given.record()
    kills = asked.kills if "kills" in given.named else 0
    with run_folder(out, "swift") as folder:
        found, killed = swift_command.run(
            command,
            folder,
            lambda text: print_text(text, err=json == "-"),
            spares=asked.spares,
            kills=kills,
            seed=asked.seed,
            limits=limits,
            changes=changes,
        )
        page = folder / "report.html"
        parts = [shell.head("wirewise run swift", f"{len(found)} recoveries"), recovery_timeline(found)]
        shell.write_page(shell.page("Recoveries", parts), page)
    record = {"strategy": asked.strategy, "kills": killed, "recoveries": msgspec.to_builtins(found)}
    record |= {"overhead": None, "goodput": None, "baseline_goodput": None}
    rows = [
        [str(one.rank), one.strategy, *(f"{value:.3f}" for value in one.phases_s.values())] for one in found
    ]
    phases = list(found[0].phases_s) if found else []
    write_out(json, record, (["rank", "strategy", *phases], rows), f"Report: {page}")


def _stopped_job(given: Given[FullGraphJob], out: Path | None, folder: Path) -> FullGraphJob:
    """The job of a stopped run, checked against the options that were given beside its folder."""
    from wirewise.recipes import resuming

    if out is not None and out.resolve() != folder.resolve():
        raise InputError(
            f"--out is {out} and --resume is {folder}; a run goes on in its own folder, leave --out away"
        )
    return resuming.read_job(
        folder, {name: given.values[name] for name in given.values if name in given.named}
    )


def _run(job: FullGraphJob, folder: Path, progress: TrainingProgress, *, resume: bool) -> RunResult:
    """Run the recipe; where that is stopped and checkpoints lie there, say how to go on."""
    from wirewise.recipes import adaqp as recipe

    try:
        return recipe.run(job, folder, progress, resume=resume)
    except PeerError as error:
        raise PeerError(f"{error}{_way_on(folder)}") from error
    except KeyboardInterrupt:
        print_text(f"wirewise: stopped{_way_on(folder)}", err=True)
        raise


def _way_on(folder: Path) -> str:
    if not (folder / "checkpoints").is_dir():
        return ""
    # Needs torch, which takes seconds to import.
    from wirewise.recipes import resuming

    if not resuming.can_continue(folder):
        return ""
    return f". Go on from the last checkpoint: wirewise run adaqp --resume {shlex.quote(str(folder))}"
