"""Training in pipeline stages: timetables, one or two versions of the weights, messages between stages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirewise.runtime.pipeline.evaluation import EvaluationResult
    from wirewise.runtime.pipeline.layers import INPUT, LayerGraph
    from wirewise.runtime.pipeline.trainer import PassRecord, Pipeline, UpdateResult
    from wirewise.runtime.pipeline.updates import DelayCorrection, LossScale

__all__ = [
    "INPUT",
    "DelayCorrection",
    "EvaluationResult",
    "LayerGraph",
    "LossScale",
    "PassRecord",
    "Pipeline",
    "UpdateResult",
]

_WHERE = {
    "EvaluationResult": "evaluation",
    "INPUT": "layers",
    "LayerGraph": "layers",
    "DelayCorrection": "updates",
    "LossScale": "updates",
}
"""Modules of names; others are of `trainer`. Full-graph training takes journals of messages without the planners."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'trainer')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
