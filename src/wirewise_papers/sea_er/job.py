"""Options of rehearsal on a growing graph; importable without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from wirewise import options as opt
from wirewise.graph.rehearsal.settings import DEFAULT_METHOD, METHODS, Settings
from wirewise.graph.rehearsal.tasks import GROWTHS

__all__ = ["DEFAULT_METHODS", "IncrementalJob"]

DEFAULT_METHODS = ("bare", "er-random", DEFAULT_METHOD, "sea-er", "joint")


class IncrementalJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the ranks of a run."""

    dataset: opt.Dataset = "debian"
    methods: Annotated[opt.Distinct, opt.about("Methods that learn the tasks in turns.", words=METHODS)] = (
        DEFAULT_METHODS
    )
    settings: Settings = Settings()
    classes_per_task: Annotated[int, opt.about("Classes that arrive together, in label order.", ge=2)] = 2
    fewest: Annotated[
        int, opt.about("Nodes of the smallest class that takes part.", ge=5, option="--smallest-class")
    ] = 50
    growth: Annotated[
        str,
        opt.about(
            "inductive: later nodes bring edges to earlier ones; separate: tasks share no edges; "
            "transductive: the whole graph is there from the start and only labels arrive.",
            words=GROWTHS,
        ),
    ] = "inductive"
    most_tasks: Annotated[
        opt.Count | None, opt.about("Number of tasks after which to stop; by default all.", option="--tasks")
    ] = None
    workers: Annotated[opt.Count, opt.about("Ranks, a part of the nodes each.")] = 1
    network: Annotated[
        Literal["auto", "slurm", "loopback"],
        opt.about(
            "Network of several ranks, slurm: hosts of the allocation that this runs in; loopback: this machine; auto: "
            "slurm inside of an allocation, else this machine."
        ),
    ] = "auto"
    hosts: Annotated[opt.Natural, opt.about("Hosts of an allocation of Slurm to use; 0: all.")] = 0
    timeout_s: opt.Timeout = 120.0
