"""When links have changed so much that programs should be planned again.

Rates come from outside, as from `runtime.collective.LinkMonitor`, which measures and decides nothing.
`runtime.data_parallel.Replanner` watches steps of training instead of links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isfinite

import msgspec

from wirewise.collective import Network
from wirewise.errors import InputError

__all__ = ["DriftDetector", "degraded"]


def degraded(network: Network, edge_rates: Mapping[int, float], threshold: float = 0.2) -> Network | None:
    """The network with the measured rates of the edges that changed, slower or faster, by more than a part.

    Args:
        network: What plans were made for.
        edge_rates: Measured bytes per second by number of the edge; the others are as they were.
        threshold: Part of an edge's rate; smaller changes are left as noise.

    Returns:
        None: no edge changed so much, the plans still hold.

    Raises:
        InputError: An edge that the network does not have, a rate that is not above 0, or a threshold not above 0.
    """
    _check(network, edge_rates, threshold)
    changed = {
        number: rate
        for number, rate in edge_rates.items()
        if abs(rate / network.edges[number].bandwidth_bytes_per_s - 1) > threshold
    }
    if not changed:
        return None
    edges = list(network.edges)
    for number, rate in changed.items():
        edges[number] = edges[number]._replace(bandwidth_bytes_per_s=rate)
    return msgspec.structs.replace(network, edges=tuple(edges))


class DriftDetector:
    """Says when to plan again: once an edge has been off for several measurements after each other.

    After that it is held against its new rate, so that a rate that swings about a threshold does not start a plan
    with every swing.
    """

    def __init__(self, network: Network, *, threshold: float = 0.2, times: int = 3) -> None:
        """DriftDetector a network.

        Args:
            network: What the present plans were made for.
            threshold: As for `degraded`.
            times: Measurements in a row in which an edge must be off.
        """
        self.network = network
        self.threshold, self.times = threshold, times
        self._off: Counter[int] = Counter()

    def observe(self, edge_rates: Mapping[int, float]) -> Network | None:
        """Take one measurement; the network to plan for now, or None: the plans still hold.

        Raises:
            InputError: As `degraded`.
        """
        _check(self.network, edge_rates, self.threshold)
        for number, rate in edge_rates.items():
            off = degraded(self.network, {number: rate}, self.threshold) is not None
            self._off[number] = self._off[number] + 1 if off else 0
        if max(self._off.values(), default=0) < self.times:
            return None
        changed = degraded(self.network, edge_rates, self.threshold)
        self._off.clear()
        self.network = changed or self.network
        return changed


def _check(network: Network, edge_rates: Mapping[int, float], threshold: float) -> None:
    for number, rate in edge_rates.items():
        if not 0 <= number < len(network.edges):
            raise InputError(
                f"got edge {number}; expected one of the {len(network.edges)} of {network.name!r}"
            )
        if not (isfinite(rate) and rate > 0):
            raise InputError(f"got {rate} bytes/s for edge {number}; expected a rate above 0")
    if threshold <= 0:
        raise InputError(f"got the threshold {threshold}; expected a part above 0, such as 0.2")
