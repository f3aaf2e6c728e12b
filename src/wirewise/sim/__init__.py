"""Simulated time lines of plans; every figure from here is simulated, never measured."""

from wirewise.sim.exchange import ComputeTimes, EpochPrediction, predict_epoch, simulate_epoch
from wirewise.sim.fusion import simulate_step, with_plan
from wirewise.sim.programs import ProgramTimeline
from wirewise.sim.programs import simulate as simulate_program
from wirewise.sim.replay import CriticalPath, Replay, replay
from wirewise.sim.steps import Prediction, RecordedStep, ReplayReport, predict, replay_steps
from wirewise.sim.timeline import Span, Timeline
from wirewise.sim.traces import Recording, record, recorded_steps, replay_trace
from wirewise.sim.whatif import parse

__all__ = [
    "ComputeTimes",
    "CriticalPath",
    "EpochPrediction",
    "Prediction",
    "ProgramTimeline",
    "RecordedStep",
    "Recording",
    "Replay",
    "ReplayReport",
    "Span",
    "Timeline",
    "parse",
    "predict",
    "predict_epoch",
    "record",
    "recorded_steps",
    "replay",
    "replay_steps",
    "replay_trace",
    "simulate_epoch",
    "simulate_program",
    "simulate_step",
    "with_plan",
]
