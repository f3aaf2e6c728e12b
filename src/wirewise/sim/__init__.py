"""Simulated time lines of plans; every figure from here is simulated, never measured."""

from wirewise.cost.interfaces import Links
from wirewise.sim.exchange import ComputeTimes, EpochPrediction, predict_epoch, simulate_epoch
from wirewise.sim.replay import CriticalPath, Replay, replay
from wirewise.sim.timeline import Span, Timeline

__all__ = [
    "ComputeTimes",
    "CriticalPath",
    "EpochPrediction",
    "Links",
    "Replay",
    "Span",
    "Timeline",
    "predict_epoch",
    "replay",
    "simulate_epoch",
]
