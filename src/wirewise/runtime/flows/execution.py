"""One host of a placement plan: its tasks in order, and their flows over the network.

Executions are emulated: a task sleeps its time. Flows are real bytes. The end of an op is notified to hosts whose ops
depend on it.
"""

from __future__ import annotations

import heapq
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import PeerError
from wirewise.plans.placement import PlacementPlan
from wirewise.runtime.flows.engine import FlowEngine
from wirewise.runtime.flows.meeting import Connections
from wirewise.runtime.flows.orders import CHUNK_BYTES
from wirewise.sim.flows import Graph, expand
from wirewise.trace.tasks import TaskSet

__all__ = ["ExecutionTimes", "TaskExecution", "execute"]

Vector = NDArray[np.float64]


class ExecutionTimes(NamedTuple):
    """Start and end times of ops, in seconds since the common start of the hosts; NaN on another host."""

    start_s: Vector
    """Start of each op, [n]."""
    end_s: Vector
    """End of each op, [n]."""


class TaskExecution:
    """Executor of the ops of one host.

    Args:
        graph: Graph of all iterations; the same on all hosts.
        place: Host of each task, [T].
        rank: Index of this host.
        engine: Engine that carries its flows.
    """

    def __init__(self, graph: Graph, place: NDArray[np.int64], rank: int, engine: FlowEngine) -> None:
        self.graph, self.rank, self.engine = graph, rank, engine
        self.begins, self.ends = place[graph.source], place[graph.target]
        self.times = ExecutionTimes(np.full(len(graph.size), np.nan), np.full(len(graph.size), np.nan))
        self._size = np.rint(graph.size).astype(np.int64)
        self._left = self._size.copy()
        self._pending = graph.pending.copy()
        self._running: list[tuple[float, int]] = []
        self._ended: list[int] = []
        """Ops that ended here and have not told their followers."""
        self._awaited = int(((self.ends == rank) | (self.begins == rank)).sum())
        """Ops that still have to end here, or to leave."""
        self._origin_s = 0.0
        engine.arrived, engine.on_op_ended = self._arrived, self._release

    def run(self, timeout_s: float) -> ExecutionTimes:
        """Execute all ops.

        Raises:
            PeerError: Nothing happened within the timeout, or a host is gone.
        """
        self._origin_s = moved_s = time.monotonic()
        for op in np.flatnonzero((self._pending == 0) & (self.begins == self.rank)):
            self._begin(int(op))
        self._settle()
        while self._awaited or self.engine.sending:
            now = time.monotonic()
            while self._running and self._running[0][0] <= now:
                self._end(heapq.heappop(self._running)[1])
            self._settle()
            until_s = self._running[0][0] if self._running else now + timeout_s
            if self._awaited or self.engine.sending:
                busy = bool(self._running)
                if self.engine.step(until_s) or busy:
                    moved_s = time.monotonic()
                self._settle()
            if time.monotonic() - moved_s > timeout_s:
                raise PeerError(self._stuck(timeout_s))
        return self.times

    def _begin(self, op: int) -> None:
        now = time.monotonic()
        self.times.start_s[op] = now - self._origin_s
        target = int(self.ends[op])
        if target != self.rank:
            if self._size[op]:
                self.engine.send(target, op, int(self._size[op]), int(self.graph.iteration[op]))
            else:
                self.engine.notify(target, -1 - op)
            self._awaited -= 1
        elif self.graph.duration[op] > 0:
            heapq.heappush(self._running, (now + float(self.graph.duration[op]), op))
        else:
            self._end(op)

    def _arrived(self, op: int, size_bytes: int) -> None:
        self._left[op] -= size_bytes
        if self._left[op] == 0:
            self._end(op)

    def _end(self, op: int) -> None:
        self.times.end_s[op] = time.monotonic() - self._origin_s
        self._awaited -= 1
        self._ended.append(op)

    def _settle(self) -> None:
        """Tell those that wait for what ended here, on this host and on others."""
        while self._ended:
            op = self._ended.pop()
            for host in np.unique(self.begins[self._followers(op)]):
                if host != self.rank:
                    self.engine.notify(int(host), op)
            self._release(op)

    def _release(self, op: int) -> None:
        """Followers on this host wait for one op less; a negative number is a flow of no bytes that arrived."""
        if op < 0:
            self._end(-1 - op)
            return
        for follower in self._followers(op):
            if self.begins[follower] == self.rank:
                self._pending[follower] -= 1
                if self._pending[follower] == 0:
                    self._begin(int(follower))

    def _followers(self, op: int) -> NDArray[np.int64]:
        return self.graph.successors[self.graph.indptr[op] : self.graph.indptr[op + 1]]

    def _stuck(self, timeout_s: float) -> str:
        waits = np.flatnonzero((self.ends == self.rank) & np.isnan(self.times.end_s))
        hosts = sorted(set(self.begins[waits].tolist()) - {self.rank})
        return (
            f"host {self.rank} waited {timeout_s:g} s for {len(waits)} executions and flows, the first of iteration "
            f"{int(self.graph.iteration[waits].min(initial=0))}, from hosts {hosts}; see their logs"
        )


def execute(
    plan: PlacementPlan, tasks: TaskSet, peers: Connections, links: Links, *, chunk_bytes: int = CHUNK_BYTES
) -> ExecutionTimes:
    """Execute this host's part of a plan; a collective call of all hosts.

    Args:
        plan: Placement and flow policy.
        tasks: Sizes and times; sizes are rounded to bytes.
        peers: Connections of this host.
        links: Payload bandwidths of the hosts' interfaces.
        chunk_bytes: Maximum bytes sent between two decisions on the order of flows.

    Raises:
        PlanError: The plan was made for other tasks.
        InputError: The plan's policy needs rates that chunks cannot provide.
        PeerError: A host is gone, or nothing happened within the timeout of the connections, by which ends may differ
            too.
    """
    plan.check_tasks(tasks.kinds)
    place = np.array([plan.places[task.name] for task in tasks.tasks], np.int64)
    out, into = (
        float(rates[peers.rank])
        for rates in (links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s)
    )
    engine = FlowEngine(peers, out, into, order=plan.policy, chunk_bytes=chunk_bytes)
    try:
        execution = TaskExecution(expand(tasks), place, peers.rank, engine)
        peers.transport.barrier("the start of a plan")
        times = execution.run(peers.timeout_s)
        # A host that closed its connections early would look like one that died.
        peers.transport.barrier("the end of a plan")
        return times
    finally:
        engine.close()
