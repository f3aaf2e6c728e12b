"""Hosts and placements that tests of flows share."""

from __future__ import annotations

import numpy as np

from wirewise.cost.links import Links
from wirewise.topology import lab_hosts
from wirewise.trace import TaskSet


def links(rates) -> Links:
    return Links.of(lab_hosts([float(rate) for rate in rates]))


def mixed_links(seed: int, hosts: int = 4) -> Links:
    """Interfaces of 1, 2.5 or 5 Gbit/s."""
    return links(np.random.default_rng(seed).choice([1e9, 2.5e9, 5e9], hosts) / 8)


def colocated(tasks: TaskSet, hosts: int = 4) -> np.ndarray:
    """Samplers beside their workers, which are dealt out; the server on host 0."""
    workers = [task.name for task in tasks.tasks if task.kind == "worker"]

    def host(task) -> int:
        if task.kind == "store":
            return int(task.name.removeprefix("store"))
        if task.kind == "server":
            return 0
        return workers.index(task.worker or task.name) % hosts

    return np.array([host(task) for task in tasks.tasks])
