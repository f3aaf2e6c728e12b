"""`wirewise run cupcake`: plans of compressed gradients, measured next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wirewise.cli.output import JsonOption, print_table, run_folder, write_json
from wirewise.cli.run_options import save_result, settings, words
from wirewise.report.figures import seconds, size

if TYPE_CHECKING:
    from wirewise.results import CompressionRun

__all__ = ["cupcake"]


def cupcake(
    ctx: typer.Context,
    trace: Annotated[Path, typer.Option(help="JSON with name, elements and gap_us of each gradient.")],
    hosts: Annotated[int, typer.Option(help="Of the lab, a rank on each.")] = 4,
    link: Annotated[str, typer.Option(help="Rate of each host's link in the lab.")] = "100mbit",
    plans: Annotated[
        str,
        typer.Option(
            help="cupcake, layer-wise, even:K, bucket:MIB, mg-wfbp, mergecomp; one codec for all groups by its name "
            "before it, such as none:bucket:25."
        ),
    ] = "cupcake,layer-wise,none:bucket:25",
    codec: Annotated[
        str, typer.Option(help="Of plans that name none: a codec, none, or auto: fp16, topk, efsign or none.")
    ] = "auto",
    ratio: Annotated[float, typer.Option(help="Share of the values that sparse codecs keep.")] = 0.01,
    least_gain: Annotated[
        float,
        typer.Option(help="Share of a step that codecs must save; else cupcake takes none."),
    ] = 0.03,
    trials: Annotated[
        int,
        typer.Option(
            help="Windows in which cupcake tries its plans with each codec before it chooses; 0: as predicted."
        ),
    ] = 2,
    split: Annotated[
        str,
        typer.Option(
            help="Of cupcake: larger tensors travel in pieces of at most this size, such as 16MiB; none; or auto: if "
            "the step is predicted to gain 2 %."
        ),
    ] = "auto",
    steps: Annotated[int, typer.Option(help="Measured in each window of a plan.")] = 7,
    rounds: Annotated[int, typer.Option(help="Windows of each plan; plans take turns.")] = 2,
    scale: Annotated[
        int, typer.Option(help="Divides the elements of each gradient, for short runs; not buckets.")
    ] = 1,
    forward_share: Annotated[
        float, typer.Option(help="Forward pass over back-propagation, which traces do not say.")
    ] = 0.5,
    timeout: Annotated[float, typer.Option(help="Seconds after which a silent rank ends the job.")] = 120.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of measured costs, logs, result and report.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Measure codecs and links, plan compressed groups of gradients, and time the plans in turns (Cupcake)."""
    from wirewise.recipes import cupcake as recipe
    from wirewise.report.gradients_page import gradients_html

    job = recipe.make_job(**settings(ctx, recipe.Job, plans=words(plans), splits=split))
    quiet = json == "-"
    with run_folder(out, "cupcake") as folder:
        result = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, result, gradients_html(result))
    write_json(json, msgspec.to_builtins(result))
    if not quiet:
        _tell(result)
        typer.echo(f"Report: {page}")


def _tell(result: CompressionRun) -> None:
    rows = [
        [
            name,
            seconds(plan.step_s),
            seconds(plan.predicted_step_s),
            f"{plan.error:+.1%}",
            str(len(plan.groups)),
            size(plan.payload_bytes),
            "-" if plan.bytes_sent is None else size(plan.bytes_sent),
        ]
        for name, plan in result.plans.items()
    ]
    print_table(["plan", "step", "predicted", "error", "groups", "payload a step", "sent a step"], rows)
    typer.echo(f"{result.fastest} is the fastest ({result.emulated}).")
