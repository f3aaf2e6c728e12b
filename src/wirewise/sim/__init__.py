"""Simulated time lines of plans; every figure from here is simulated, never measured."""

from wirewise.sim.lowering import LOWERINGS
from wirewise.sim.lowering.bitwidth import ExchangeTimes
from wirewise.sim.lowering.cache import BatchTimes
from wirewise.sim.predict import predict
from wirewise.sim.prediction import Prediction
from wirewise.sim.programs import ProgramTimeline
from wirewise.sim.programs import simulate as simulate_program
from wirewise.sim.replay import CriticalPath, StepReplay, replay
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
