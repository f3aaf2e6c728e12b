"""`wirewise profile operators`: fused operators measured on this machine, and an estimator of their times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wirewise.cli.output import JsonOption, write_json
from wirewise.errors import InputError

__all__ = ["operators"]

_LEAST = 8


def operators(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File of weights (.npz), for plan fusion --graph.")
    ],
    samples: Annotated[
        Path, typer.Option(help="File that takes what was measured; what is in it already counts.")
    ] = Path("fused-operators.jsonl"),
    structures: Annotated[
        int, typer.Option(min=_LEAST, help="Fused operators to compile; each takes some seconds.")
    ] = 300,
    sizes: Annotated[int, typer.Option(min=2, help="Sizes at which each is measured.")] = 10,
    epochs: Annotated[int, typer.Option(min=1, help="Passes of training over what was measured.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the fused operators.")] = 0,
    json: JsonOption = None,
) -> None:
    """Fit the estimator of DisCo's search to this machine: compile random ones, measure, train.

    The weights that come with wirewise are trained on. A quarter of the structures is kept back to say how far
    the estimates are off.
    """
    from wirewise.planners.fusion.disco.estimator import shipped
    from wirewise.trials.operators import accuracy, collect, learn, read_samples, seen, split

    for found in collect(samples, seed=seed, structures=structures, sizes=sizes):
        if json != "-":
            typer.echo(
                f"{found[0].source}: {len(found[0].operators)} operators at {len(found)} sizes", err=True
            )
    known, kept = split(read_samples(samples))
    if not known or not kept:
        raise InputError(
            f"{samples} holds too few structures to learn and to test; ask for more --structures"
        )
    estimator = learn(known, epochs=epochs, start=shipped())
    tried = accuracy([estimator.seconds(seen(one)) for one in kept], kept)
    estimator.save(out)
    write_json(json, {"weights": str(out), "machine": estimator.about.machine, **tried._asdict()})
    if json != "-":
        typer.echo(
            f"Learned from {len(known)} fused operators on {estimator.about.machine}. Of {tried.samples} others of "
            f"unseen structures {tried.within_20:.0%} are predicted within 20 %, the median within "
            f"{tried.median:.0%}; rank correlation {tried.order:.3f}. Weights: {out}."
        )
