"""Working inside an unmodified training script: recording it, measuring it, training it under plans."""

from wirewise.trials.inside.tasks import CarryOut, Measure, Record, Try, environment

__all__ = ["CarryOut", "Measure", "Record", "Try", "environment"]
