"""Options that say which batches are drawn from which graph, and the problem that they are."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.graph import PARTITIONERS, GraphData, partition
from wirewise.graph.sampling.sampler import SEMANTICS, check_used_hops
from wirewise.planners.cache import CacheProblem

__all__ = ["Sampling", "sampling_problem"]


class Sampling(opt.Options, frozen=True, kw_only=True):
    """A graph in parts, and the batches that are drawn from it."""

    dataset: opt.Dataset = "debian"
    workers: Annotated[opt.Count, opt.about("Ranks, one part of the features each.")] = 4
    fanouts: Annotated[tuple[int, ...], opt.about("Neighbours of a node in each hop; -1: all.")] = (15, 10, 5)
    batch_size: Annotated[opt.Count, opt.about("Seeds of a rank's batch.")] = 64
    parts: Annotated[str, opt.about("Partitioner of the graph.", words=PARTITIONERS)] = "metis"
    semantics: Annotated[str, opt.about("Nodes that a hop expands.", words=SEMANTICS)] = "cumulative"
    train_share: Annotated[
        float, opt.about("Share of the training nodes that is used, drawn at random.", gt=0, le=1)
    ] = 1.0
    directed: Annotated[
        bool,
        opt.about(
            "Draws along edges as they are; otherwise in both directions.", option="--directed/--no-directed"
        ),
    ] = False
    seed: Annotated[opt.Seed, opt.about("Seed of partition and draws.")] = 0


def sampling_problem(graph: GraphData, asked: Sampling) -> CacheProblem:
    """The problem of a graph cut into parts, with the training nodes of each.

    Raises:
        InputError: A hop of no neighbours, or a graph without training nodes.
    """
    check_used_hops(asked.fanouts, "--fanouts")
    owner = np.zeros(graph.num_nodes, np.int64)
    if asked.workers > 1:
        owner = partition(graph, asked.workers, method=asked.parts, seed=asked.seed).astype(np.int64)
    train = np.flatnonzero(graph.split == 0)
    if asked.train_share < 1:
        train = np.random.default_rng(asked.seed).choice(
            train, max(int(asked.train_share * len(train)), 1), replace=False
        )
    if not len(train):
        raise InputError(f"{graph.name} has no training nodes; expected some with split 0")
    return CacheProblem(
        # Which rows are needed depends on who is whose neighbour, not on what edges carry.
        edges=graph.in_edges.without_data(),
        owner=owner,
        train=tuple(np.sort(train[owner[train] == machine]) for machine in range(asked.workers)),
        batch_size=asked.batch_size,
        fanouts=asked.fanouts,
        semantics=asked.semantics,
        seed=asked.seed,
    )
