"""Placements of GNN training tasks to compare, and the hosts of their execution."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wirewise import options as opt
from wirewise.planners.placement import METHODS
from wirewise.runtime.flows.orders import ORDERS

__all__ = ["GnnTasksOptions", "host_names"]


class GnnTasksOptions(opt.Options, frozen=True, kw_only=True):
    """Tasks to place and run; the first method under the first policy is the reference.

    Raises:
        InputError: A value is invalid.
    """

    hosts: Annotated[int, opt.about("Hosts, named host0, host1 and so on.", ge=2)] = 4
    network: opt.HostNetwork = "auto"
    link: opt.Link = "100mbit"
    links: opt.Links = msgspec.field(default_factory=dict)
    methods: Annotated[
        opt.Distinct, opt.about("Methods that place tasks; the first is compared with.", words=METHODS)
    ] = ("colocated", "store-affine", "gnn-tasks")
    policies: Annotated[
        opt.Distinct, opt.about("Orders of flows, under each of which a method runs.", words=ORDERS)
    ] = ("iter", "oes")
    steps: Annotated[opt.Natural, opt.about("Placements that the search of gnn-tasks tries.")] = 1000
    turns: Annotated[opt.Count, opt.about("Runs of each plan, interleaved.")] = 3
    seed: Annotated[opt.Seed, opt.about("Seed of partition, sampling and searches.")] = 0
    timeout_s: opt.Timeout = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        opt.check_links(self.links, self.hosts)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each host."""
        return host_names(self.hosts)

    @property
    def rates(self) -> tuple[str, ...]:
        """Rate of each host."""
        return tuple(self.links.get(host, self.link) for host in range(self.hosts))


def host_names(count: int) -> tuple[str, ...]:
    """Names of a number of hosts."""
    return tuple(f"host{number}" for number in range(count))
