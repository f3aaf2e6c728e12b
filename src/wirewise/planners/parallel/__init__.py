"""Planners that split the training step of any model: stages, meshes, and the sharding of each operator."""

from __future__ import annotations

from typing import Any

from wirewise.planners.faces import Planner, Problems, expect_links, face
from wirewise.planners.parallel.rhino.explore import ParallelProblem, plan
from wirewise.trace.operator_graph import OperatorGraph

__all__ = ["PLANNERS", "ParallelProblem", "parallel_problem"]


def parallel_problem(
    job: OperatorGraph, links: Any, *, memory_bytes: float | None = None, states: float = 2.0
) -> ParallelProblem:
    """Build the problem of a training step on its links.

    Args:
        job: Training step with the seconds of its operators.
        links: Links between the ranks.
        memory_bytes: Memory limit of each rank, in bytes. None if unlimited.
        states: Number of optimizer states per parameter, two for Adam.
    """
    room = float("inf") if memory_bytes is None else float(memory_bytes)
    return ParallelProblem(graph=job, links=expect_links(links), memory_bytes=room, states=states)


PLANNERS: dict[str, Planner] = {
    "rhino": face(
        plan,
        "rhino",
        Problems(
            "a training step as a graph of operators", ParallelProblem, {OperatorGraph: parallel_problem}
        ),
        budget="time_limit_s",
    ),
}
"""Planners by name."""
