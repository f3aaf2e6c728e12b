"""What the network interfaces of hosts carry, as the simulator shares them among transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["Links"]

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Links:
    """Rates and latencies of H hosts; an infinite rate is never shared.

    Raises:
        InputError: Shapes that do not fit, a rate that is not above 0, a latency that is not 0 or more.
    """

    bandwidth_out_bytes_per_s: Vector
    """Out of each host, [H]."""
    bandwidth_in_bytes_per_s: Vector
    """Into each host, [H]."""
    latency_s: Vector
    """From host to host, [H, H]; the diagonal: between ranks of one host."""
    intra_bytes_per_s: Vector
    """Between the ranks of each host, all together, [H]."""
    burden: Mapping[str, float] = field(default_factory=dict)
    """Of a collective, by name: at which multiple of its bytes it keeps interfaces busy; 1 where none is given.

    Libraries drive a link with some collectives better than with others.
    """

    def __post_init__(self) -> None:
        hosts = len(self.bandwidth_out_bytes_per_s)
        for name in ("bandwidth_out_bytes_per_s", "bandwidth_in_bytes_per_s", "intra_bytes_per_s"):
            rates = getattr(self, name)
            if rates.shape != (hosts,) or not (rates > 0).all():
                raise InputError(f"{name} is {rates}; expected a rate above 0 for each of {hosts} hosts")
        latency = self.latency_s
        if bad := {name: by for name, by in self.burden.items() if not 0 < by < np.inf}:
            raise InputError(f"burden is {bad}; expected finite factors above 0")
        if latency.shape != (hosts, hosts) or not (latency >= 0).all() or not np.isfinite(latency).all():
            raise InputError(
                f"latency_s has shape {latency.shape} and least value {latency.min(initial=0)}; expected "
                f"finite seconds >= 0 from each of {hosts} hosts to each"
            )

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return len(self.bandwidth_out_bytes_per_s)

    @classmethod
    def uniform(
        cls,
        hosts: int,
        bandwidth_bytes_per_s: float,
        latency_s: float = 0.0,
        *,
        intra_bytes_per_s: float = np.inf,
        intra_latency_s: float = 0.0,
    ) -> Links:
        """All hosts alike, the same rate in both directions."""
        latency = np.full((hosts, hosts), float(latency_s))
        np.fill_diagonal(latency, intra_latency_s)
        rate = np.full(hosts, float(bandwidth_bytes_per_s))
        return cls(rate, rate.copy(), latency, np.full(hosts, float(intra_bytes_per_s)))

    def scaled(self, factor: float, host: int | None = None) -> Links:
        """Rates of all hosts, or of one host, in both directions times a factor."""
        by = np.ones(self.hosts)
        by[slice(None) if host is None else host] = factor
        return replace(
            self,
            bandwidth_out_bytes_per_s=self.bandwidth_out_bytes_per_s * by,
            bandwidth_in_bytes_per_s=self.bandwidth_in_bytes_per_s * by,
        )

    def of_hosts(self, hosts: NDArray[np.int64]) -> Links:
        """Links of other hosts, each like the host of this number here, [new H]."""
        latency = self.latency_s[np.ix_(hosts, hosts)]
        if self.hosts > 1:
            # Two hosts that stand for the same one are as far apart as two different hosts here.
            apart = self.latency_s[~np.eye(self.hosts, dtype=bool)].mean()
            same = (hosts[:, None] == hosts[None, :]) & ~np.eye(len(hosts), dtype=bool)
            latency[same] = apart
        return Links(
            self.bandwidth_out_bytes_per_s[hosts],
            self.bandwidth_in_bytes_per_s[hosts],
            latency,
            self.intra_bytes_per_s[hosts],
            self.burden,
        )
