"""Records written by runtimes, and comparisons shown by pages and the command line.

Seconds are float, bytes are int.
"""

from __future__ import annotations

from wirewise.results.comparisons import Comparison, PredictedStep, Variant
from wirewise.results.compression import CompressionAdvice
from wirewise.results.queues import ExecutedJob, ExecutedQueue, ExecutedShare, QueueMoment
from wirewise.results.trainings import EpochRecord, IncrementalRecord, MeasuredPass, RecoveryRecord

__all__ = [
    "Comparison",
    "CompressionAdvice",
    "EpochRecord",
    "ExecutedJob",
    "ExecutedQueue",
    "ExecutedShare",
    "IncrementalRecord",
    "MeasuredPass",
    "PredictedStep",
    "QueueMoment",
    "RecoveryRecord",
    "Variant",
]
