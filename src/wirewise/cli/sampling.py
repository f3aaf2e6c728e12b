"""Options for the batches sampled from a graph, and for the tasks of that training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from wirewise import options as opt
from wirewise.cli.options import GivenOptions
from wirewise.codec.row_formats import exact_format
from wirewise.errors import InputError
from wirewise.graph import PARTITIONERS, GraphData, load, partition
from wirewise.graph.sampling.sampler import SEMANTICS, check_used_hops
from wirewise.planners.cache import CacheProblem
from wirewise.planners.placement import from_graph
from wirewise.trace.tasks import TaskSet, read_tasks

__all__ = ["Sampling", "Tasks", "chosen_tasks", "sampling_problem"]

_FANOUTS, _FLOAT_BYTES, _ID_BYTES = (15, 10, 5), 4, 4


class Sampling(opt.Options, frozen=True, kw_only=True):
    """Partitioned graph, and how batches are sampled from it."""

    dataset: opt.Dataset = "debian"
    workers: Annotated[opt.Count, opt.about("Ranks, one part of the features each.")] = 4
    fanouts: Annotated[tuple[int, ...], opt.about("Fanout of each hop; -1: all neighbours.")] = _FANOUTS
    batch_size: Annotated[opt.Count, opt.about("Batch size of a rank, in seed nodes.")] = 64
    parts: Annotated[str, opt.about("Partitioner of the graph.", words=PARTITIONERS)] = "metis"
    semantics: Annotated[str, opt.about("Nodes that a hop expands.", words=SEMANTICS)] = "cumulative"
    train_share: Annotated[
        float, opt.about("Fraction of the training nodes to use, sampled at random.", gt=0, le=1)
    ] = 1.0
    directed: Annotated[
        bool,
        opt.about(
            "Sample along edges as stored; otherwise in both directions.", option="--directed/--no-directed"
        ),
    ] = False
    seed: Annotated[opt.Seed, opt.about("Seed of partition and sampling.")] = 0


def sampling_problem(graph: GraphData, options: Sampling) -> CacheProblem:
    """Build the cache problem of a partitioned graph, with the training nodes of each part.

    Raises:
        InputError: A hop samples no neighbours, or the graph has no training nodes.
    """
    check_used_hops(options.fanouts, "--fanouts")
    owner = np.zeros(graph.num_nodes, np.int64)
    if options.workers > 1:
        owner = partition(graph, options.workers, method=options.parts, seed=options.seed).astype(np.int64)
    train = np.flatnonzero(graph.split == 0)
    if options.train_share < 1:
        train = np.random.default_rng(options.seed).choice(
            train, max(int(options.train_share * len(train)), 1), replace=False
        )
    if not len(train):
        raise InputError(f"{graph.name} has no training nodes; expected some with split 0")
    return CacheProblem(
        # Which rows are needed depends on who is whose neighbour, not on what edges carry.
        edges=graph.in_edges.without_data(),
        owner=owner,
        train=tuple(np.sort(train[owner[train] == machine]) for machine in range(options.workers)),
        batch_size=options.batch_size,
        fanouts=options.fanouts,
        semantics=options.semantics,
        seed=options.seed,
    )


class Tasks(opt.Options, frozen=True, kw_only=True):
    """Tasks from a file, or the dataset and training that define them; all options but `job` are for a dataset."""

    job: Annotated[Path | None, opt.about("JSON of tasks, flows and times, instead of --dataset.")] = None
    dataset: Annotated[str | None, opt.about("Dataset (name or .npz file) whose training is placed.")] = None
    fanouts: Annotated[tuple[int, ...], opt.about("Fanout of each hop (--dataset).")] = _FANOUTS
    batch_size: Annotated[opt.Count, opt.about("Batch size of a worker, in seed nodes (--dataset).")] = 64
    workers_per_host: Annotated[opt.Count, opt.about("Workers that start on a host (--dataset).")] = 1
    samplers: Annotated[opt.Count, opt.about("Samplers of each worker (--dataset).")] = 2
    servers: Annotated[opt.Count, opt.about("Parameter servers (--dataset).")] = 1
    room: Annotated[
        opt.Count | None,
        opt.about("Workers that fit a host, by default one more than start on it (--dataset)."),
    ] = None
    hidden: Annotated[opt.Count, opt.about("Hidden width of the model (--dataset).")] = 256
    iterations: Annotated[opt.Count, opt.about("Iterations of the job (--dataset).")] = 8
    sampler_s: Annotated[float, opt.about("Seconds of sampling a batch (--dataset).", ge=0)] = 0.005
    worker_s: Annotated[float, opt.about("Seconds of training on a batch (--dataset).", ge=0)] = 0.02
    row_format: Annotated[
        Literal["smallest", "dense"],
        opt.about("Rows travel in the smallest exact format, or with all their values (--dataset)."),
    ] = "smallest"
    parts: Annotated[str, opt.about("Partitioner of the graph (--dataset).", words=PARTITIONERS)] = "metis"
    volumes: Annotated[
        Literal["drawn", "expected"],
        opt.about("Bytes: drawn, of the first batches; expected, by inclusion probability (--dataset)."),
    ] = "drawn"


def chosen_tasks(cli_options: GivenOptions[Tasks], hosts: Sequence[str], seed: int) -> TaskSet:
    """Read the tasks from --job, or derive those of training on --dataset with these hosts.

    Args:
        cli_options: Options that were given.
        hosts: Name of each host.
        seed: Seed of graph, partition and sampling.

    Raises:
        InputError: Neither or both were given, a file is unusable, or an option of --dataset was given with --job.
    """
    asked = cli_options.record()
    if (asked.job is None) == (asked.dataset is None):
        raise InputError("give --job FILE with tasks and flows, or --dataset NAME to expect them; not both")
    if asked.job is None:
        return _expected(asked, hosts, seed)
    for name in asked.__struct_fields__:
        if name in cli_options.named and name != "job":
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} is for --dataset, and --job says all of its tasks; leave {option} away"
            )
    return read_tasks(asked.job)


def _expected(options: Tasks, hosts: Sequence[str], seed: int) -> TaskSet:
    """Tasks that train on a dataset cut into a part for each host."""
    graph = load(options.dataset or "", seed=seed)
    graph = graph.undirected() if graph.directed else graph
    training = Sampling(
        workers=len(hosts),
        fanouts=options.fanouts,
        batch_size=options.batch_size,
        parts=options.parts,
        seed=seed,
    )
    sampled = sampling_problem(graph, training)
    widths = [graph.num_features, *[options.hidden] * (len(options.fanouts) - 1), graph.num_classes]
    dense = _FLOAT_BYTES * graph.num_features
    row_bytes = dense if options.row_format == "dense" else exact_format(graph.x)[1]
    return from_graph(
        sampled,
        hosts,
        row_bytes=row_bytes + _ID_BYTES,
        # Each layer of GraphSAGE has a matrix for a node and one for its neighbours.
        model_bytes=_FLOAT_BYTES * sum(2 * a * b for a, b in pairwise(widths)),
        workers_per_host=options.workers_per_host,
        samplers=options.samplers,
        servers=options.servers,
        iterations=options.iterations,
        sampler_s=options.sampler_s,
        worker_s=options.worker_s,
        room=options.room,
        volumes=options.volumes,
    )
