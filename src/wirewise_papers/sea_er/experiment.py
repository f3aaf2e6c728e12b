"""SEA-ER: continual learning on a growing graph with rehearsal of old nodes, compared with other methods.

J. Su, D. Zou, C. Wu: On the Limitation and Experience Replay for GNNs in Continual Learning, CoLLAs 2024. Composes
`graph.rehearsal` (tasks, nodes that are kept, their weights) and `runtime.incremental` (learners). With several
workers each trains on its part of the nodes and keeps some of them: `-m wirewise_papers.sea_er.experiment FOLDER` is
one of them, which reads what `run` wrote, and rank 0 writes FOLDER/outcome.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from wirewise import options as opt
from wirewise.files import atomic_file, owns_folder
from wirewise.graph import load, partition, read_graph, write_graph
from wirewise.graph.rehearsal import GrowingGraph, growing_graph, record_of
from wirewise.runtime.incremental import Peers, train
from wirewise.trials.rank import Rank, main
from wirewise.trials.start import choose_network, open_network, run_ranks
from wirewise_papers.sea_er.job import DEFAULT_METHODS, IncrementalJob
from wirewise_papers.sea_er.records import IncrementalRun

__all__ = ["DEFAULT_METHODS", "IncrementalJob", "build_tasks", "learn", "run"]


@owns_folder
def run(job: IncrementalJob, folder: Path, log: Callable[[str], None]) -> IncrementalRun:
    """Learn all tasks with every method, in this process or by workers on this machine or in an allocation.

    Args:
        job: Settings of the run.
        folder: Folder for the graph and the logs of workers.
        log: Called with progress messages.

    Raises:
        InputError: The graph or a setting is invalid, or an allocation has too few hosts.
        PeerError: A worker failed; the message quotes the end of its output.
    """
    if job.workers == 1:
        torch.set_num_threads(1)
        return learn(job, build_tasks(job, None), Peers(), log)
    build_tasks(job, None)
    graph = load(job.dataset, seed=job.settings.seed)
    graph = graph.undirected() if graph.directed else graph
    owner = partition(graph, job.workers, method="metis", seed=job.settings.seed)
    write_graph(graph, folder / "graph.npz")
    with atomic_file(folder / "owner.npy") as file:
        np.save(file, owner.astype(np.int64))
    chosen, notes = choose_network(job.network, shaped=False)
    for note in notes:
        log(note)
    with open_network(chosen, job.hosts, link="") as network:
        opt.check_spread(job.workers, network.num_hosts)
        job = msgspec.structs.replace(job, network=chosen, hosts=network.num_hosts)
        worker, ranks = "wirewise_papers.sea_er.experiment", job.workers
        return run_ranks(worker, folder, IncrementalRun, network=network, ranks=ranks, job=job, log=log)


def build_tasks(job: IncrementalJob, folder: Path | None) -> GrowingGraph:
    """Build the tasks from the dataset or from the graph that `run` wrote."""
    seed = job.settings.seed
    return growing_graph(
        load(job.dataset, seed=seed) if folder is None else read_graph(folder / "graph.npz"),
        classes_per_task=job.classes_per_task,
        fewest=job.fewest,
        growth=job.growth,
        most_tasks=job.most_tasks,
        seed=seed,
    )


def learn(
    job: IncrementalJob, growing_graph: GrowingGraph, peers: Peers, log: Callable[[str], None]
) -> IncrementalRun:
    """Learn all tasks with every method; identical on all ranks except for times."""
    seconds = dict.fromkeys(job.methods, 0.0)
    done: dict[str, float] = {}

    def on_task(task: int, name: str, accuracies: list[float], taken_s: float) -> None:
        seconds[name] += taken_s
        done[name] = sum(accuracies) / len(accuracies)
        if name == job.methods[-1]:
            shown = ", ".join(f"{method} {100 * ap:.1f}" for method, ap in done.items())
            log(f"task {task + 1} of {len(growing_graph.tasks)}, AP in %: {shown}")

    found = train(growing_graph, job.methods, job.settings, on_task, peers)
    several = peers.world_size > 1
    return IncrementalRun(
        network="slurm" if several and job.network == "slurm" else "loopback",
        hosts=job.hosts if several and job.hosts else 1,
        dataset=job.dataset,
        setting=job.settings.setting,
        growth=job.growth,
        tasks=len(growing_graph.tasks),
        classes_per_task=job.classes_per_task,
        budget=job.settings.budget,
        workers=job.workers,
        seed=job.settings.seed,
        methods={name: record_of(accuracy, seconds[name]) for name, accuracy in found.items()},
    )


def _work(rank: Rank[IncrementalJob]) -> None:
    peers = Peers(np.load(rank.folder / "owner.npy"), rank.transport)
    rank.outcome(learn(rank.job, build_tasks(rank.job, rank.folder), peers, rank.log))


if __name__ == "__main__":
    main(IncrementalJob, _work, sys.argv[1])
