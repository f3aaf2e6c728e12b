"""Conversion of a dataflow graph and links to arrays for the compiled simulator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.sim.engine import Ops
from wirewise.sim.sharing import InterfaceUse
from wirewise.trace.dataflow import COLLECTIVES, Dataflow

__all__ = ["Links", "PreparedGraph", "prepare"]

Vector = NDArray[np.float64]


class PreparedGraph(NamedTuple):
    """Input of `engine.run`; transfers are ops with `work` above 0."""

    ops: Ops
    uses: InterfaceUse


def prepare(dataflow: Dataflow, links: Links, release_s: Vector | None = None) -> PreparedGraph:
    """Convert a graph on links to arrays.

    Interface h is host h's outgoing direction, H + h its incoming one, 2 H + h its internal one.

    Args:
        dataflow: Graph to prepare.
        links: Links of at least the graph's number of hosts.
        release_s: Earliest start of each rank's ops, in seconds, [ranks]. Defaults to 0.

    Raises:
        InputError: There are too few hosts, or not one release time per rank.
    """
    if links.hosts < dataflow.host_count:
        raise InputError(
            f"the graph has {dataflow.host_count} hosts, the links are those of {links.hosts}; give the links "
            "of all hosts"
        )
    release = np.zeros(len(dataflow.names))
    if release_s is not None:
        if release_s.shape != (dataflow.ranks,):
            raise InputError(
                f"got {release_s.shape} release times; expected one for each of {dataflow.ranks} ranks"
            )
        of_rank = dataflow.rank >= 0
        release[of_rank] = release_s[dataflow.rank[of_rank]]
    uses, work = _uses(dataflow, links)
    ops = Ops(
        duration=_durations(dataflow, links),
        gap=np.asarray(dataflow.gap_s, dtype=np.float64),
        release=release,
        work=work,
        resource=dataflow.resource.astype(np.int64),
        priority=dataflow.priority.astype(np.int64),
        indptr=dataflow.indptr.astype(np.int64),
        successors=dataflow.indices.astype(np.int64),
        slots=dataflow.slots.astype(np.int64),
    )
    return PreparedGraph(ops, uses)


def _flow_ops(dataflow: Dataflow) -> NDArray[np.int64]:
    """Op of each flow."""
    return np.repeat(np.arange(len(dataflow.names)), np.diff(dataflow.flow_indptr))


def _durations(dataflow: Dataflow, links: Links) -> Vector:
    """Seconds of ops; of those with flows, the latency of all rounds."""
    op = _flow_ops(dataflow)
    slowest = np.zeros(len(dataflow.names))
    np.maximum.at(slowest, op, links.latency_s[dataflow.flow_src, dataflow.flow_dst])
    seconds = np.array(dataflow.duration_s, dtype=np.float64)
    seconds[op] = (slowest * dataflow.rounds)[op]
    return seconds


def _uses(dataflow: Dataflow, links: Links) -> tuple[InterfaceUse, Vector]:
    """Interfaces that transfers use, and the bytes of their largest flows over their weights, [n]."""
    n, hosts = len(dataflow.names), links.hosts
    capacity = np.concatenate(
        [links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s, links.intra_bytes_per_s]
    )
    op = _flow_ops(dataflow)
    burden = np.array([links.burden.get(name, 1.0) for name in COLLECTIVES])
    size = dataflow.flow_bytes * burden[dataflow.collective[op]]
    source, target = dataflow.flow_src.astype(np.int64), dataflow.flow_dst.astype(np.int64)
    inside = source == target
    op = np.concatenate([op, op[~inside]])
    interface = np.concatenate([np.where(inside, 2 * hosts + source, source), hosts + target[~inside]])
    size = np.concatenate([size, size[~inside]])
    shared = np.isfinite(capacity[interface]) & (size > 0)
    op, interface, size = op[shared], interface[shared], size[shared]
    work = np.zeros(n)
    np.maximum.at(work, op, size)
    # All transfers of an interface grow alike: one with twice the weight has half the work and needs twice as much.
    work /= dataflow.weight
    key, place = np.unique(op * len(capacity) + interface, return_inverse=True)
    total = np.bincount(place, size, minlength=len(key))
    owner, interface = key // len(capacity), key % len(capacity)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n))]).astype(np.int64)
    finite = np.where(np.isfinite(capacity), capacity, 1.0)
    return InterfaceUse(indptr, interface, total / work[owner], owner, finite), work
