"""An estimator of fused operators for this machine: learned from samples, tried on structures that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr

from wirewise.planners.fusion.disco.estimator import Estimator
from wirewise.planners.fusion.disco.features import RegionGraph, region_graph
from wirewise.profile.estimator import fit
from wirewise.topology import processor
from wirewise.trials.operators.samples import Sample

__all__ = ["Accuracy", "accuracy", "learn", "machine", "seen", "split", "structure_of"]


def structure_of(sample: Sample) -> str:
    """Kinds, edges and outputs of a region: equal for one that differs in widths and sizes only."""
    operators = enumerate(sample.graph.operators)
    return str([(one.kind, one.inputs, number in sample.outputs) for number, one in operators])


def split(regions: Sequence[Sequence[Sample]], share: float = 0.25) -> tuple[list[Sample], list[Sample]]:
    """Samples to learn from, and samples of structures that are in none of those; the same for any order.

    Args:
        regions: Samples by region, from `read_samples`.
        share: Share of the structures to keep back.
    """
    known: list[Sample] = []
    kept: list[Sample] = []
    for samples in regions:
        for sample in samples:
            drawn = int.from_bytes(blake2b(structure_of(sample).encode(), digest_size=4).digest()) / 2**32
            (kept if drawn < share else known).append(sample)
    return known, kept


def seen(sample: Sample) -> RegionGraph:
    """A sample as estimators see it."""
    return region_graph(sample.graph, sample.operators, sample.outputs)


def learn(samples: Sequence[Sample], *, epochs: int = 60, **knobs: Any) -> Estimator:
    """An estimator from samples that were measured on this machine.

    Args:
        samples: Measured fused operators.
        epochs: Passes over them.
        **knobs: Further arguments of `fit`.

    Raises:
        InputError: No samples.
    """
    seconds, regions = [one.seconds for one in samples], [seen(one) for one in samples]
    return fit(regions, seconds, machine=machine(), epochs=epochs, **knobs)


def machine() -> str:
    """This machine's processor, in words."""
    return f"{processor()[0]}, {torch.backends.cpu.get_cpu_capability()}, one thread"


class Accuracy(NamedTuple):
    """How near predicted times are to measured ones."""

    samples: int
    within_20: float
    """Share of the samples that are missed by 20 % of the measured time at most."""
    median: float
    """Median of the relative errors."""
    worst_tenth: float
    """Relative error that a tenth of the samples exceed."""
    order: float
    """Spearman's rank correlation."""


def accuracy(predicted: Sequence[float], samples: Sequence[Sample]) -> Accuracy:
    """How near predicted seconds of samples are to measured ones."""
    measured = np.array([one.seconds for one in samples])
    missed = np.abs(np.asarray(predicted) / measured - 1)
    order = float(spearmanr(predicted, measured).statistic)
    within = float((missed <= 0.2).mean())
    return Accuracy(len(samples), within, float(np.median(missed)), float(np.quantile(missed, 0.9)), order)
