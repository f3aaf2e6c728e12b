"""Simulated time lines of plans; every figure from here is simulated, never measured."""

from wirewise.sim.exchange import ComputeTimes, EpochPrediction, predict_epoch, simulate_epoch
from wirewise.sim.timeline import Span, Timeline

__all__ = ["ComputeTimes", "EpochPrediction", "Span", "Timeline", "predict_epoch", "simulate_epoch"]
