"""Simulated timelines of plans; every figure from here is simulated, never measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirewise.lazy import lazy_names

if TYPE_CHECKING:
    from wirewise.sim.dispatch import predict
    from wirewise.sim.lowering import LOWERINGS
    from wirewise.sim.lowering.bitwidth import ExchangeTimes
    from wirewise.sim.lowering.cache import BatchTimes
    from wirewise.sim.prediction import Prediction
    from wirewise.sim.programs import ProgramTimeline
    from wirewise.sim.programs import simulate as simulate_program
    from wirewise.sim.step_replay import CriticalPath, StepReplay, replay
    from wirewise.sim.steps import RecordedStep, ReplayReport, StepPrediction, replay_changed, replay_steps
    from wirewise.sim.timeline import Span, Timeline
    from wirewise.sim.traces import TraceRecording, record, recorded_steps, replay_trace
    from wirewise.sim.whatif import parse

__all__ = [
    "LOWERINGS",
    "BatchTimes",
    "CriticalPath",
    "ExchangeTimes",
    "Prediction",
    "ProgramTimeline",
    "RecordedStep",
    "ReplayReport",
    "Span",
    "StepPrediction",
    "StepReplay",
    "Timeline",
    "TraceRecording",
    "parse",
    "predict",
    "record",
    "recorded_steps",
    "replay",
    "replay_changed",
    "replay_steps",
    "replay_trace",
    "simulate_program",
]

# Commands that need one record load no compiled code.
__getattr__ = lazy_names(
    __name__,
    {
        "lowering": ("LOWERINGS",),
        "lowering.bitwidth": ("ExchangeTimes",),
        "lowering.cache": ("BatchTimes",),
        "dispatch": ("predict",),
        "prediction": ("Prediction",),
        "programs": (
            "ProgramTimeline",
            "simulate_program=simulate",
        ),
        "step_replay": (
            "CriticalPath",
            "StepReplay",
            "replay",
        ),
        "steps": (
            "RecordedStep",
            "ReplayReport",
            "StepPrediction",
            "replay_changed",
            "replay_steps",
        ),
        "timeline": (
            "Span",
            "Timeline",
        ),
        "traces": (
            "TraceRecording",
            "record",
            "recorded_steps",
            "replay_trace",
        ),
        "whatif": ("parse",),
    },
)
