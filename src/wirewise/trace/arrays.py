"""Global dataflow graph of one step, for all ranks, as arrays for the simulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dataflow"]


@dataclass(frozen=True, kw_only=True)
class Dataflow:
    """Arrays of n ops of all ranks, with their order and requirements.

    A transfer is an op with `size_bytes` above 0. Its time follows from its flows and the links, not from
    `duration_s`.
    """

    names: list[str]
    """Name of each op, [n]."""
    kind: NDArray[np.int8]
    """Index in KINDS, [n]."""
    rank: NDArray[np.int32]
    """Rank of each op, or -1 for several ranks, [n]."""
    step: NDArray[np.int32]
    """Step of each op, [n]."""
    duration_s: NDArray[np.float64]
    """Seconds of each op; of a transfer as measured, [n]."""
    size_bytes: NDArray[np.float64]
    """Payload of one rank, [n]."""
    flow_indptr: NDArray[np.int64]
    """First flow of each op, [n + 1]."""
    flow_src: NDArray[np.int32]
    """Host that a flow leaves, [flows]; the same as `flow_dst` inside a host."""
    flow_dst: NDArray[np.int32]
    """Host that a flow enters, [flows]."""
    flow_bytes: NDArray[np.float64]
    """Bytes of each flow, [flows]."""
    rounds: NDArray[np.int32]
    """Number of latencies of its slowest link that a transfer pays in series, 2 (N - 1) for a whole ring, [n]."""
    weight: NDArray[np.float64]
    """Weight of a transfer against others on the same interface, 1 if unknown, [n]."""
    collective: NDArray[np.int8]
    """Index in COLLECTIVES, [n]."""
    gradient_bytes: NDArray[np.float64]
    """Bytes of the parameters whose gradients a backward op completes, 0 if unknown, [n]."""
    resource: NDArray[np.int32]
    """Resource of each op, whose ops run in sequence, or -1 for none, [n]."""
    slots: NDArray[np.int32]
    """Number of ops that a resource runs concurrently, [resources]."""
    priority: NDArray[np.int64]
    """Priority among the ready ops of a resource, lowest first, [n]."""
    gap_s: NDArray[np.float64]
    """Idle time kept after the op on its resource, [n]."""
    indptr: NDArray[np.int64]
    """First successor of each op, [n + 1]."""
    indices: NDArray[np.int64]
    """Successors of all ops, concatenated."""
    ranks: int
    hosts: NDArray[np.int32]
    """Host number of each rank, [ranks]."""
    resource_names: list[str]
    """Name of each resource, [resources]."""
    member_ops: list[list[str]] | None = None
    """Names of the traced ops that each op represents, [n]."""

    @property
    def host_count(self) -> int:
        """Number of hosts, which are numbered from 0."""
        return int(self.hosts.max(initial=-1)) + 1
