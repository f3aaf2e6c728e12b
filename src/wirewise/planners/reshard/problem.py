"""Problem: tensors with their layouts, and the links between all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.faces import expect_links
from wirewise.plans.reshard import packed_bytes
from wirewise.plans.sharding import LaidOutTensor, Movement, movements

__all__ = ["ReshardProblem", "alike_links", "problem_of"]

_RATE_BYTES_PER_S, _LATENCY_S = 1.25e9, 5e-5
_INSIDE_BYTES_PER_S = 1e10


@dataclass(frozen=True)
class ReshardProblem:
    """Tensors to reshard, and links.

    Raises:
        InputError: A layout does not fit its tensor, or names a rank that the links lack.
    """

    tensors: tuple[LaidOutTensor, ...]
    links: Links

    def __post_init__(self) -> None:
        for tensor in self.tensors:
            for fault in tensor.faults():
                raise InputError(f"tensor {tensor.name!r}: {fault}")
            for side in (tensor.source, tensor.target):
                absent = [rank for rank in side.ranks if not 0 <= rank < self.links.world_size]
                if absent:
                    raise InputError(
                        f"tensor {tensor.name!r} is on rank {absent[0]}, there are {self.links.world_size} ranks; "
                        f"expected ranks 0 to {self.links.world_size - 1}, or links of more ranks"
                    )

    @cached_property
    def movements(self) -> list[Movement]:
        """Slices grouped by holders and receivers."""
        return movements(self.tensors)

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each movement."""
        return [packed_bytes(self.tensors, one) for one in self.movements]

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """Host number of each rank."""
        return tuple(self.links.host_of_rank.tolist())

    def hosts_of(self, ranks: Sequence[int]) -> set[int]:
        """Host numbers of these ranks."""
        return {self.hosts[rank] for rank in ranks}


def alike_links(hosts: Sequence[int]) -> Links:
    """Links defined only by the host of each rank: all hosts equal, ranks of one host faster.

    Args:
        hosts: Host number of each rank.
    """
    plain = Links.uniform(
        max(hosts, default=0) + 1, _RATE_BYTES_PER_S, _LATENCY_S, intra_bytes_per_s=_INSIDE_BYTES_PER_S
    )
    return replace(plain, host_of_rank=np.asarray(hosts, np.int64))


def problem_of(job: LaidOutTensor | Sequence[LaidOutTensor], links: Any) -> ReshardProblem:
    """Build the problem of one tensor or of several.

    Raises:
        InputError: The job is not tensors, the links are not `Links`, or raised by `ReshardProblem`.
    """
    tensors = (job,) if isinstance(job, LaidOutTensor) else tuple(job)
    for one in tensors:
        if not isinstance(one, LaidOutTensor):
            raise InputError(f"got a {type(one).__name__} among the tensors; expected LaidOutTensor")
    return ReshardProblem(tensors, expect_links(links))
