"""Problem of pipeline planners, and the stage costs that they use."""

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

__all__ = ["PipelineLinks", "PipelineProblem", "problem_of"]

_SAMPLES_A_RANK = 8
"""Samples of a rank where nobody says how many an update has."""


@dataclass(frozen=True)
class PipelineLinks:
    """Latency and slope of messages between successive positions, and of exchanges within one."""

    latency_s: Vector
    """Latency of a message from each position to the next, [d - 1]."""
    s_per_byte: Vector
    """Seconds per byte of a whole boundary with all replicas sending concurrently, [d - 1]."""
    host_s_per_byte: NDArray[np.float64]
    """Seconds per byte of each boundary on each host's interface, in either direction, [2 H, d - 1]."""
    exchange_s: Vector
    """Latency of an exchange of gradients at each position, [d]."""
    exchange_s_per_byte: Vector
    """Seconds per byte of a position's parameters, [d]."""


@dataclass(frozen=True)
class PipelineProblem:
    """Model, the ranks that train it, and the samples of an update.

    Raises:
        InputError: There are no samples, or the memory is not positive.
    """

    trace: StageTrace
    links: Links
    batch: int
    """Samples per update, over all replicas."""
    memory_bytes: float = np.inf
    """Memory of a rank."""
    edge_s: EdgeSeconds | None = None
    """Seconds of a message between two stages, such as predicted by a reshard plan. Defaults to the cost by `links`."""

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.memory_bytes > 0:
            raise InputError(
                f"got {self.batch} samples an update and {self.memory_bytes} bytes of memory; expected at least 1 and "
                "more than 0"
            )

    @property
    def ranks(self) -> int:
        """Number of ranks, all of them used."""
        return self.links.world_size

    @cached_property
    def _sums(self) -> dict[int, ModuleSums]:
        return {}

    def sums(self, microbatch_size: int) -> ModuleSums:
        """Cumulative module costs for a microbatch size."""
        if microbatch_size not in self._sums:
            self._sums[microbatch_size] = ModuleSums(self.trace, microbatch_size)
        return self._sums[microbatch_size]

    @cached_property
    def _tables(self) -> dict[int, StageFigures]:
        return {}

    def tables(self, microbatch_size: int) -> StageFigures:
        """Costs of stages between all module sets."""
        if microbatch_size not in self._tables:
            self._tables[microbatch_size] = figures(self.sums(microbatch_size), self.trace, self.sets)
        return self._tables[microbatch_size]

    @cached_property
    def sets(self) -> list[int]:
        """Module sets between which stages can lie, as bit masks by size."""
        return prefixes(self.trace)[0]

    @cached_property
    def _wires(self) -> dict[tuple[int, int, int], PipelineLinks]:
        return {}

    def wires(self, positions: int, replicas: int, width: int) -> PipelineLinks:
        """Costs of messages and exchanges, with ranks numbered by position, then replica, then within the width."""
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
    """Build the problem of a measured model on links.

    Args:
        trace: Modules of the model.
        links: Links between all ranks.
        batch: Samples per update, over all replicas. Defaults to 8 of the smallest measured microbatches per rank.
        memory_bytes: Memory limit of a rank, in bytes. Defaults to no limit.
        edge_s: Time of a message between two stages, in seconds. Defaults to that of the links.
    """
    links = expect_links(links)
    return PipelineProblem(
        trace,
        links,
        _SAMPLES_A_RANK * links.world_size * trace.sizes[0] if batch is None else batch,
        np.inf if memory_bytes is None else memory_bytes,
        edge_s,
    )


def _wires_of(links: Links, positions: int, replicas: int, width: int) -> PipelineLinks:
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
    return PipelineLinks(
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
