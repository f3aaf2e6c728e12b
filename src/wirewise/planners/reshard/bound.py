"""Lower bound on resharding time: bytes that must cross the interfaces of hosts.

Every byte enters each host that needs it and holds none, and leaves the hosts that hold it once. Of the bytes that only
a set of hosts holds, all leave through the interfaces of that set: the largest quotient over all sets is, by the
duality of linear programs, the least time in which holders can send everything between them, however they share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from wirewise.planners.reshard.problem import ReshardProblem
from wirewise.plans.reshard import BusiestHosts

__all__ = ["bound", "shares"]

_MOST_SETS = 6
"""Sets of holding hosts up to which all unions of them are looked at; beyond, a linear program names the sets."""


class _Leaving(NamedTuple):
    """Bytes that have to leave the hosts that hold them."""

    hosts: tuple[frozenset[int], ...]
    """Hosts that hold each partial sum that some receiving host lacks."""
    size_bytes: int


def bound(problem: ReshardProblem) -> BusiestHosts:
    """Hosts with the largest lower bound, without latencies; empty if nothing crosses hosts."""
    found = [*_into(problem), *_out_of(problem)]
    nothing = BusiestHosts(hosts=(), direction="out", size_bytes=0, bandwidth_bytes_per_s=0.0)
    return max(found, key=lambda one: one.size_bytes / one.bandwidth_bytes_per_s, default=nothing)


def shares(
    holders: Sequence[Sequence[int]], sizes: Sequence[int], rates: Sequence[float]
) -> NDArray[np.float64]:
    """Bytes of each slice sent by each host, so that the last one ends earliest, [slices, hosts].

    Args:
        holders: Hosts that hold each slice.
        sizes: Bytes of each slice.
        rates: Outgoing bandwidth of each host, in bytes per second, [hosts].
    """
    return _solved(holders, sizes, rates)[0]


def _solved(
    holders: Sequence[Sequence[int]], sizes: Sequence[int], rates: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes by slice and host, and the price of each host's rate.

    Minimise T subject to: shares of a slice add up to its size; a host sends at most T times its rate.
    """
    # Ranks that move tensors load this module too, and seldom solve.
    from scipy.optimize import linprog

    pairs = [(number, host) for number, own in enumerate(holders) for host in own]
    count, hosts = len(pairs), len(rates)
    place, scale, rate = np.arange(count), max(sizes), np.asarray(rates) / max(rates)
    of_slice = coo_array(
        (np.ones(count), ([number for number, _ in pairs], place)), (len(sizes), count + 1)
    ).tocsr()
    sender = np.array([host for _, host in pairs])
    entries = np.concatenate([np.ones(count), -rate])
    rows, columns = np.concatenate([sender, np.arange(hosts)]), np.concatenate([place, np.full(hosts, count)])
    limits = coo_array((entries, (rows, columns)), (hosts, count + 1)).tocsr()
    cost = np.zeros(count + 1)
    cost[-1] = 1.0
    solved = linprog(
        cost, A_ub=limits, b_ub=np.zeros(hosts), A_eq=of_slice, b_eq=np.array(sizes) / scale, method="highs"
    )
    found = np.zeros((len(sizes), hosts))
    for (number, host), share in zip(pairs, solved.x[:-1], strict=True):
        found[number, host] = scale * share
    return found, -solved.ineqlin.marginals


def _into(problem: ReshardProblem) -> Iterator[BusiestHosts]:
    rates, need = problem.links.bandwidth_in_bytes_per_s, dict[int, int]()
    for one, size in zip(problem.movements, problem.sizes, strict=True):
        for host in problem.hosts_of(one.receivers):
            if any(host not in problem.hosts_of(own) for own in one.holders):
                need[host] = need.get(host, 0) + size
    for host, size in need.items():
        if np.isfinite(rates[host]):
            yield BusiestHosts(
                hosts=(host,), direction="in", size_bytes=size, bandwidth_bytes_per_s=float(rates[host])
            )


def _out_of(problem: ReshardProblem) -> Iterator[BusiestHosts]:
    rates, leaving = problem.links.bandwidth_out_bytes_per_s, list(_leaving(problem))
    named = sorted(set().union(*(hosts for one in leaving for hosts in one.hosts)))
    if not named or not np.isfinite(rates[named]).all():
        return
    for hosts in _sets(problem, leaving, named):
        size = sum(one.size_bytes for one in leaving if any(own <= hosts for own in one.hosts))
        if size:
            yield BusiestHosts(
                hosts=tuple(sorted(hosts)),
                direction="out",
                size_bytes=size,
                bandwidth_bytes_per_s=float(rates[sorted(hosts)].sum()),
            )


def _leaving(problem: ReshardProblem) -> Iterator[_Leaving]:
    together: dict[tuple[frozenset[int], ...], int] = {}
    for one, size in zip(problem.movements, problem.sizes, strict=True):
        needing = problem.hosts_of(one.receivers)
        held = [frozenset(problem.hosts_of(own)) for own in one.holders]
        lacking = tuple(sorted((own for own in held if needing - own), key=sorted))
        if lacking:
            together[lacking] = together.get(lacking, 0) + size
    for hosts, size in together.items():
        yield _Leaving(hosts, size)


def _sets(problem: ReshardProblem, leaving: list[_Leaving], named: list[int]) -> Iterator[frozenset[int]]:
    """Sets of hosts among which is one that needs longest."""
    every = {own for one in leaving for own in one.hosts}
    if len(every) <= _MOST_SETS:
        # Hosts that hold nothing alone with the others of a set only add rate: unions of holding sets are enough.
        found: set[frozenset[int]] = set()
        for own in every:
            found |= {own} | {own | other for other in found}
        yield from sorted(found, key=sorted)
        return
    first = [one.hosts[0] for one in leaving]
    rates = [float(problem.links.bandwidth_out_bytes_per_s[host]) for host in named]
    place = {host: number for number, host in enumerate(named)}
    sizes = [one.size_bytes for one in leaving]
    _, price = _solved([[place[host] for host in sorted(own)] for own in first], sizes, rates)
    # A set of the dual's largest prices has a quotient as large as the dual's value, which is a mean of theirs.
    for least in sorted(set(price.round(12)), reverse=True):
        yield frozenset(host for host in named if price[place[host]] >= least - 1e-12)
