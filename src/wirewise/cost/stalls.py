"""Breakdown of the training step's time, from runs that differ in one thing each, as in Stash.

Sources: Stash (ICDCS 2023; arXiv 2208.14344) for the runs and their differences, DS-Analyzer (VLDB 2021) for the
rates and the question how much of a data set must be cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from wirewise.cost.intervals import percentiles95
from wirewise.errors import InputError

__all__ = ["COMPONENTS", "Amount", "DataTimes", "StashTimes", "decompose", "fetch_rate", "stash_formulas"]

COMPONENTS = ("compute", "interconnect", "network", "prep", "fetch", "residual")
"""Components of a step's time, which add up to the total."""

_RESAMPLES = 2000
_SIMULATED = 500
_BLOCKS = 5
"""Neighbouring steps are resampled together: loaders with workers make one slow step in several fast ones."""


class Amount(msgspec.Struct, frozen=True):
    """Seconds per step, with a 95 % interval of the mean."""

    mean_s: float
    ci95_s: tuple[float, float]


def decompose(runs: Mapping[str, Sequence[NDArray[np.float64]]], seed: int = 0) -> dict[str, Amount]:
    """Split the step time into COMPONENTS, and give the "total".

    Every component is the difference of two runs, so nothing is attributed inside a run, where a straggler makes the
    others look busy (Stash, section 3). The residual compares the sum of all differences with runs of the unchanged
    job, which no other component uses. A run counts with its mean over steps, as loaders make step times uneven, and
    the median over repeats, as a machine may be disturbed for minutes. Intervals: percentiles of a bootstrap that
    resamples repeats, the same for all runs, and within a run blocks of steps.

    Args:
        runs: One array of step times in seconds for each repeat, by run: "compute", "machine", "network", "cached",
            "cold" and "whole". Without "machine" there is one rank, without "network" one host: those components are
            0.
        seed: Seed of the bootstrap.

    Raises:
        InputError: A run is missing, has another number of repeats than the rest, or holds no finite step.
    """
    chain = _chain(runs)
    draws = _resampled(runs, np.random.default_rng(seed))
    means = {name: float(np.median([repeat.mean() for repeat in runs[name]])) for name in runs}
    found = {"total": Amount(means["whole"], percentiles95(draws["whole"]))}
    for name, after, before in chain:
        value, drawn = means[after], draws[after]
        if before is not None:
            value, drawn = value - means[before], drawn - draws[before]
        found[name] = Amount(value, percentiles95(drawn))
    for name in COMPONENTS:
        found.setdefault(name, Amount(0.0, (0.0, 0.0)))
    return found


def _chain(runs: Mapping[str, Sequence[NDArray[np.float64]]]) -> list[tuple[str, str, str | None]]:
    """(component, run, run before it)."""
    needed = {"compute", "cached", "cold", "whole"}
    if missing := needed - set(runs):
        raise InputError(f"no run {sorted(missing)[0]!r} was measured; expected {', '.join(sorted(needed))}")
    counts = {len(repeats) for repeats in runs.values()}
    if len(counts) != 1 or not min(counts):
        raise InputError(f"runs have {sorted(counts)} repeats; expected equal numbers, at least 1")
    if not all(r.size and np.isfinite(r).all() for repeats in runs.values() for r in repeats):
        raise InputError("a run holds no step or a time that is not finite; measure it again")
    synthetic = [name for name in ("compute", "machine", "network") if name in runs]
    order = [*synthetic, "cached", "cold", "whole"]
    names = {"machine": "interconnect", "cached": "prep", "cold": "fetch", "whole": "residual"}
    return [
        (names.get(run, run), run, before) for run, before in zip(order, [None, *order[:-1]], strict=True)
    ]


def _resampled(
    runs: Mapping[str, Sequence[NDArray[np.float64]]], rng: np.random.Generator
) -> dict[str, NDArray[np.float64]]:
    """Resampled means of each run, [resamples]."""
    repeats = len(runs["whole"])
    chosen = rng.integers(repeats, size=(_RESAMPLES, repeats))
    found = {}
    for name, measured in runs.items():
        means = np.stack([_block_means(series, repeats, rng) for series in measured])
        found[name] = np.mean([means[chosen[:, k], np.arange(_RESAMPLES), k] for k in range(repeats)], axis=0)
    return found


def _block_means(series: NDArray[np.float64], slots: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means of circular blocks of steps, drawn anew for each slot, [resamples, slots]."""
    length = max(1, len(series) // _BLOCKS)
    around = np.concatenate([series, series])
    sums = np.concatenate([[0.0], np.cumsum(around)])
    blocks = (sums[length : length + len(series)] - sums[: len(series)]) / length
    starts = rng.integers(len(series), size=(_RESAMPLES, slots, -(-len(series) // length)))
    means: NDArray[np.float64] = blocks[starts].mean(axis=2)
    return means


class StashTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of Stash's runs, in the form stored by its tool.

    `synthetic_one_s` is RUN0, `synthetic_s` RUN1, `cold_s` RUN2, `cached_s` RUN3. `factor` is samples of RUN3 over
    samples of RUN1. `one_machine_s` is RUN1 of as many devices in one machine, where RUN1 is of several.
    """

    synthetic_one_s: float
    synthetic_s: float
    cold_s: float
    cached_s: float
    factor: float = 1.0
    one_machine_s: float | None = None


def stash_formulas(times: StashTimes) -> dict[str, dict[str, float]]:
    """Stash's stalls "as published" and "as coded", in seconds per run and as percentages.

    They differ in the fetch stall: the code subtracts the prep stall from RUN2 and so counts all compute as fetching.
    In both, percentages divide numerators scaled by `factor` by unscaled denominators.
    """
    t0, t1, t2, t3 = times.synthetic_one_s, times.synthetic_s, times.cold_s, times.cached_s
    prep = t3 / times.factor - t1
    both = {
        "interconnect_stall_s": t1 - t0,
        "interconnect_stall_pct": 100 * max(0.0, t1 - t0) / t1,
        "prep_stall_s": prep,
        "prep_stall_pct": 100 * max(0.0, prep) / t3,
    }
    if times.one_machine_s is not None:
        both["network_stall_s"] = t1 - times.one_machine_s
        both["network_stall_pct"] = 100 * (t1 - times.one_machine_s) / times.one_machine_s
    fetches = {"as_published": (t2 - t3) / times.factor, "as_coded": t2 / times.factor - prep}
    return {
        name: both | {"fetch_stall_s": fetch, "fetch_stall_pct": 100 * fetch / t2}
        for name, fetch in fetches.items()
    }


def fetch_rate(cached: float, memory_rate: float, storage_rate: float) -> float:
    """Samples per second from a cache that holds a fraction of the data set, and from storage for the rest.

    F(x) = D / (x D/M + (1-x) D/S) of DS-Analyzer; the size D of the data set cancels.

    Raises:
        InputError: The fraction is not between 0 and 1.
    """
    if not 0 <= cached <= 1:
        raise InputError(f"got cached={cached}; expected a fraction from 0 to 1")
    return 1.0 / (cached / memory_rate + (1.0 - cached) / storage_rate)


class DataTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Measured times of a data pipeline, from which to choose the fraction of the data to cache."""

    step_s: float
    """Step time without waiting for data: Stash's RUN1, over the network if there is one."""
    cached_step_s: float
    """Step time with everything cached: RUN3."""
    cold_step_s: float
    """Step time with nothing cached: RUN2."""
    prep_s: float
    """Seconds of one worker to prepare a batch."""
    storage_s: float
    """Seconds of one worker to fetch a batch from storage."""
    memory_s: float
    """Seconds of one worker to fetch a batch from the cache."""
    workers: int
    """Number of DataLoader workers of a rank; 0 if the rank itself loads, between its steps."""
    batch: int
    ranks: int
    ahead: int = 2
    """Batches that each worker prefetches."""

    def published_step_s(self, cached: float) -> float:
        """Predicted step time by DS-Analyzer, in seconds: the slowest of compute, prep and fetch.

        Valid if all three overlap, which takes a loader with many workers.
        """
        lanes, tiny = max(self.workers, 1), 1e-12
        rate = fetch_rate(cached, lanes / max(self.memory_s, tiny), lanes / max(self.storage_s, tiny))
        return max(self.step_s, self.cached_step_s, 1.0 / rate)

    def predicted_step_s(self, cached: float) -> float:
        """Predicted step time with PyTorch's loader, in seconds; equals the measurements at both ends.

        A worker fetches a batch, then prepares it. The number of cached items per batch is random, and the rank with
        the fewest delays all: the mean of the slowest exceeds the slowest mean. Overhead that the simulation misses
        at either end (collating, transfer of batches) is interpolated.

        Raises:
            InputError: The fraction is not between 0 and 1.
        """
        if not 0 <= cached <= 1:
            raise InputError(f"got cached={cached}; expected a fraction from 0 to 1")
        missed_cold = self.cold_step_s - self._simulated_s(0.0)
        missed_cached = self.cached_step_s - self._simulated_s(1.0)
        return self._simulated_s(cached) + (1.0 - cached) * missed_cold + cached * missed_cached

    def least_useful(self) -> float:
        """Smallest cached fraction, in steps of 0.01, beyond which more caching speeds up no step by more than 1 %."""
        best = self.predicted_step_s(1.0) * 1.01
        useful = [k for k in range(101) if self.predicted_step_s(k / 100) > best]
        return min(100, max(useful, default=-1) + 1) / 100

    def _simulated_s(self, cached: float) -> float:
        """Mean step of ranks whose loaders draw cached items by chance, the same for every call."""
        rng = np.random.default_rng(0)
        drawn = rng.random((_SIMULATED, self.ranks, self.batch)) < cached
        hits = drawn.mean(axis=2)
        data_s = self.prep_s + hits * self.memory_s + (1.0 - hits) * self.storage_s
        if self.workers == 0:
            return self.step_s + float(data_s.max(axis=1).mean())
        free = np.zeros((self.workers, self.ranks))
        ends = np.zeros(_SIMULATED + 1)
        for k, needed_s in enumerate(data_s):
            worker, room = k % self.workers, max(0, k - self.workers * self.ahead + 1)
            free[worker] = np.maximum(free[worker], ends[room]) + needed_s
            ends[k + 1] = max(ends[k], float(free[worker].max())) + self.step_s
        settled = _SIMULATED // 5
        return float(ends[-1] - ends[settled]) / (_SIMULATED - settled)
