"""How well tasks are solved, and how much of it is lost while later ones are learnt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError

__all__ = ["average_forgetting", "average_performance", "balanced_accuracy"]


def balanced_accuracy(found: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Mean over the classes among `labels` of the share that is right."""
    right = found == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def average_performance(accuracy: NDArray[np.float64]) -> float:
    """AP: mean over all tasks of the accuracy after the last one; `accuracy` as of `average_forgetting`."""
    _check(accuracy)
    return float(accuracy[-1].mean())


def average_forgetting(accuracy: NDArray[np.float64]) -> float:
    """AF: mean over all tasks but the last of the accuracy at the end less that when learnt; negative: forgotten.

    Args:
        accuracy: Accuracy of task k after task t is learnt, [t, k], for k up to t.

    Raises:
        InputError: Not square, or a value up to t is missing.
    """
    _check(accuracy)
    if len(accuracy) == 1:
        return 0.0
    return float((accuracy[-1] - accuracy.diagonal())[:-1].mean())


def _check(accuracy: NDArray[np.float64]) -> None:
    square = accuracy.ndim == 2 and accuracy.shape[0] == accuracy.shape[1] > 0
    if not square or not np.isfinite(accuracy[np.tril_indices(len(accuracy))]).all():
        raise InputError(
            f"got accuracies {accuracy.shape}; expected a square matrix with a value for every task so far"
        )
