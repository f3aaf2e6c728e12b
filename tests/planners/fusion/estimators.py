"""Random regions, and networks with random weights."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.random_steps import random_graph

from wirewise.planners.fusion.disco.estimator import About, Estimator
from wirewise.planners.fusion.disco.features import RegionGraph, region_graph
from wirewise.profile.estimator import RegionNetwork


def region(seed: int, operators: int = 9) -> RegionGraph:
    graph = random_graph(seed, operators, 2)
    random = np.random.default_rng(seed)
    members = sorted(random.choice(operators, size=max(2, operators // 2), replace=False).tolist())
    return region_graph(graph, tuple(members), tuple(members[-1:]))


def network(kinds: int, seed: int = 0) -> RegionNetwork:
    """All weights random, those too that training starts at zero."""
    torch.manual_seed(seed)
    found = RegionNetwork(kinds)
    with torch.no_grad():
        for one in found.parameters():
            one.copy_(0.2 * torch.randn(one.shape))
        found.launch.zero_()
    return found.eval()


def estimator(members: int = 2, kinds: tuple[str, ...] = ("mm", "mul", "outside", "sum")) -> Estimator:
    weights = {
        f"{i}.{name}": value.numpy()
        for i in range(members)
        for name, value in network(len(kinds) + 1, i).state_dict().items()
    }
    about = About(device="cpu", machine="a test", compiler="none", kinds=kinds, members=members, regions=3)
    return Estimator(about, weights)
