"""Networks that the tests of bounds and planners of collectives share."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from wirewise.collective import Network, network
from wirewise.collective.network import Edge
from wirewise.topology import preset

GB = 10**9

SECTION_7 = {
    "dgx-1v": Fraction(7, 150 * GB),
    "ndv2x2": Fraction(16, 25 * GB),
    "dgx-2x1": Fraction(15, 125 * GB),
    "dgx-2x2": Fraction(62, 275 * GB),
    "dgx-2-relayedx2": Fraction(31, 125 * GB),
    "dgx-a100x1": Fraction(7, 300 * GB),
    "dgx-a100x2": Fraction(15, 325 * GB),
    "dgx-h100x1": Fraction(7, 450 * GB),
    "dgx-h100x2": Fraction(15, 500 * GB),
    "mi250x1": Fraction(7, 150 * GB),
    "mi250x2": Fraction(15, 166 * GB),
}
"""Machines with the published best all-gather: seconds per byte of a rank's block."""


def machine_network(name: str) -> Network:
    """A machine's fabric and network; of the DGX-1 only NVLink."""
    return network(preset(name), kinds={"nvlink"} if name.startswith("dgx-1") else None)


def random_network(seed: int, ranks: int, switches: int = 0, most: int = 6) -> Network:
    """A strongly joined digraph of whole rates: a ring through all vertices, and random edges."""
    rng = np.random.default_rng(seed)
    vertices = ranks + switches
    rates = rng.integers(0, most, (vertices, vertices)) * (rng.random((vertices, vertices)) < 0.5)
    for v in range(vertices):
        rates[v, v] = 0
        rates[v, (v + 1) % vertices] = max(rates[v, (v + 1) % vertices], 1)
    edges = [Edge(a, b, float(rates[a, b]), 1e-6) for a, b in np.argwhere(rates).tolist()]
    return Network(
        name=f"random-{seed}",
        ranks=ranks,
        vertices=tuple(f"v{n}" for n in range(vertices)),
        edges=tuple(edges),
    )
