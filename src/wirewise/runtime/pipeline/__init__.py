"""Training in pipeline stages: timetables, one or two versions of the weights, messages between stages."""

from __future__ import annotations

from wirewise.runtime.pipeline.layers import INPUT, LayerGraph
from wirewise.runtime.pipeline.trainer import PassRecord, Pipeline, UpdateResult
from wirewise.runtime.pipeline.updates import DelayCorrection, LossScale

__all__ = ["INPUT", "DelayCorrection", "LayerGraph", "LossScale", "PassRecord", "Pipeline", "UpdateResult"]
