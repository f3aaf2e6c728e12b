"""Options that say which tasks are placed: those of a file, or those of training on a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from wirewise.cli.plan_cache import numbers, sampling_problem
from wirewise.errors import InputError
from wirewise.graph import load
from wirewise.planners.placement import from_graph
from wirewise.trace.tasks import TaskSet, read_tasks

__all__ = [
    "BatchSizeOption",
    "DatasetOption",
    "FanoutsOption",
    "HiddenOption",
    "IterationsOption",
    "JobOption",
    "PartsOption",
    "RoomOption",
    "SamplerSecondsOption",
    "SamplersOption",
    "ServersOption",
    "VolumesOption",
    "WorkerSecondsOption",
    "WorkersOption",
    "chosen_tasks",
]

_FLOAT_BYTES = 4
_OF_TASKS = (
    "workers_per_host",
    "samplers",
    "servers",
    "room",
    "iterations",
    "sampler_s",
    "worker_s",
    "volumes",
)
_EXPECTED = ("fanouts", "batch_size", "hidden", "parts", *_OF_TASKS)
"""Options that only a dataset has a use for."""

JobOption = Annotated[
    Path | None, typer.Option(help="JSON of tasks, flows and times; or give --dataset.", show_default=False)
]
DatasetOption = Annotated[
    str | None, typer.Option(help="Place training on this dataset (name or .npz file).", show_default=False)
]
FanoutsOption = Annotated[str, typer.Option(help="With --dataset: neighbours of a node in each hop.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="With --dataset: seeds of a worker's batch.")]
WorkersOption = Annotated[int, typer.Option(min=1, help="With --dataset: workers that start on a host.")]
SamplersOption = Annotated[int, typer.Option(min=1, help="With --dataset: samplers of each worker.")]
ServersOption = Annotated[int, typer.Option(min=1, help="With --dataset: parameter servers.")]
RoomOption = Annotated[
    int | None,
    typer.Option(min=1, help="With --dataset: workers that fit a host; one more than there are."),
]
HiddenOption = Annotated[int, typer.Option(min=1, help="With --dataset: width of hidden rows.")]
IterationsOption = Annotated[int, typer.Option(min=1, help="With --dataset: iterations of the job.")]
SamplerSecondsOption = Annotated[float, typer.Option(min=0, help="With --dataset: seconds to sample.")]
WorkerSecondsOption = Annotated[float, typer.Option(min=0, help="With --dataset: seconds to train a batch.")]
PartsOption = Annotated[str, typer.Option(help="With --dataset: partitioner.")]
VolumesOption = Annotated[
    str,
    typer.Option(help="With --dataset: drawn (the first batches) or expected (by inclusion probability)."),
]


def chosen_tasks(ctx: typer.Context, hosts: Sequence[str]) -> TaskSet:
    """Tasks of --job, or those that training on --dataset has on the hosts.

    Args:
        ctx: Call of a command that has all options of this module, and --seed.
        hosts: Names.

    Raises:
        InputError: Neither or both are given, or a file cannot be used; an option of --dataset beside --job is named.
    """
    job, dataset = ctx.params["job"], ctx.params["dataset"]
    if (job is None) == (dataset is None):
        raise InputError("give --job FILE with tasks and flows, or --dataset NAME to expect them; not both")
    if job is None:
        return _expected(dataset, hosts, ctx.params)
    for name in _EXPECTED:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} is for --dataset, and --job says all of its tasks; leave {option} away"
            )
    return read_tasks(job)


def _expected(dataset: str, hosts: Sequence[str], given: dict[str, Any]) -> TaskSet:
    """Tasks that train on a dataset cut into a part for each host."""
    fanouts, seed = numbers("--fanouts", given["fanouts"], int), given["seed"]
    graph = load(dataset, seed=seed)
    graph = graph.undirected() if graph.directed else graph
    sampled = sampling_problem(
        graph, len(hosts), given["parts"], fanouts, given["batch_size"], "cumulative", 1.0, seed
    )
    widths = [graph.num_features, *[given["hidden"]] * (len(fanouts) - 1), graph.num_classes]
    return from_graph(
        sampled,
        hosts,
        row_bytes=_FLOAT_BYTES * (graph.num_features + 1),
        # Each layer of GraphSAGE has a matrix for a node and one for its neighbours.
        model_bytes=_FLOAT_BYTES * sum(2 * a * b for a, b in pairwise(widths)),
        **{name: given[name] for name in _OF_TASKS},
    )
