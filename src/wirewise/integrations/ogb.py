"""Score node predictions with the official evaluator of the Open Graph Benchmark.

The data sets themselves are loaded by name, `wirewise.graph.load("ogbn-arxiv")`, and trained like any other graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wirewise.errors import InputError
from wirewise.extras import import_extra

__all__ = ["official_score"]


def official_score(
    name: str, labels: NDArray[Any], scores: NDArray[Any], *, evaluator: Any = None
) -> dict[str, float]:
    """Compute the benchmark's ranking metric on the given nodes.

    Args:
        name: Name of the benchmark, such as "ogbn-arxiv".
        labels: Classes, int [nodes], or 0/1 [nodes, tasks].
        scores: Scores, float [nodes, classes]; the class with the largest score is predicted. For several tasks, one
            score for each.
        evaluator: An `ogb.nodeproppred.Evaluator`. Defaults to one for `name`.

    Returns:
        Score by its name, such as {"acc": 0.717}.

    Raises:
        InputError: ogb is not installed, or the shapes do not fit.
    """
    labels, scores = np.asarray(labels), np.asarray(scores)
    if scores.ndim != 2 or len(labels) != len(scores):
        raise InputError(
            f"got labels {list(labels.shape)} and scores {list(scores.shape)}; expected a row each"
        )
    if evaluator is None:
        evaluator = import_extra("ogb.nodeproppred", "ogb", "an evaluation as OGB defines it").Evaluator(name)
    predicted = scores if labels.ndim == 2 and labels.shape[1] > 1 else scores.argmax(axis=1)[:, None]
    truth = labels.reshape(len(labels), -1)
    result = evaluator.eval({"y_true": truth, "y_pred": predicted})
    return {key: float(value) for key, value in result.items()}
