"""SALIENT++: mini-batch training over partitioned features, with a cache by inclusion probability and a pipeline.

T. Kaler, A.-S. Iliopoulos, P. Murzynowski, T. B. Schardl, C. E. Leiserson, J. Chen: Communication-Efficient Graph
Neural Networks with Probabilistic Neighborhood Expansion Analysis and Caching, MLSys 2023. Every machine has the graph,
or the edges of its own nodes, and a part of the features; modes train one after another on the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast, get_args

import msgspec
import numpy as np
import torch

from wirewise import plans, units
from wirewise.codec.gradients import make
from wirewise.errors import InputError
from wirewise.files import atomic_file, make_folder, owns_folder
from wirewise.graph import GraphData, load, partition, write_graph
from wirewise.graph.ranges import Ranges, ranges_of
from wirewise.graph.sampling.sampler import check_edges, check_hops, check_used_hops
from wirewise.planners import cache
from wirewise.planners.cache import POLICIES, CacheProblem, Share
from wirewise.planners.cache.inclusion import inclusion
from wirewise.plans import CachePlan
from wirewise.recipes.launch import in_lab, on_loopback
from wirewise.results import MiniBatchRun
from wirewise.runtime import full_graph

__all__ = ["ALPHAS", "DEVICES", "MODES", "NETWORKS", "PROCESSORS", "TOPOLOGIES", "Job", "Mode", "run"]

TOPOLOGIES = ("replicated", "partitioned")
"""Whether a machine has the edges of all nodes, or of its own ones only and asks others hop by hop."""
DEVICES = ("cpu", "cuda")
"""Where batches are made and trained."""
PROCESSORS = ("shared", "own")
"""Whether machines compute on the processors of this computer, or as if each had one of its own: what a step computes
is measured while no other machine computes, and then slept (emulated)."""
NETWORKS = ("lab", "loopback")
"""Hosts with shaped links, or processes of this machine that no link slows."""


class Mode(NamedTuple):
    """What a mode does."""

    depth: int
    """Batches that are made ahead."""
    cached: bool
    bits: int
    """Of a value of a fetched row."""
    compressed: bool = False
    """Whether gradients travel by a codec."""


MODES = {
    "base": Mode(0, False, 32),
    "pipeline": Mode(4, False, 32),
    "cache": Mode(4, True, 32),
    "bf16": Mode(4, True, 16),
    "int8": Mode(4, True, 8),
    "gradients": Mode(4, True, 8, compressed=True),
}
"""From fetching what each batch lacks, when it is asked for, to quantized rows beside a cache in a pipeline, with
compressed gradients at last."""
ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
"""At which policies are compared."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the workers of one run must know."""

    dataset: str = "debian"
    workers: int = 4
    hosts: int = 0
    """Of the lab; 0: one for each worker."""
    link: str = "100mbit"
    network: str = "lab"
    topology: str = "replicated"
    device: str = "cpu"
    processors: str = "shared"
    prefix: float = 0.15
    """Share of its own rows that a machine keeps on its device, where that is not the processor."""
    modes: tuple[str, ...] = ("base", "pipeline", "cache", "int8", "gradients")
    fanouts: tuple[int, ...] = (15, 10, 5)
    batch_size: int = 64
    alpha: float = 0.5
    policy: str = "vip"
    share: str = "equal"
    """How machines divide the cached rows: each as many, or so that the busiest link carries the fewest."""
    others: tuple[str, ...] = ()
    """Policies that `policy` is compared with, by the rows that they leave."""
    codec: str = "bf16"
    """Of gradients, in the mode that compresses them."""
    train_share: float = 0.13
    """Of the training nodes."""
    epochs: int = 3
    hidden: int = 64
    dropout: float = 0.5
    learning_rate: float = 0.003
    step_s: float = 0.0
    """Slept in each step as an accelerator would compute, beside what the network computes here: emulated."""
    threads: int = 1
    tested: int = 2000
    """Test nodes that are evaluated at most: their rows travel over the same links."""
    seed: int = 0
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Check what nothing below checks, before workers are started.

        Raises:
            InputError: A value that cannot be used.
        """
        for name in ("workers", "batch_size", "epochs", "hidden", "threads", "tested"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not self.modes or (unknown := [name for name in self.modes if name not in MODES]):
            named = repr(unknown[0]) if self.modes else "none"
            raise InputError(f"mode {named} is unknown; expected some of: {', '.join(MODES)}")
        if unknown := [name for name in (self.policy, *self.others) if name not in POLICIES]:
            raise InputError(
                f"cache policy {unknown[0]!r} is unknown; expected some of: {', '.join(POLICIES)}"
            )
        for name, known in (
            ("topology", TOPOLOGIES),
            ("device", DEVICES),
            ("processors", PROCESSORS),
            ("share", get_args(Share)),
            ("network", NETWORKS),
        ):
            if (value := getattr(self, name)) not in known:
                raise InputError(f"{name} is {value!r}; expected one of: {', '.join(known)}")
        if self.device == "cuda" and self.processors == "own":
            raise InputError("processors of their own are emulated on device 'cpu'; got device 'cuda'")
        if self.topology == "partitioned" and self.threads > 1:
            raise InputError(
                f"{self.threads} threads cannot sample a partitioned topology, whose machines draw together; expected 1"
            )
        if self.hosts < 0 or self.workers % (self.hosts or self.workers):
            raise InputError(
                f"{self.workers} workers cannot be spread evenly over {self.hosts} hosts; choose a number of workers "
                "that is a multiple of the hosts"
            )
        check_hops(self.fanouts, "cumulative")
        check_used_hops(self.fanouts, "--fanouts")
        make(self.codec)
        if not 0 <= self.alpha < float("inf"):
            raise InputError(
                f"alpha is {self.alpha}; expected the share of all nodes that caches hold, at least 0"
            )
        for name in ("learning_rate", "timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; expected a finite number above 0")
        if not 0 <= self.step_s < float("inf"):
            raise InputError(f"step_s is {self.step_s}; expected a finite number of seconds, at least 0")
        if not 0 < self.train_share <= 1:
            raise InputError(f"train_share is {self.train_share}; expected a share above 0 and at most 1")
        if not 0 <= self.prefix <= 1:
            raise InputError(
                f"prefix is {self.prefix}; expected the share of the own rows on the device, 0 to 1"
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout is {self.dropout}; expected a probability of at least 0, below 1")
        units.parse_rate(self.link)


@owns_folder
def run(job: Job, folder: Path, say: Callable[[str], None]) -> MiniBatchRun:
    """Cut the graph, plan the cache, and train every mode, a machine on each host of a lab or all on loopback.

    Args:
        job: What.
        folder: Takes the graph, the plan, logs and the result.
        say: Hears what goes on.

    Raises:
        LabError: No lab can be built here.
        InputError: The graph or a setting cannot be used, or there is no such device.
        PeerError: A machine failed; the message holds its last words.
    """
    _check_device(job.device)
    make_folder(folder)
    say(f"cutting {job.dataset} into {job.workers} parts and planning the cache")
    prepare(job, folder)
    hosts, worker = job.hosts or job.workers, "wirewise.recipes.salientpp_worker"
    if job.network == "loopback":
        outcome = on_loopback(worker, folder, job.workers, say)
    else:
        outcome = in_lab(worker, folder, hosts, job.link, say, per_host=job.workers // hosts)
    return msgspec.json.decode(outcome, type=MiniBatchRun)


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device is {device!r}, and PyTorch {torch.__version__} finds no CUDA device here; choose 'cpu', or run "
            "where `wirewise doctor` lists one"
        )


def prepare(job: Job, folder: Path) -> None:
    """Write the renumbered graph, the training nodes and the cache plan."""
    graph = load(job.dataset, seed=job.seed)
    graph = graph.undirected() if graph.directed else graph
    check_edges(graph.in_edges)
    owner = np.zeros(graph.num_nodes, np.int64)
    if job.workers > 1:
        owner = partition(graph, job.workers, method="metis", seed=job.seed).astype(np.int64)
    train, test = _chosen(job, graph)
    graph, ranges = _ordered(job, graph, owner, train)
    train, test = (np.sort(ranges.new[nodes]) for nodes in (train, test))
    problem = _problem(job, graph, ranges.owner, train)
    _check_memory(graph.num_features, _plan(job, problem, folder))
    write_graph(graph, folder / "graph.npz")
    with atomic_file(folder / "nodes.npz") as file:
        np.savez(file, offsets=ranges.offsets, train=train, test=test)
    with atomic_file(folder / "job.json") as file:
        file.write(msgspec.json.encode(job))


def _check_memory(features: int, plan: CachePlan) -> None:
    """Raise InputError where own and cached rows of all machines, which are on this computer, do not fit."""
    cached = sum(len(machine.ids) for machine in plan.machines)
    needed = 4 * features * (plan.num_nodes + cached)
    if needed > (available := full_graph.available_bytes()):
        raise InputError(
            f"{plan.num_nodes} own and {cached} cached rows of {features} features take {needed} bytes, and "
            f"{available} are free; choose a smaller alpha or graph"
        )


def _plan(job: Job, problem: CacheProblem, folder: Path) -> CachePlan:
    """Write the cache plan, and what other policies and alphas would leave to fetch."""
    found = cache.plans(
        problem, tuple({*ALPHAS, job.alpha}), (job.policy, *job.others), share=cast(Share, job.share)
    )
    plan = found[job.policy][job.alpha]
    plans.save(plan, folder / "plan.json")
    left = {
        name: {f"{alpha:g}": by_alpha[alpha].remaining for alpha in sorted(by_alpha)}
        for name, by_alpha in found.items()
    }
    with atomic_file(folder / "policies.json") as file:
        file.write(msgspec.json.encode(left))
    return plan


def _chosen(job: Job, graph: GraphData) -> tuple[np.ndarray, np.ndarray]:
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


def _ordered(job: Job, graph: GraphData, owner: np.ndarray, train: np.ndarray) -> tuple[GraphData, Ranges]:
    """The graph with each machine's nodes in a range, those first that its batches need most."""
    before = _problem(job, graph, owner, train)
    scores = [
        inclusion(before.drawers, before.drawn[machine], job.fanouts, hop_zero=True)
        for machine in range(job.workers)
    ]
    ranges = ranges_of(owner, scores)
    return ranges.renumber(graph), ranges


def _problem(job: Job, graph: GraphData, owner: np.ndarray, train: np.ndarray) -> CacheProblem:
    return CacheProblem(
        edges=graph.in_edges,
        owner=owner,
        train=tuple(train[owner[train] == machine] for machine in range(job.workers)),
        batch_size=job.batch_size,
        fanouts=job.fanouts,
        seed=job.seed,
    )
