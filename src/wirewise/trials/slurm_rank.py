"""A rank of a job that Slurm runs: `-m wirewise.trials.slurm_rank TARGET FOLDER`, started by srun."""

from __future__ import annotations

import sys

from wirewise.allocation import take_place
from wirewise.runtime.jobs.host import run_rank

__all__: list[str] = []

if __name__ == "__main__":
    take_place()
    run_rank(sys.argv[1], sys.argv[2])
