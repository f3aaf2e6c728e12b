"""Random models: chains of convolutions, dense layers or attention blocks, and branches."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from wirewise.planners.placement.tag.problem import DeploymentProblem, problem_of
from wirewise.topology.unequal import random_unequal
from wirewise.trace.stages import StageModule, StageTrace

__all__ = ["KINDS", "random_model", "random_problem"]

KINDS = ("convolutions", "dense", "attention", "branches")
"""Kinds of models."""
_FLOPS_PER_S = 6e12
"""Rate of a device of speed 1."""
_SIZES = (1, 2, 4, 8, 16, 32)
_FLOAT = 4.0


class _Layer(NamedTuple):
    flops: float
    """Operations of a sample's forward pass."""
    output: float
    """Values of a sample's output."""
    parameters: float
    linear: float = 0.0
    """Parameters of linear layers among them."""
    factors: float = 0.0
    """Values of a sample's sufficient factors."""


def random_model(seed: int, kind: str = "") -> StageTrace:
    """Random model of 8 to 24 modules on a device of speed 1, times by operation counts and a launch.

    Args:
        seed: Seed of the model.
        kind: One of `KINDS`. Defaults to a random one.
    """
    random = np.random.default_rng([seed, 7])
    kind = kind or str(random.choice(KINDS))
    layers, edges = _LAYERS[kind](random), list[tuple[int, int]]()
    if kind == "branches":
        count = len(layers)
        edges = [(i, i + 1) for i in range(count - 1)]
        # Each module of the first half hands on to its mirror image too.
        edges += [(i, count - 1 - i) for i in range(1, count // 2 - 1, 2)]
    launch_s = float(random.uniform(2e-5, 3e-4))
    modules = tuple(
        StageModule(
            name=f"{kind}{number}",
            forward_s=tuple(launch_s + size * one.flops / _FLOPS_PER_S for size in _SIZES),
            backward_s=tuple(launch_s + 2 * size * one.flops / _FLOPS_PER_S for size in _SIZES),
            weight_gradient_s=tuple(launch_s / 2 + size * one.flops / _FLOPS_PER_S for size in _SIZES),
            output_bytes=_FLOAT * one.output,
            saved_bytes=2 * _FLOAT * one.output,
            parameter_bytes=_FLOAT * one.parameters,
            optimizer_s=one.parameters * 2e-11,
            factor_bytes=_FLOAT * one.factors,
            factored_bytes=_FLOAT * one.linear,
        )
        for number, one in enumerate(_Layer(*map(float, layer)) for layer in layers)
    )
    names = [module.name for module in modules]
    return StageTrace(
        modules=modules, sizes=_SIZES, edges=tuple((names[a], names[b]) for a, b in edges), model=kind
    )


def _convolutions(random: np.random.Generator) -> list[_Layer]:
    side, channels = 56.0, float(random.choice([32, 64, 96]))
    found = []
    for number in range(int(random.integers(8, 18))):
        if number and number % 4 == 0 and side > 7:
            side, channels = side / 2, channels * 2
        parameters = 9 * channels**2 * random.uniform(0.5, 2.0)
        found.append(_Layer(2 * parameters * side**2, channels * side**2, parameters))
    inputs = found[-1].output
    for outputs in (*[float(random.choice([1024, 4096]))] * int(random.integers(1, 3)), 1000.0):
        found.append(
            _Layer(2 * inputs * outputs, outputs, inputs * outputs, inputs * outputs, inputs + outputs)
        )
        inputs = outputs
    return found


def _dense(random: np.random.Generator) -> list[_Layer]:
    widths = random.choice([512.0, 1024.0, 2048.0, 4096.0], int(random.integers(9, 20)))
    return [_Layer(2 * a * b, b, a * b, a * b, a + b) for a, b in itertools.pairwise(widths)]


def _attention(random: np.random.Generator) -> list[_Layer]:
    tokens, width = float(random.choice([32, 128, 256])), float(random.choice([256, 512, 768, 1024]))
    parameters = 12 * width**2
    block = _Layer(
        2 * tokens * parameters + 4 * tokens**2 * width,
        tokens * width,
        parameters,
        parameters,
        18 * tokens * width,
    )
    words = float(random.choice([8000, 30000]))
    head = _Layer(
        2 * tokens * width * words,
        tokens * words / 100,
        width * words,
        width * words,
        tokens * (width + words),
    )
    return [
        _Layer(2 * tokens * width, tokens * width, words * width),
        *[block] * int(random.integers(6, 20)),
        head,
    ]


def _branches(random: np.random.Generator) -> list[_Layer]:
    half = int(random.integers(4, 9))
    channels = float(random.choice([32, 64]))
    found = []
    for depth in (*range(half), *reversed(range(half))):
        level = depth // 2
        side, width = 64 / 2**level, channels * 2**level
        parameters = 18 * width**2
        found.append(_Layer(2 * parameters * side**2, width * side**2, parameters))
    return found


_LAYERS = {"convolutions": _convolutions, "dense": _dense, "attention": _attention, "branches": _branches}


def random_problem(
    seed: int, *, hosts: int = 0, most_devices: int = 4, kind: str = "", groups: int = 12
) -> DeploymentProblem:
    """Random model and cluster of heterogeneous machines.

    Args:
        seed: Seed of the problem.
        hosts: Number of machines. 0 for a random number.
        most_devices: Maximum number of devices of a machine.
        kind: One of `KINDS`. Defaults to a random one.
        groups: Maximum number of op groups.
    """
    random = np.random.default_rng([seed, 13])
    topology = random_unequal(seed, hosts=hosts, most_devices=most_devices)
    batch = max(int(random.choice([16, 32, 64])), len(topology.devices))
    return problem_of(random_model(seed, kind), topology, batch=batch, groups=groups)
