"""SALIENT++: mini-batch training over partitioned features, with a cache by inclusion probability and a pipeline.

T. Kaler, A.-S. Iliopoulos, P. Murzynowski, T. B. Schardl, C. E. Leiserson, J. Chen: Communication-Efficient Graph
Neural Networks with Probabilistic Neighborhood Expansion Analysis and Caching, MLSys 2023. Every machine has the graph,
or the edges of its own nodes, and a part of the features; modes train one after another on the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from wirewise import plans
from wirewise.errors import InputError, PeerError
from wirewise.files import atomic_file, owns_folder, write_json
from wirewise.graph import GraphData, choose_method, load, partition, write_mapped
from wirewise.graph.mapped import watch
from wirewise.graph.partition import AUTO
from wirewise.graph.ranges import Ranges, ranges_of
from wirewise.graph.sampling.sampler import check_edges
from wirewise.planners import cache
from wirewise.planners.cache import CacheProblem
from wirewise.planners.cache.inclusion import inclusion
from wirewise.plans import CachePlan
from wirewise.runtime import full_graph
from wirewise.trials.start import JOB, choose_network, open_network, run_ranks
from wirewise_papers.salientpp.job import MODES, MiniBatchJob, Mode
from wirewise_papers.salientpp.records import MiniBatchRun

__all__ = ["ALPHAS", "MODES", "PLANNED", "MiniBatchJob", "Mode", "run"]

PLANNED = "planned.json"
"""File with the planning time of the cache, in seconds."""
ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Cache sizes at which policies are compared, as fractions of all nodes."""


@owns_folder
def run(job: MiniBatchJob, folder: Path, log: Callable[[str], None]) -> MiniBatchRun:
    """Partition the graph, plan the cache, and train every mode, one machine per lab host or all on loopback.

    Args:
        job: Settings of the run.
        folder: Folder for the graph, plan, logs and result.
        log: Called with progress messages.

    Raises:
        LabError: No lab can be built here.
        InputError: The graph or a setting is invalid, the device does not exist, or a file of the graph was changed.
        PeerError: A machine failed; the message quotes the end of its output.
    """
    _check_device(job.device)
    chosen, notes = choose_network(job.network, loopback=False)
    job = msgspec.structs.replace(job, network=chosen)
    for note in notes:
        log(note)
    log(f"cutting {job.dataset} into {job.workers} parts and planning the cache")
    prepare(job, folder)
    hosts, worker = job.hosts or job.workers, "wirewise_papers.salientpp.worker"
    with open_network(job.network, hosts, job.link) as network:
        unchanged = watch(folder / "graph")
        try:
            return run_ranks(worker, folder, MiniBatchRun, network=network, ranks=job.workers, log=log)
        except PeerError:
            # A machine that reads a page which is gone from a file ends by a signal, and has no last words.
            unchanged()
            raise


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device is {device!r}, and PyTorch {torch.__version__} finds no CUDA device here; choose 'cpu', or run "
            "where `wirewise doctor` lists one"
        )


def prepare(job: MiniBatchJob, folder: Path) -> None:
    """Write the renumbered graph, the training nodes and the cache plan."""
    graph = load(job.dataset, seed=job.seed)
    graph = graph.undirected() if graph.directed else graph
    check_edges(graph.in_edges)
    owner = np.zeros(graph.num_nodes, np.int64)
    if job.workers > 1:
        method = job.partition
        if method == AUTO:
            method = "stream" if choose_method(graph).method == "stream" else "metis"
        owner = partition(graph, job.workers, method=method, seed=job.seed).astype(np.int64)
    train, test = _chosen(job, graph)
    ranges = _ordered(job, graph, owner, train)
    graph = write_mapped(graph, folder / "graph", ranges=ranges)
    train, test = (np.sort(ranges.new[nodes]) for nodes in (train, test))
    problem = _problem(job, graph, ranges.owner, train)
    _check_memory(graph.num_features, _plan(job, problem, folder))
    with atomic_file(folder / "nodes.npz") as file:
        np.savez(file, offsets=ranges.offsets, train=train, test=test)
    write_json(folder / JOB, job)


def _check_memory(features: int, plan: CachePlan) -> None:
    """Raise InputError where own and cached rows of all machines, which are on this computer, do not fit."""
    cached = sum(len(machine.ids) for machine in plan.machines)
    needed = 4 * features * (plan.num_nodes + cached)
    if needed > (available := full_graph.available_bytes()):
        raise InputError(
            f"{plan.num_nodes} own and {cached} cached rows of {features} features take {needed} bytes, and "
            f"{available} are free; choose a smaller alpha or graph"
        )


def _plan(job: MiniBatchJob, problem: CacheProblem, folder: Path) -> CachePlan:
    """Write the cache plan, what it took, and what other policies and alphas would leave to fetch."""
    chosen, others = job.policies[:1], job.policies[1:]
    alphas = tuple({*ALPHAS, job.alpha})
    start_s = time.perf_counter()
    found = cache.plans(problem, alphas, chosen, share=job.share)
    write_json(folder / PLANNED, time.perf_counter() - start_s)
    if others:
        found |= cache.plans(problem, alphas, others, share=job.share)
    plan = found[job.policies[0]][job.alpha]
    plans.save(plan, folder / "plan.json")
    left = {
        name: {f"{alpha:g}": by_alpha[alpha].remote_fraction for alpha in sorted(by_alpha)}
        for name, by_alpha in found.items()
    }
    write_json(folder / "policies.json", left)
    return plan


def _chosen(job: MiniBatchJob, graph: GraphData) -> tuple[np.ndarray, np.ndarray]:
    """Training and test nodes that are used; drawn before nodes are renumbered, so the same for all machines."""
    train, test = (np.flatnonzero(graph.split == part) for part in (0, 2))
    if not len(train):
        raise InputError(f"{graph.name} has no training nodes; expected some with split 0")
    used = max(int(job.train_share * len(train)), 1)
    tested = min(len(test), job.tested)
    train, test = (
        np.random.default_rng(job.seed).choice(nodes, count, replace=False)
        for nodes, count in ((train, used), (test, tested))
    )
    return train, test


def _ordered(job: MiniBatchJob, graph: GraphData, owner: np.ndarray, train: np.ndarray) -> Ranges:
    """Each machine's nodes in a range, those first that its batches need most."""
    before = _problem(job, graph, owner, train)
    scores = [
        inclusion(before.drawers, before.seed_probabilities[machine], job.fanouts, hop_zero=True)
        for machine in range(job.workers)
    ]
    return ranges_of(owner, scores)


def _problem(job: MiniBatchJob, graph: GraphData, owner: np.ndarray, train: np.ndarray) -> CacheProblem:
    return CacheProblem(
        edges=graph.in_edges,
        owner=owner,
        train=tuple(train[owner[train] == machine] for machine in range(job.workers)),
        batch_size=job.batch_size,
        fanouts=job.fanouts,
        seed=job.seed,
    )
