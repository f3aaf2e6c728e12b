"""Fused operators on this machine: samples of compiled regions, and an estimator that learns from them."""

from wirewise.trials.operators.learning import Accuracy, accuracy, learn, seen, split
from wirewise.trials.operators.samples import Sample, collect, collect_step, read_samples

__all__ = [
    "Accuracy",
    "Sample",
    "accuracy",
    "collect",
    "collect_step",
    "learn",
    "read_samples",
    "seen",
    "split",
]
