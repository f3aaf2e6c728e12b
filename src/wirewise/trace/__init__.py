"""Descriptions of jobs: traces of all ranks, gradients, operators, stages, recovery, tasks, queues of jobs."""

from wirewise.trace.align import align, violations
from wirewise.trace.clocks import ClockQuality, clock_quality
from wirewise.trace.dataflow import Dataflow, build, coarsen
from wirewise.trace.files import RankWriter, rank_file, read, read_rank, write_trace
from wirewise.trace.gradients import GradientTensor, GradientTrace, read_gradient_trace
from wirewise.trace.jobs import JOB_READERS, Job, JobReader, job_file, read_job
from wirewise.trace.match import Match, match
from wirewise.trace.modules import BucketSpan, Module, ModuleTrace, Overhead
from wirewise.trace.operator_graph import (
    OperatorGraph,
    OperatorNode,
    RepeatedBlocks,
    read_operator_graph,
    write_operator_graph,
)
from wirewise.trace.operators import CATEGORIES, FusionGraph, MemoryLayout, Operator, read_fusion_graph
from wirewise.trace.queue_logs import read_queue_log, read_speeds
from wirewise.trace.queues import EdgeCluster, JobKind, JobQueue, QueuedJob, read_queue, write_queue
from wirewise.trace.records import COLLECTIVES, KINDS, ClockFit, Header, Op, Probe, RankTrace, Trace
from wirewise.trace.recovery import (
    ProtectedStage,
    RecoveryTrace,
    StageMessages,
    read_recovery_trace,
    write_recovery_trace,
)
from wirewise.trace.sources import load, open_trace
from wirewise.trace.stages import StageModule, StageTrace, read_stage_trace, write_stage_trace
from wirewise.trace.tasks import ROUTES, Flow, TaskSet, TrainingTask, read_tasks, write_tasks
from wirewise.trace.whole import collapse_algorithms

__all__ = [
    "CATEGORIES",
    "COLLECTIVES",
    "JOB_READERS",
    "KINDS",
    "ROUTES",
    "BucketSpan",
    "ClockFit",
    "ClockQuality",
    "Dataflow",
    "EdgeCluster",
    "Flow",
    "FusionGraph",
    "GradientTensor",
    "GradientTrace",
    "Header",
    "Job",
    "JobKind",
    "JobQueue",
    "JobReader",
    "Match",
    "MemoryLayout",
    "Module",
    "ModuleTrace",
    "Op",
    "Operator",
    "OperatorGraph",
    "OperatorNode",
    "Overhead",
    "Probe",
    "ProtectedStage",
    "QueuedJob",
    "RankTrace",
    "RankWriter",
    "RecoveryTrace",
    "RepeatedBlocks",
    "StageMessages",
    "StageModule",
    "StageTrace",
    "TaskSet",
    "Trace",
    "TrainingTask",
    "align",
    "build",
    "clock_quality",
    "coarsen",
    "collapse_algorithms",
    "job_file",
    "load",
    "match",
    "open_trace",
    "rank_file",
    "read",
    "read_fusion_graph",
    "read_gradient_trace",
    "read_job",
    "read_operator_graph",
    "read_queue",
    "read_queue_log",
    "read_rank",
    "read_recovery_trace",
    "read_speeds",
    "read_stage_trace",
    "read_tasks",
    "violations",
    "write_operator_graph",
    "write_queue",
    "write_recovery_trace",
    "write_stage_trace",
    "write_tasks",
    "write_trace",
]
