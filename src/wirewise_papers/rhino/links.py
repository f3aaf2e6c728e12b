"""Timing of collectives of parallel plans on the links of hosts: `-m wirewise_papers.rhino.links FOLDER`."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from wirewise.cost.links import Links
from wirewise.cost.transfers import TransferSample, fit_transfers
from wirewise.lab.accelerator import PacedOperators
from wirewise.planners.parallel.rhino.layouts import layout_steps as steps_of
from wirewise.plans.parallel import parse_placements
from wirewise.runtime.parallel.groups import RankGroups, start_move
from wirewise.runtime.parallel.parts import local_shape
from wirewise.trials.rank import Rank, main
from wirewise.trials.start import open_network, run_ranks
from wirewise_papers.rhino.job import RhinoJob

__all__ = ["fit_links", "measured_links", "timed_collectives", "work"]

_CHANGES = ("P R", "S0 R", "P S0", "S0 S1")
"""Layouts before and behind an all-reduce, an all-gather, a reduce-scatter and an all-to-all."""
_SIZES = (1 << 12, 1 << 17, 1 << 19)
"""Bytes of the whole tensors."""
_REPEATS = 9
_PAUSE = 256
"""Rows and columns of matrices that are multiplied between collectives, as operators are in a step."""


def measured_links(job: RhinoJob, folder: Path, log: Callable[[str], None]) -> Links:
    """Measure links between ranks, with overhead of collectives of each kind.

    Arguments and errors are those of `timed_collectives`.
    """
    return fit_links(job.wish.rates, timed_collectives(job, folder, log))


def timed_collectives(job: RhinoJob, folder: Path, log: Callable[[str], None]) -> list[TransferSample]:
    """Time collectives of each kind and size with one rank on each host.

    Args:
        job: Hosts and rates.
        folder: Folder for logs and measurements.
        log: Called with progress messages.

    Raises:
        LabError: No lab can be built here.
        PeerError: A rank failed; the message quotes the end of its output.
    """
    rates = job.wish.rates
    with open_network(job.wish.network, len(rates), rates) as network:
        worker, kind = "wirewise_papers.rhino.links", list[TransferSample]
        return run_ranks(worker, folder, kind, network=network, ranks=len(rates), job=job, log=log)


def fit_links(rates: tuple[str, ...], samples: list[TransferSample]) -> Links:
    """Fit links of given rates to measured collectives.

    Args:
        rates: Rate of each host's link.
        samples: Collectives, one at a time, each of one round.
    """
    fit = fit_transfers(samples)
    links = Links.of_lab(rates)
    # Rings go at the pace of the narrowest link.
    scale = float(links.bandwidth_out_bytes_per_s.min()) / fit.bandwidth_bytes_per_s
    burden = {kind: scale * by for kind, by in fit.burden.items()}
    return replace(links, burden=burden, call_s=fit.latency_s)


def work(rank: Rank[RhinoJob]) -> None:
    """Time each kind of collective at several sizes, after paced operators, as in executed plans."""
    groups, ranks = RankGroups([rank.transport]), rank.transport.world_size
    rank.outcome(
        [_timed(rank, groups, change.split(), size, ranks) for change in _CHANGES for size in _SIZES]
    )


def _timed(
    rank: Rank[RhinoJob], groups: RankGroups, words: list[str], size_bytes: int, ranks: int
) -> TransferSample:
    before, after = parse_placements(words)
    shape = (ranks, ranks, max(size_bytes // (4 * ranks * ranks), 1))
    own, pause = torch.zeros(local_shape(shape, (before,), groups.mesh)), torch.ones(_PAUSE, _PAUSE)
    device, seconds = rank.job.wish.device, list[float]()
    pause_s = device.seconds(2.0 * _PAUSE**3, 3.0 * pause.nbytes, 4)
    rank.transport.barrier("the start of collectives")
    # Ranks that compute are not ready all at once, in a step as here.
    with PacedOperators(device):
        for _ in range(1 + _REPEATS):
            start_s = time.perf_counter()
            pause @ pause
            start_move(groups, 0, own, before, after).wait()
            seconds.append(time.perf_counter() - start_s - pause_s)
    (step,) = steps_of((before,), (after,), float(size_bytes), groups.mesh) or ()
    end_s = max(float(rank.transport.slowest(statistics.median(seconds[1:]))), 1e-6)
    return TransferSample(0.0, end_s, step.sent_bytes, 1, step.kind, alone=True)


if __name__ == "__main__":
    main(RhinoJob, work, sys.argv[1])
