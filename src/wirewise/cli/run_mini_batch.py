"""`wirewise run salientpp`: mini-batch training over partitioned features, mode by mode."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from wirewise.cli.output import JsonOption, print_table, write_json
from wirewise.errors import InputError
from wirewise.report.figures import seconds, size

__all__ = ["salientpp"]


def salientpp(
    dataset: Annotated[
        str, typer.Option(help="Dataset name (`wirewise data list`) or path of an .npz file.")
    ] = "debian",
    workers: Annotated[
        int, typer.Option(help="Machines, a host of the lab and a part of the features each.")
    ] = 4,
    link: Annotated[str, typer.Option(help="Rate of each host's link in the lab.")] = "100mbit",
    modes: Annotated[
        str, typer.Option(help="base, pipeline, cache, bf16, int8; the first is compared with.")
    ] = "base,pipeline,cache,int8",
    fanouts: Annotated[str, typer.Option(help="Neighbours of a node in each hop.")] = "15,10,5",
    batch_size: Annotated[int, typer.Option(help="Seeds of a machine's batch.")] = 64,
    alpha: Annotated[float, typer.Option(help="Share of all nodes that the caches hold together.")] = 0.5,
    policy: Annotated[str, typer.Option(help="Of the cache, as of `wirewise plan cache`.")] = "vip",
    train_share: Annotated[float, typer.Option(help="Use so much of the training nodes.")] = 0.13,
    epochs: Annotated[int, typer.Option(help="Of every mode.")] = 3,
    hidden: Annotated[int, typer.Option(help="Width of the hidden rows.")] = 64,
    threads: Annotated[int, typer.Option(help="That sample, on each machine.")] = 1,
    seed: Annotated[int, typer.Option(help="Of partition, draws and weights.")] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which a silent machine ends the job.")
    ] = 120.0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of graph, plan, logs and result.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Mini-batch GNN training with cached remote features and a pipeline (SALIENT++), next to training without."""
    from wirewise.files import atomic_file, make_folder
    from wirewise.recipes import salientpp as recipe

    try:
        hops = tuple(int(word) for word in fanouts.split(","))
    except ValueError as cause:
        raise InputError(f"--fanouts is {fanouts!r}; expected numbers by comma, such as 15,10,5") from cause
    job = recipe.Job(
        dataset=dataset,
        workers=workers,
        link=link,
        modes=tuple(word.strip() for word in modes.split(",") if word.strip()),
        fanouts=hops,
        batch_size=batch_size,
        alpha=alpha,
        policy=policy,
        train_share=train_share,
        epochs=epochs,
        hidden=hidden,
        threads=threads,
        seed=seed,
        timeout_s=timeout,
    )
    folder = make_folder(out or Path("runs") / f"salientpp-{datetime.datetime.now():%Y%m%d-%H%M%S}")
    quiet = json == "-"
    found = recipe.run(job, folder, lambda text: typer.echo(text, err=quiet))
    with atomic_file(folder / "result.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(found)))
    write_json(json, msgspec.to_builtins(found))
    if quiet:
        return
    rows = [
        [
            name,
            seconds(one.epoch_s),
            f"{one.speedup:.2f}x",
            str(one.remote_rows),
            size(one.bytes_sent),
            f"{100 * one.accuracy:.1f}",
            max(one.stage_s, key=lambda stage: one.stage_s[stage]),
        ]
        for name, one in found.modes.items()
    ]
    print_table(["mode", "epoch", "speed", "rows an epoch", "sent", "accuracy %", "longest stage"], rows)
    typer.echo(
        f"The plan expects the cache to leave {found.predicted_remaining:.1%} of the remote rows. "
        f"Result: {folder / 'result.json'}"
    )
