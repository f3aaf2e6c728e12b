"""Fused operators on this machine: samples of compiled regions, and an estimator trained on them."""

from wirewise.trials.operators.learning import Accuracy, accuracy, fit_estimator, split, to_region_graph
from wirewise.trials.operators.samples import Sample, collect, collect_step, read_samples

__all__ = [
    "Accuracy",
    "Sample",
    "accuracy",
    "collect",
    "collect_step",
    "fit_estimator",
    "read_samples",
    "split",
    "to_region_graph",
]
