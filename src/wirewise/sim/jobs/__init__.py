"""Simulation of job queues on clusters, slot by slot."""

from wirewise.sim.jobs.workloads import EVEN, UNEVEN, draw_queue, edge_kinds, numbered_clusters

__all__ = ["EVEN", "UNEVEN", "draw_queue", "edge_kinds", "numbered_clusters"]
