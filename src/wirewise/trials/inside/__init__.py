"""Code that runs inside an unmodified training script: recording, measuring, training under plans."""

from wirewise.trials.inside.tasks import Measure, Record, Restart, RunPlan, TryPlans, environment

__all__ = ["Measure", "Record", "Restart", "RunPlan", "TryPlans", "environment"]
