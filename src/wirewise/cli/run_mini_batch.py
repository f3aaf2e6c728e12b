"""`wirewise run salientpp`: mini-batch training over partitioned features, mode by mode."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise.cli.output import JsonOption, print_table, run_folder, write_json
from wirewise.cli.run_options import save_result, settings, words
from wirewise.errors import InputError
from wirewise.report.figures import seconds, size
from wirewise.results import MiniBatchRun

__all__ = ["salientpp"]


def salientpp(
    ctx: typer.Context,
    dataset: Annotated[
        str, typer.Option(help="Dataset name (`wirewise data list`) or path of an .npz file.")
    ] = "debian",
    workers: Annotated[int, typer.Option(help="Machines, a part of the features each.")] = 4,
    hosts: Annotated[int, typer.Option(help="Hosts of the lab; 0: one for each machine.")] = 0,
    link: Annotated[str, typer.Option(help="Rate of each host's link in the lab.")] = "100mbit",
    network: Annotated[
        str, typer.Option(help="lab, or loopback: processes of this machine, slowed by no link.")
    ] = "lab",
    topology: Annotated[
        str,
        typer.Option(help="replicated: all edges on every machine; partitioned: those of its own nodes."),
    ] = "replicated",
    device: Annotated[str, typer.Option(help="cpu or cuda: where batches are made and trained.")] = "cpu",
    processors: Annotated[
        str,
        typer.Option(
            help="shared: machines compute here; own: as if each had a processor, measured alone and slept (emulated)."
        ),
    ] = "shared",
    prefix: Annotated[
        float, typer.Option(help="Share of its own rows that a machine keeps on a CUDA device.")
    ] = 0.15,
    modes: Annotated[
        str, typer.Option(help="base, pipeline, cache, bf16, int8, gradients; the first is compared with.")
    ] = "base,pipeline,cache,int8,gradients",
    fanouts: Annotated[str, typer.Option(help="Neighbours of a node in each hop; -1: all.")] = "15,10,5",
    batch_size: Annotated[int, typer.Option(help="Seeds of a machine's batch.")] = 64,
    alpha: Annotated[float, typer.Option(help="Share of all nodes that the caches hold together.")] = 0.5,
    policy: Annotated[
        str,
        typer.Option(help="Of the cache, as of `wirewise plan cache`; others by comma are compared with it."),
    ] = "vip",
    share: Annotated[
        str,
        typer.Option(
            help="equal: each machine caches as many rows; balanced: the busiest link carries the fewest."
        ),
    ] = "equal",
    codec: Annotated[str, typer.Option(help="Of gradients, in the mode gradients.")] = "bf16",
    train_share: Annotated[float, typer.Option(help="Use so much of the training nodes.")] = 0.13,
    epochs: Annotated[int, typer.Option(help="Of every mode.")] = 3,
    hidden: Annotated[int, typer.Option(help="Width of the hidden rows.")] = 64,
    dropout: Annotated[float, typer.Option(help="Probability of dropping a hidden value.")] = 0.5,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 0.003,
    threads: Annotated[int, typer.Option(help="That sample, on each machine.")] = 1,
    tested: Annotated[int, typer.Option(help="Test nodes that are evaluated at most.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of partition, draws and weights.")] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent machine ends the job.")
    ] = 120.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of graph, plan, logs, result and report.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Mini-batch GNN training with cached remote features and a pipeline (SALIENT++), next to training without."""
    from wirewise.recipes import salientpp as recipe
    from wirewise.report.mini_batch_page import mini_batch_html

    policies = words(policy)
    one = policies[0] if policies else ""
    own = settings(ctx, recipe.Job, modes=words(modes), fanouts=_numbers(fanouts), policy=one)
    job = recipe.Job(**own, others=policies[1:])
    quiet = json == "-"
    with run_folder(out, "salientpp") as folder:
        found = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
        page = save_result(folder, found, mini_batch_html(found))
    write_json(json, msgspec.to_builtins(found))
    if not quiet:
        _show(found)
        typer.echo(f"Report: {page}")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as cause:
        raise InputError(f"--fanouts is {text!r}; expected numbers by comma, such as 15,10,5") from cause


def _show(found: MiniBatchRun) -> None:
    rows = [
        [
            name,
            seconds(one.epoch_s),
            f"{one.speedup:.2f}x",
            seconds(one.predicted_s),
            one.binding,
            str(one.remote_rows),
            f"{one.hit_rate:.0%}",
            size(one.bytes_sent + one.sampling_bytes),
            "" if one.accuracy is None else f"{100 * one.accuracy:.1f}",
        ]
        for name, one in found.modes.items()
    ]
    titles = ["mode", "epoch", "speed", "model", "binds", "rows an epoch", "cached", "sent", "accuracy %"]
    print_table(titles, rows)
    if found.processors == "own":
        typer.echo(
            "Training is emulated: its steps were timed while no other machine computed, and are slept."
        )
    typer.echo(f"The plan expects the cache to leave {found.predicted_remaining:.1%} of the remote rows.")
