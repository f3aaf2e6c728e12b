"""Measure, predict, plan and run the communication of distributed PyTorch training."""

__version__ = "0.1.0"
