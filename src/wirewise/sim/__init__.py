"""Simulated time lines of plans; every figure from here is simulated, never measured."""

from wirewise.cost.interfaces import Links
from wirewise.sim.exchange import ComputeTimes, EpochPrediction, predict_epoch, simulate_epoch
from wirewise.sim.fusion import simulate_step, with_plan
from wirewise.sim.replay import CriticalPath, Replay, replay
from wirewise.sim.steps import RecordedStep, ReplayReport, replay_steps
from wirewise.sim.timeline import Span, Timeline

__all__ = [
    "ComputeTimes",
    "CriticalPath",
    "EpochPrediction",
    "Links",
    "RecordedStep",
    "Replay",
    "ReplayReport",
    "Span",
    "Timeline",
    "predict_epoch",
    "replay",
    "replay_steps",
    "simulate_epoch",
    "simulate_step",
    "with_plan",
]
