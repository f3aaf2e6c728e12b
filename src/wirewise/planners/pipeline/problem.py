"""What planners of pipelines decide on, and the figures of stages that they count with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.faces import expect_links
from wirewise.planners.pipeline.cuts import StageFigures, figures, prefixes
from wirewise.planners.pipeline.sums import Ints, ModuleSums, Vector
from wirewise.sim.chains import chain_edges
from wirewise.sim.pipelines import EdgeSeconds
from wirewise.trace.stages import StageTrace

__all__ = ["PipelineProblem", "Wires", "problem_of"]

_SAMPLES_A_RANK = 8
"""Samples of a rank where nobody says how many an update has."""


@dataclass(frozen=True)
class Wires:
    """Seconds of messages between positions that follow each other, and of exchanges within one: latency and slope."""

    latency_s: Vector
    """Latency of a message from each position to the next, [d - 1]."""
    s_per_byte: Vector
    """Seconds that each byte of a whole boundary takes, all replicas sending at once, [d - 1]."""
    host_s_per_byte: NDArray[np.float64]
    """Seconds of each host's interfaces for a byte of each boundary, both ways, [2 H, d - 1]."""
    exchange_s: Vector
    """Latency of an exchange of gradients at each position, [d]."""
    exchange_s_per_byte: Vector
    """Seconds for each byte of a position's parameters, [d]."""


@dataclass(frozen=True)
class PipelineProblem:
    """A model, the ranks that train it, and what an update is.

    Raises:
        InputError: No samples, or memory that is not above 0.
    """

    trace: StageTrace
    links: Links
    batch: int
    """Samples of an update, over all replicas."""
    memory_bytes: float = np.inf
    """Memory of a rank."""
    edge_s: EdgeSeconds | None = None
    """Seconds of a message between two stages, such as a reshard plan predicts; none: what links say."""

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.memory_bytes > 0:
            raise InputError(
                f"got {self.batch} samples an update and {self.memory_bytes} bytes of memory; expected at least 1 and "
                "more than 0"
            )

    @property
    def ranks(self) -> int:
        """Number of ranks, all of which work."""
        return self.links.world_size

    @cached_property
    def _sums(self) -> dict[int, ModuleSums]:
        return {}

    def sums(self, microbatch_size: int) -> ModuleSums:
        """Figures of the modules for a size of microbatches."""
        if microbatch_size not in self._sums:
            self._sums[microbatch_size] = ModuleSums(self.trace, microbatch_size)
        return self._sums[microbatch_size]

    @cached_property
    def _tables(self) -> dict[int, StageFigures]:
        return {}

    def tables(self, microbatch_size: int) -> StageFigures:
        """Figures of stages between all sets of modules that stages can be taken from."""
        if microbatch_size not in self._tables:
            self._tables[microbatch_size] = figures(self.sums(microbatch_size), self.trace, self.sets)
        return self._tables[microbatch_size]

    @cached_property
    def sets(self) -> list[int]:
        """Sets of modules that stages can be taken from, as bits, by size."""
        return prefixes(self.trace)[0]

    @cached_property
    def _wires(self) -> dict[tuple[int, int, int], Wires]:
        return {}

    def wires(self, positions: int, replicas: int, width: int) -> Wires:
        """Seconds of messages and exchanges where ranks are numbered by position, replica, then within the width."""
        key = (positions, replicas, width)
        if key not in self._wires:
            self._wires[key] = _wires_of(self.links, *key)
        return self._wires[key]


def problem_of(
    trace: StageTrace,
    links: Links,
    *,
    batch: int | None = None,
    memory_bytes: float | None = None,
    edge_s: EdgeSeconds | None = None,
) -> PipelineProblem:
    """The problem of a measured model on links.

    Args:
        trace: Modules of the model.
        links: Links between all ranks.
        batch: Samples of an update, over all replicas; None: 8 a rank, of the smallest measured microbatches.
        memory_bytes: Memory of a rank; None: no limit.
        edge_s: Seconds of a message between two stages; None: what links say.
    """
    links = expect_links(links)
    return PipelineProblem(
        trace,
        links,
        _SAMPLES_A_RANK * links.world_size * trace.sizes[0] if batch is None else batch,
        np.inf if memory_bytes is None else memory_bytes,
        edge_s,
    )


def _wires_of(links: Links, positions: int, replicas: int, width: int) -> Wires:
    size = replicas * width
    capacity = links.bandwidth_out_bytes_per_s, links.bandwidth_in_bytes_per_s
    ranks = np.arange(positions * size).reshape(positions, replicas, width)
    forth, back = _ends(links, ranks)
    latency, slope, used = _pairs(links, *forth)
    latency_back, slope_back, used_back = _pairs(links, *back)
    out_and_in = np.concatenate([used[0] + used_back[0], used[1] + used_back[1]], axis=1).T
    load = out_and_in / np.concatenate(capacity)[:, None]
    widest = np.max(
        [
            (one / by).max(axis=1, initial=0.0)
            for both in (used, used_back)
            for one, by in zip(both, capacity, strict=True)
        ],
        axis=0,
        initial=0.0,
    )
    rounds = 2 * (replicas - 1)
    around = np.roll(ranks, -1, axis=1)
    ring_latency, ring_slope, ring_used = _pairs(
        links, ranks.reshape(positions, -1), around.reshape(positions, -1)
    )
    ring_widest = np.max(
        [(one / by).max(axis=1, initial=0.0) for one, by in zip(ring_used, capacity, strict=True)], axis=0
    )
    share = rounds / replicas * links.burden.get("all_reduce", 1.0)
    return Wires(
        np.maximum(latency, latency_back),
        np.maximum(np.maximum(slope, slope_back), widest),
        load,
        rounds * ring_latency,
        share * np.maximum(ring_slope, ring_widest),
    )


def _ends(links: Links, ranks: Ints) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Ranks that send to others at each boundary, activations and gradients, [boundaries, messages] each.

    A value is whole on each rank of a stage: it goes from one of them along a chain through those of the next.

    Args:
        links: Links between all ranks.
        ranks: Ranks by position, replica and width, [d, w, t].
    """
    boundaries, width = len(ranks) - 1, ranks.shape[2]
    if width == 1:
        first, second = ranks[:-1, :, 0], ranks[1:, :, 0]
        return (first, second), (second, first)

    def chains(source: Ints, target: Ints) -> tuple[Ints, Ints]:
        edges = [
            chain_edges(min(own, key=lambda rank: int(links.host_of_rank[rank])), others, links)
            for senders, receivers in zip(source.tolist(), target.tolist(), strict=True)
            for own, others in zip(senders, receivers, strict=True)
        ]
        found = np.array(edges, np.int64).reshape(boundaries, source.shape[1] * width, 2)
        return found[..., 0], found[..., 1]

    return chains(ranks[:-1], ranks[1:]), chains(ranks[1:], ranks[:-1])


def _pairs(
    links: Links, source: Ints, target: Ints
) -> tuple[Vector, Vector, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Longest latency and slope of each row of pairs, and how many of it leave and enter each host, [rows, H]."""
    rows, hosts, host = len(source), links.hosts, links.host_of_rank
    a, b = host[source], host[target]
    if links.known is not None:
        latency, slope = links.known.latency_s[source, target], links.known.s_per_byte[source, target]
    else:
        latency = links.latency_s[a, b]
        slope = np.maximum(1 / links.bandwidth_out_bytes_per_s[a], 1 / links.bandwidth_in_bytes_per_s[b])
        slope = np.where(a == b, 1 / links.intra_bytes_per_s[a], slope)
    crosses = (a != b).astype(np.float64)
    row = np.repeat(np.arange(rows), source.shape[1] if rows else 0)
    used = tuple(
        np.bincount(row * hosts + end.ravel(), crosses.ravel(), rows * hosts).reshape(rows, hosts)
        for end in (a, b)
    )
    return latency.max(axis=1, initial=0.0), slope.max(axis=1, initial=0.0), used  # type: ignore[return-value]
