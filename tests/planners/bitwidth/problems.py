"""Problems and costs for the tests of bit-width planners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wirewise.cost import CodecCost, ExchangeCosts, LinkCost, Links
from wirewise.planners.bitwidth import PLANNERS, BitWidthProblem, ChannelProblem, ExchangeProblem

CODEC = CodecCost.of_rates(
    {1: 1.5e9, 2: 1.4e9, 4: 1.2e9, 8: 1.1e9, 16: 3e9, 32: 8e9},
    {1: 3e9, 2: 3e9, 4: 3e9, 8: 3e9, 16: 5e9, 32: 10e9},
)


def exchange(ranks, messages, *, name="forward1", width=16, sigma=1.5, seed=0, scale=1.0):
    """`messages`: a number, or the range that each channel draws its own from."""
    rng = np.random.default_rng(seed)
    channels = [
        ChannelProblem(
            sender=s,
            receiver=r,
            weights=scale
            * np.exp(sigma * rng.normal(size=messages if np.isscalar(messages) else rng.integers(*messages))),
        )
        for s in range(ranks)
        for r in range(ranks)
        if s != r
    ]
    return ExchangeProblem(name=name, width=width, channels=channels)


def problem(*exchanges, ranks, param_bytes=6):
    return BitWidthProblem(exchanges=exchanges, world_size=ranks, param_bytes=param_bytes)


def random_links(ranks, seed=0, ring=True):
    rng = np.random.default_rng(seed)
    links = {
        (s, r): LinkCost(latency_s=1e-4 * rng.random(), s_per_byte=1e-6 * (0.05 + rng.random()))
        for s in range(ranks)
        for r in range(ranks)
        if s != r
    }
    return Links.of_pairs(links, ranks, ring=ring)


def costs(ranks, bandwidth=22e6, *, hidden=None, codec=CODEC, latency=1e-4, ring=False):
    link = LinkCost(latency_s=latency, s_per_byte=1.0 / bandwidth)
    return ExchangeCosts(
        links=Links.of_pairs(link, ranks, ring=ring),
        codec=codec,
        hidden_s={name: np.full(ranks, value) for name, value in (hidden or {}).items()},
    )


def plan(problem, costs, *, method="auto", **knobs):
    """Plan of the planner of that name, with costs that are known apart from the problem."""
    return PLANNERS[method](replace(problem, costs=costs), **knobs)
