"""Names of the files that a job's parent and its ranks exchange in the folder of the job."""

__all__ = ["JOB", "OUTCOME"]

JOB = "job.json"
"""Settings of the job, written by the parent."""
OUTCOME = "outcome.json"
"""What all ranks measured, written by rank 0."""
