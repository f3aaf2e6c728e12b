"""Time estimator of fused operators for this machine, trained on samples and tested on unseen structures."""

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

__all__ = ["Accuracy", "accuracy", "fit_estimator", "machine", "split", "structure_of", "to_region_graph"]


def structure_of(sample: Sample) -> str:
    """Structure of a region: kinds and edges, without widths and sizes."""
    operators = enumerate(sample.graph.operators)
    return str([(one.kind, one.inputs, number in sample.outputs) for number, one in operators])


def split(regions: Sequence[Sequence[Sample]], share: float = 0.25) -> tuple[list[Sample], list[Sample]]:
    """Split samples into training and test set with disjoint structures; independent of their order.

    Args:
        regions: Samples by region, from `read_samples`.
        share: Fraction of structures in the test set.
    """
    known: list[Sample] = []
    kept: list[Sample] = []
    for samples in regions:
        for sample in samples:
            drawn = int.from_bytes(blake2b(structure_of(sample).encode(), digest_size=4).digest()) / 2**32
            (kept if drawn < share else known).append(sample)
    return known, kept


def to_region_graph(sample: Sample) -> RegionGraph:
    """Convert a sample to the input of estimators."""
    return region_graph(sample.graph, sample.operators, sample.outputs)


def fit_estimator(samples: Sequence[Sample], *, epochs: int = 60, **knobs: Any) -> Estimator:
    """Train an estimator on measured samples.

    Args:
        samples: Measured fused operators.
        epochs: Number of training epochs.
        **knobs: Further arguments of `fit`.

    Raises:
        InputError: No samples.
    """
    seconds, regions = [one.seconds for one in samples], [to_region_graph(one) for one in samples]
    return fit(regions, seconds, machine=machine(), epochs=epochs, **knobs)


def machine() -> str:
    """Name of this machine's CPU."""
    return f"{processor()[0]}, {torch.backends.cpu.get_cpu_capability()}, one thread"


class Accuracy(NamedTuple):
    """Accuracy of predicted times."""

    samples: int
    within_20: float
    """Fraction of the samples predicted within 20 % of the measured time."""
    median: float
    """Median of the relative errors."""
    worst_tenth: float
    """Relative error exceeded by a tenth of the samples."""
    order: float
    """Spearman's rank correlation."""


def accuracy(predicted: Sequence[float], samples: Sequence[Sample]) -> Accuracy:
    """Compare predicted with measured times of samples."""
    measured = np.array([one.seconds for one in samples])
    missed = np.abs(np.asarray(predicted) / measured - 1)
    order = float(spearmanr(predicted, measured).statistic)
    within = float((missed <= 0.2).mean())
    return Accuracy(len(samples), within, float(np.median(missed)), float(np.quantile(missed, 0.9)), order)
