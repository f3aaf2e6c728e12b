"""Graphs that grow task by task, and the choice and weights of rehearsed old nodes. Needs no torch."""

from wirewise.graph.rehearsal.matching import (
    KERNELS,
    effective_size,
    gram,
    kernel_sums,
    matched_weights,
    median_distance,
    raise_effective_size,
    solve_matching,
)
from wirewise.graph.rehearsal.selection import SELECTIONS, Candidates, select
from wirewise.graph.rehearsal.structure import coverage, k_centre, radius
from wirewise.graph.rehearsal.tasks import (
    GROWTHS,
    GrowingGraph,
    Task,
    average_forgetting,
    average_performance,
    balanced_accuracy,
    growing_graph,
    record_of,
)

__all__ = [
    "GROWTHS",
    "KERNELS",
    "SELECTIONS",
    "Candidates",
    "GrowingGraph",
    "Task",
    "average_forgetting",
    "average_performance",
    "balanced_accuracy",
    "coverage",
    "effective_size",
    "gram",
    "growing_graph",
    "k_centre",
    "kernel_sums",
    "matched_weights",
    "median_distance",
    "radius",
    "raise_effective_size",
    "record_of",
    "select",
    "solve_matching",
]
