"""A log in the form of Helios whose jobs are drawn: many small ones, a few that take most of the accelerators' time."""

import csv
from datetime import UTC, datetime, timedelta

import numpy as np

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SHARES = (0.58, 0.10, 0.10, 0.14, 0.045, 0.02, 0.01, 0.005)
"""Accelerators that a job asks for, and how many ask for so many: most for one, few for more than a machine's eight."""
MEDIAN_S, SPREAD = 206.0, 2.64
"""Median and spread of the logarithm of durations, with which the mean is 6,652 s, as published of Helios."""
LONGEST_S = 5 * 86400.0
SWING = 0.6
"""Share by which arrivals swing up and down in a day."""
COLUMNS = (
    "job_id",
    "user",
    "gpu_num",
    "cpu_num",
    "node_num",
    "state",
    "submit_time",
    "start_time",
    "end_time",
)


def write_log(path, jobs, accelerators, load=1.0, seed=0):
    """Write a log of so many jobs that ask for `load` times what the accelerators can give while jobs arrive."""
    draw = np.random.default_rng(seed)
    sizes = draw.choice(SIZES, jobs, p=np.array(SHARES) / sum(SHARES))
    seconds = np.exp(np.log(MEDIAN_S) + SPREAD * draw.standard_normal(jobs)).clip(10, LONGEST_S).round()
    span_s = float((sizes * seconds).sum()) / (load * accelerators)
    # Instants by the inverse of how many have come: a day's swing over a steady stream.
    grid = np.linspace(0, span_s, 100_000)
    come = np.cumsum(1 + SWING * np.sin(2 * np.pi * grid / 86400))
    instants = np.sort(np.interp(draw.random(jobs) * come[-1], come, grid))
    first = datetime(2020, 4, 1, tzinfo=UTC)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow((*COLUMNS, "duration", "queue"))
        for job in range(jobs):
            begin = first + timedelta(seconds=float(instants[job]))
            end = begin + timedelta(seconds=float(seconds[job]))
            told = [f"{one:%Y-%m-%d %H:%M:%S}" for one in (begin, begin, end)]
            table.writerow(
                (job, "u", sizes[job], 4 * sizes[job], 1, "COMPLETED", *told, int(seconds[job]), "vc")
            )
