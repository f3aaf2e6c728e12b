"""What a training run reports: one record an epoch, one result a mode, one result a run.

Runtimes write these records, reports and the command line read them. Seconds are float, bytes are int.
"""

from __future__ import annotations

from wirewise.results.comparisons import Comparison, Variant
from wirewise.results.gradients import Advice, CompressionRun, DproResult, GroupRecord, PlanRecord
from wirewise.results.graphs import (
    EpochRecord,
    IncrementalRecord,
    IncrementalRun,
    MeasuredPass,
    MiniBatchRecord,
    MiniBatchRun,
    ModeResult,
    PlacementRecord,
    PlacementRun,
    RunResult,
)
from wirewise.results.jobs import (
    ExecutedJob,
    ExecutedQueue,
    ExecutedShare,
    JobsRun,
    QueueMoment,
    RealQueue,
    SchedulerRecord,
)
from wirewise.results.models import (
    DeploymentRecord,
    DeploymentRun,
    DeploymentTimes,
    MovedTimes,
    ParallelRecord,
    ParallelRun,
    ParallelTimes,
    PipelineRecord,
    PipelineRun,
    PipelineTimes,
    PredictedStep,
    ReshardRecord,
    ReshardRun,
)
from wirewise.results.recovery import FinalState, RecoveryRecord, RecoveryRun, SurvivalRecord

__all__ = [
    "Advice",
    "Comparison",
    "CompressionRun",
    "DeploymentRecord",
    "DeploymentRun",
    "DeploymentTimes",
    "DproResult",
    "EpochRecord",
    "ExecutedJob",
    "ExecutedQueue",
    "ExecutedShare",
    "FinalState",
    "GroupRecord",
    "IncrementalRecord",
    "IncrementalRun",
    "JobsRun",
    "MeasuredPass",
    "MiniBatchRecord",
    "MiniBatchRun",
    "ModeResult",
    "MovedTimes",
    "ParallelRecord",
    "ParallelRun",
    "ParallelTimes",
    "PipelineRecord",
    "PipelineRun",
    "PipelineTimes",
    "PlacementRecord",
    "PlacementRun",
    "PlanRecord",
    "PredictedStep",
    "QueueMoment",
    "RealQueue",
    "RecoveryRecord",
    "RecoveryRun",
    "ReshardRecord",
    "ReshardRun",
    "RunResult",
    "SchedulerRecord",
    "SurvivalRecord",
    "Variant",
]
