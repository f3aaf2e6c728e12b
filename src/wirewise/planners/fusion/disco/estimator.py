"""Learned time of a fused region, from regions that were compiled and measured (DisCo, TPDS 2022).

A graph attention network reads the operators of a region and their outside inputs: kind, category, measured time
alone, bytes in and out, memory access pattern, and the number of compiled loops. For each operator it predicts
fractions of its time alone, of a time per value and of times per byte: times alone are a strong prior and capture the
machine's speed. The forward pass is numpy, since planning needs no torch; `wirewise.profile.estimator` trains the
weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.decoding import ArchiveError, decode_json, read_npz
from wirewise.errors import InputError
from wirewise.files import atomic_file
from wirewise.planners.fusion.disco.features import FEATURES, PRIORS, RegionGraph, region_graph
from wirewise.sim.region_costs import AnalyticCosts, RegionCosts
from wirewise.trace.operators import FusionGraph

__all__ = [
    "HEADS",
    "LAYERS",
    "MOST_LOG",
    "VECTORS",
    "About",
    "ChosenCosts",
    "Estimator",
    "LearnedCosts",
    "costs_for",
    "load_shipped",
    "vectors_here",
]

Array = NDArray[np.float32]

LAYERS, HEADS = 6, 4
"""Half of the heads look at what an operator reads, half at what reads it."""
MOST_LOG = 3.0
"""Log of the largest fraction of its prior that an operator can take; the smallest is its inverse."""

LAUNCH_S = 7e-6
"""Seconds to launch a compiled region; the weights hold a factor of it."""

_SHIPPED = Path(__file__).parent / "data"
VECTORS = ("avx2", "avx512")
"""Vector extensions of CPUs for which weights are shipped."""

_FORMAT = "wirewise-region-estimator-3"
_MOST_BYTES = 10_000_000


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of the weights' training data."""

    device: str
    """Type of the device, such as "cpu"."""
    machine: str
    """Description of the CPU, such as "AMD EPYC, AVX2, one thread"."""
    compiler: str
    kinds: tuple[str, ...]
    """Kinds of operators, in the order of their numbers, from 1 on; number 0 stands for all others."""
    members: int = 1
    """Number of networks, whose mean is the prediction."""
    regions: int = 0
    format: str = _FORMAT


class Estimator:
    """Ensemble of networks that predict the time of a region.

    Args:
        about: Metadata of the weights.
        weights: Arrays by "NUMBER.NAME" of network and parameter (`wirewise.profile.estimator.RegionNetwork`).

    Raises:
        InputError: Weights are missing, or have other shapes.
    """

    def __init__(self, about: About, weights: Mapping[str, Array]) -> None:
        self.about = about
        self.numbers = {kind: number for number, kind in enumerate(about.kinds, 1)}
        self._weights = {name: np.asarray(value, dtype=np.float32) for name, value in weights.items()}
        self._networks = [
            {
                name.partition(".")[2]: value
                for name, value in self._weights.items()
                if name.startswith(f"{i}.")
            }
            for i in range(about.members)
        ]
        for network in self._networks:
            _check(network, len(about.kinds) + 1)

    def seconds(self, region: RegionGraph) -> float:
        """Predicted time of a region, in seconds: geometric mean over the networks."""
        kinds = np.array([self.numbers.get(kind, 0) for kind in region.kinds])
        logs = [_log_seconds(network, region, kinds) for network in self._networks]
        return float(np.exp(np.mean(logs)))

    def weights_of(self, member: int) -> dict[str, Array]:
        """Weights of one network, by parameter."""
        return dict(self._networks[member])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights and their metadata as an .npz file."""
        about = np.frombuffer(msgspec.json.encode(self.about), dtype=np.uint8)
        with atomic_file(path) as file:
            np.savez_compressed(file, about=about, **self._weights)  # type: ignore[arg-type]

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Estimator:
        """Read a file written by `save`; no code in the file is run.

        Raises:
            InputError: The file is unreadable or malformed; the message names it.
        """
        try:
            if Path(path).stat().st_size > _MOST_BYTES:
                raise InputError(f"it has more than {_MOST_BYTES} bytes")
            found = read_npz(path)
            about = decode_json(found.pop("about").tobytes(), About)
            if about.format != _FORMAT:
                raise InputError(f"its format is {about.format!r}; expected {_FORMAT!r}")
            return Estimator(about, found)
        except (OSError, LookupError, InputError, ArchiveError, msgspec.MsgspecError) as cause:
            raise InputError(
                f"cannot read an estimator from {os.fspath(path)}: {cause}; make one by `wirewise profile operators`"
            ) from cause


def _check(network: Mapping[str, Array], kinds: int) -> None:
    width = network["enter.bias"].size if "enter.bias" in network else 0
    for name, shape in _shapes(width, kinds).items():
        found = network[name].shape if name in network else None
        if found != shape or not np.isfinite(network[name]).all():
            raise InputError(f"weights {name!r} have shape {found}; expected finite ones of shape {shape}")


def _shapes(width: int, kinds: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"kind.weight": (kinds, width), "launch": (1,)}
    linear = {"enter": (width, FEATURES)}
    linear |= {f"mix.{layer}": (width, width) for layer in range(LAYERS)}
    linear |= {"dense.0": (width, width), "dense.1": (width, width), "dense.2": (PRIORS, width)}
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes | {f"{side}.{layer}": (width,) for side in ("reader", "source") for layer in range(LAYERS)}


def _log_seconds(weights: Mapping[str, Array], region: RegionGraph, kinds: NDArray[np.int64]) -> float:
    state = _elu(_linear(weights, "enter", region.nodes) + weights["kind.weight"][kinds])
    own = np.eye(len(kinds), dtype=np.bool_)
    seen = np.repeat(np.stack([region.reads | own, region.reads.T | own]), HEADS // 2, 0)
    for layer in range(LAYERS):
        state = state + _attend(weights, layer, state, seen)
    for dense in ("dense.0", "dense.1"):
        state = np.maximum(_linear(weights, dense, state), 0.0)
    shares = np.exp(MOST_LOG * np.tanh(_linear(weights, "dense.2", state) / MOST_LOG))
    return float(np.log(LAUNCH_S * np.exp(weights["launch"][0]) + (shares * region.prior_s).sum()))


def _attend(weights: Mapping[str, Array], layer: int, state: Array, seen: NDArray[np.bool_]) -> Array:
    """One layer: K heads, each a weighted mean of the nodes it sees, side by side (equation 1 of DisCo)."""
    n, width = state.shape
    heads = _linear(weights, f"mix.{layer}", state).reshape(n, HEADS, -1).transpose(1, 0, 2)
    to, of = (weights[f"{side}.{layer}"].reshape(HEADS, 1, -1) for side in ("reader", "source"))
    scores = (heads * to).sum(-1)[..., None] + (heads * of).sum(-1)[:, None, :]
    scores = np.where(seen, np.where(scores > 0, scores, 0.2 * scores), -1e9)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    found = (scores / scores.sum(-1, keepdims=True)) @ heads
    return _elu(found.transpose(1, 0, 2).reshape(n, width))


def _linear(weights: Mapping[str, Array], name: str, value: Array) -> Array:
    return value @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _elu(value: Array) -> Array:
    return np.where(value > 0, value, np.expm1(np.minimum(value, 0.0)))


class LearnedCosts:
    """Region costs by an estimator; a single operator takes its measured time (`RegionCosts`).

    Args:
        graph: Graph of the operators, with measured times.
        estimator: Estimator for the device of the measurements.

    Raises:
        InputError: Raised by `fit`: no operator was measured.
    """

    def __init__(self, graph: FusionGraph, estimator: Estimator) -> None:
        self.estimator, self._graph, self._alone = estimator, graph, AnalyticCosts(graph)

    def __call__(self, operators: tuple[int, ...], outputs: tuple[int, ...]) -> float:
        """Seconds of a region, as `RegionCosts` says."""
        if len(operators) == 1:
            return self._alone(operators, outputs)
        return self.estimator.seconds(region_graph(self._graph, operators, outputs))


class ChosenCosts(NamedTuple):
    """Costs selected for a graph, with the reason."""

    costs: RegionCosts
    why: str


def costs_for(graph: FusionGraph, estimator: Estimator | None = None) -> ChosenCosts:
    """Select the learned costs if there are weights for the graph's device, else the analytic ones.

    Args:
        graph: Graph of the operators, with measured times.
        estimator: Estimator. Defaults to the one shipped with wirewise, which is for CPUs.

    Raises:
        InputError: No operator was measured.
    """
    device = graph.device.partition(":")[0]
    if estimator is None and device == "cpu":
        estimator = load_shipped()
    if estimator is None or estimator.about.device != device:
        why = f"there are no weights of the estimator for device {device!r}, so regions cost what a formula says"
        return ChosenCosts(AnalyticCosts(graph), why)
    about = estimator.about
    why = f"regions cost what an estimator learned from {about.regions} of them on {about.machine}"
    return ChosenCosts(LearnedCosts(graph, estimator), why)


def load_shipped(vectors: str | None = None) -> Estimator:
    """Load the estimator shipped with wirewise, for CPUs.

    Doubling the vector width changes loop costs and which loops are vectorized; weights for one width predict only a
    third of the regions of the other within 20 %.

    Args:
        vectors: "avx2" or "avx512". Defaults to what this machine has.

    Raises:
        InputError: The vector type is unknown.
    """
    vectors = vectors or vectors_here()
    if vectors not in VECTORS:
        raise InputError(f"there are weights for {', '.join(VECTORS)}, not for {vectors!r}")
    return Estimator.load(_SHIPPED / f"regions-cpu-{vectors}.npz")


def vectors_here() -> str:
    """Widest vector type that both torch and Inductor use on this CPU."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return "avx512" if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags) else "avx2"
