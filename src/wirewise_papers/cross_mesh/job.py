"""Job file of a reshard run, which the parent writes for its ranks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.plans import ReshardPlan
from wirewise.plans.reshard import STRATEGIES

__all__ = ["CrossMeshOptions", "ReshardJob", "ranks_per_host"]


class CrossMeshOptions(opt.Options, frozen=True, kw_only=True):
    """Execution settings of a plan, and strategies to compare with."""

    network: opt.HostNetwork = "auto"
    link: opt.Link = "200mbit"
    links: opt.Links = msgspec.field(default_factory=dict)
    against: Annotated[
        tuple[str, ...],
        opt.about("Strategies by which the same tensors move for comparison.", words=STRATEGIES),
    ] = ("p2p",)
    turns: Annotated[opt.Count, opt.about("Moves of each plan, interleaved.")] = 5
    timeout_s: opt.Timeout = 60.0


class ReshardJob(opt.Options, frozen=True, kw_only=True):
    """Plans of the same tensors, executed alternately.

    Raises:
        InputError: There is no plan, plans are for other ranks, or a lab cannot have the hosts.
    """

    plans: dict[str, ReshardPlan]
    network: opt.HostNetwork = "lab"
    links: tuple[str, ...]
    """Rate of each host."""
    turns: opt.Count = 5
    timeout_s: opt.Timeout = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.plans:
            raise InputError("got no plan; expected one or more")
        for name, plan in self.plans.items():
            if ranks_per_host(plan) * len(self.links) != plan.world_size:
                raise InputError(
                    f"plan {name!r} has {plan.world_size} ranks, {ranks_per_host(plan)} on each host; expected hosts "
                    f"for {len(self.links)} links"
                )

    @property
    def first(self) -> ReshardPlan:
        """Reference plan."""
        return next(iter(self.plans.values()))


def ranks_per_host(plan: ReshardPlan) -> int:
    """Number of ranks on each host of a plan.

    Raises:
        InputError: Hosts have different numbers of ranks, or ranks are not ordered by host.
    """
    count = plan.hosts.count(0)
    if plan.hosts != tuple(rank // max(count, 1) for rank in range(plan.world_size)):
        raise InputError(
            f"the plan has its ranks on hosts {list(plan.hosts)}; expected equally many on each host, host by "
            "host, as a lab has them"
        )
    return count
