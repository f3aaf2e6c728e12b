"""Stash: run an unmodified training script several times with one thing changed, and take the differences."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from wirewise import lab
from wirewise.cost.stalls import COMPONENTS, Amount, DataTimes, decompose
from wirewise.errors import InputError, LabError
from wirewise.files import owns_folder
from wirewise.profile.launch import environment
from wirewise.profile.stalls.cache import cache_folder
from wirewise.profile.stalls.command import Launch, parse_command
from wirewise.profile.stalls.records import Run, read_run
from wirewise.profile.stalls.report import StallReport
from wirewise.profile.stalls.settings import ENTRY, Settings
from wirewise.recipes.scripts import StallJob

__all__ = ["StallJob", "measure", "run_once"]

_NEEDED_LINES = 12


@owns_folder
def measure(
    job: StallJob, folder: Path | None = None, say: Callable[[str], None] = lambda _: None
) -> StallReport:
    """Run everything and return the stalls.

    Args:
        job: What to measure.
        folder: Takes a folder of raw times for each run; none: they are removed.
        say: Hears what is being run.

    Raises:
        InputError: The command, or a script that cannot be measured.
        PeerError: The script failed; the message holds its last lines.
        LabError: No lab can be built here.
    """
    launch = parse_command(job.command)
    _check(job, launch)
    found: dict[str, list[Run]] = {}
    with ExitStack() as stack:
        root = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wirewise-stalls-")))
        runner = _Runner(job, launch, root, stack)
        names = _runs(job, launch)
        for repeat in range(job.repeats):
            # There and back: what drifts slowly falls out of the differences.
            for name in names if repeat % 2 == 0 else names[::-1]:
                say(f"repeat {repeat + 1} of {job.repeats}: {name}")
                found.setdefault(name, []).append(runner.run(name, repeat))
    return _report(job, launch, {name: found[name] for name in names})


def run_once(job: StallJob, name: str = "whole") -> Run:
    """One run alone, by its name ("whole": the job as it is); errors as `measure`."""
    launch = parse_command(job.command)
    _check(job, launch)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wirewise-stalls-")))
        return _Runner(job, launch, root, stack).run(name, 0)


def _check(job: StallJob, launch: Launch) -> None:
    several = job.hosts > 1 or job.network_command
    if several and not launch.torchrun:
        raise InputError(
            "a command without torchrun is one rank; expected torchrun for runs over several hosts"
        )
    if launch.ranks % job.hosts:
        raise InputError(
            f"{launch.ranks} ranks cannot be put on {job.hosts} hosts evenly; change one of the two"
        )
    if job.hosts > 1 and job.network_command:
        raise InputError("got --hosts and --network-command; expected one of them")


def _runs(job: StallJob, launch: Launch) -> list[str]:
    parts = [f"partial {x:g}" for x in job.fractions]
    network = ["network"] if job.hosts > 1 or job.network_command else []
    return ["compute", *["machine"] * (launch.ranks > 1), *network, "cached", "cold", "whole", *parts]


class _Runner:
    """Starts one run after the other on networks that stay up."""

    def __init__(self, job: StallJob, launch: Launch, root: Path, stack: ExitStack) -> None:
        self._job, self._launch, self._root, self._stack = job, launch, root, stack
        self._networks: dict[int, lab.Lab | lab.Loopback] = {}

    def run(self, name: str, repeat: int) -> Run:
        """One run; `name` is "partial X" for the cached fraction X."""
        job, launch = self._job, self._launch
        kind, _, fraction = name.partition(" ")
        ranks = 1 if kind == "compute" else launch.ranks
        hosts = 1 if kind in ("compute", "machine") else job.hosts
        folder = (self._root / f"{repeat}-{name.replace(' ', '-')}").resolve()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with cache_folder() as cache:
            settings = Settings(
                folder=str(folder),
                cache_folder=str(cache),
                data="synthetic" if kind in ("compute", "machine", "network") else kind,
                warmup=job.warmup,
                steps=job.steps,
                batches=job.batches,
                cached_items=job.cached_items,
                fraction=float(fraction or 1.0),
            )
            if job.drop_caches and kind in ("cold", "whole", "partial"):
                _drop_caches()
            own = job.network_command is not None and kind not in ("compute", "machine")
            result = self._start(ranks, hosts, own, _variables(settings))
        tail = [line for lines in result.tails for line in lines][-_NEEDED_LINES:]
        why = "timeout, " if result.timed_out else ""
        ending = f"{why}exit code {result.exit_code} in the run {name!r}. Its last lines:\n" + "\n".join(tail)
        return read_run(folder, ranks, job.warmup, job.steps, ending)

    def _start(self, ranks: int, hosts: int, own: bool, variables: dict[str, str]) -> lab.JobResult:
        options: dict[str, Any] = {"environment": variables, "timeout_s": self._job.timeout_s}
        options["launcher"] = self._job.launcher if self._launch.torchrun else "none"
        command = self._launch.arguments
        if own:
            command, options["launcher"] = ["sh", "-c", str(self._job.network_command)], "none"
            return lab.Loopback().run(command, processes=1, **options)
        network = self._network(hosts)
        if isinstance(network, lab.Lab):
            return network.run(command, processes_per_host=ranks // hosts, **options)
        return network.run(command, processes=ranks, **options)

    def _network(self, hosts: int) -> lab.Lab | lab.Loopback:
        if hosts not in self._networks:
            shaped = hosts > 1 or self._job.hosts > 1 or self._job.in_lab
            if shaped and not (ready := lab.available())[0]:
                raise LabError(f"no lab here: {ready[1]}. Leave --hosts away, or give --network-command")
            made: Any = lab.Lab(hosts, self._job.link) if shaped else lab.Loopback()
            self._networks[hosts] = self._stack.enter_context(made)
        return self._networks[hosts]


def _variables(settings: Settings) -> dict[str, str]:
    """Only what differs from this process: launchers set the rest for each rank."""
    wanted = environment({ENTRY: settings.variables()})
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def _drop_caches() -> None:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        raise InputError(
            f"the page cache cannot be dropped: {error.strerror}; run as root, or without --drop-caches"
        ) from error


def _report(job: StallJob, launch: Launch, runs: dict[str, list[Run]]) -> StallReport:
    chain = {name: [run.step_s for run in repeats] for name, repeats in runs.items() if " " not in name}
    parts: dict[str, Any] = {f"{name}_s": amount for name, amount in decompose(chain).items()}
    facts = runs["whole"][0].facts
    rates = {
        name: float(np.mean(known))
        for name, repeats in runs.items()
        if (known := [run.lanes.hit_rate for run in repeats if run.lanes.hit_rate is not None])
    }
    return StallReport(
        **parts,
        runs_s={name: [float(run.step_s.mean()) for run in repeats] for name, repeats in runs.items()},
        command=job.command,
        ranks=launch.ranks,
        hosts=job.hosts,
        steps=job.steps,
        warmup=job.warmup,
        link_bytes_per_s=lab.Lab(job.hosts, job.link).rates[0] if job.hosts > 1 else None,
        network="own" if job.network_command else "lab" if job.hosts > 1 else "loopback",
        facts=facts,
        data=_data_times(runs, facts, launch.ranks),
        hit_rates=rates,
        notes=_notes(job, launch, facts, parts),
    )


def _data_times(runs: dict[str, list[Run]], facts: dict[str, Any], ranks: int) -> DataTimes | None:
    """Times of the data pipeline's parts for the question how much to cache."""
    batch, workers = facts.get("batch"), int(facts.get("workers", 0))
    if not batch or not all(run.lanes.items for run in (*runs["cached"], *runs["cold"])):
        return None
    warm_fetch, warm_prepare = _per_batch(runs["cached"], batch)
    cold_fetch, cold_prepare = _per_batch(runs["cold"], batch)
    # Of other data sets all is counted as preparing; what cold pages add to it is fetching.
    hidden = 0.0 if facts.get("separable") else max(0.0, cold_prepare - warm_prepare)
    return DataTimes(
        step_s=_step_s(runs, _synthetic(runs)),
        cached_step_s=_step_s(runs, "cached"),
        cold_step_s=_step_s(runs, "cold"),
        prep_s=warm_prepare,
        storage_s=cold_fetch + hidden,
        memory_s=warm_fetch,
        workers=workers,
        batch=batch,
        ranks=ranks,
        ahead=max(1, int(facts.get("prefetched", 0)) // max(1, workers)),
    )


def _synthetic(runs: dict[str, list[Run]]) -> str:
    return next(name for name in ("network", "machine", "compute") if name in runs)


def _step_s(runs: dict[str, list[Run]], name: str) -> float:
    return float(np.median([run.step_s.mean() for run in runs[name]]))


def _per_batch(runs: list[Run], batch: int) -> tuple[float, float]:
    """Seconds of fetching and of preparing a batch."""
    items = sum(run.lanes.items for run in runs)
    fetch, prepare = sum(run.lanes.fetch_s for run in runs), sum(run.lanes.prepare_s for run in runs)
    return fetch / items * batch, prepare / items * batch


def _notes(job: StallJob, launch: Launch, facts: dict[str, Any], parts: dict[str, Amount]) -> list[str]:
    found = []
    if launch.ranks == 1:
        found.append("one rank: interconnect and network are not measured and 0")
    elif job.hosts == 1 and job.network_command is None:
        found.append("one machine: the network is not measured and 0; give --hosts or --network-command")
    if job.hosts > 1:
        found.append("the hosts are emulated on one machine: links are real TCP, shaped")
    if not facts.get("map_style"):
        found.append("the data set is a stream: prep holds what the page cache could not keep of fetching")
    elif not facts.get("separable"):
        found.append(
            "the data set has no fetch and prepare methods: fetch is what a cold page cache costs more than a warm one"
        )
    if facts.get("prefetched", 0) > job.warmup:
        found.append(
            f"workers load {facts['prefetched']} batches ahead, more than --warmup {job.warmup}: data stalls may "
            "be larger than shown"
        )
    total = parts["total_s"].mean_s
    if abs(parts["residual_s"].mean_s) > 0.03 * total:
        found.append(
            "the parts miss the whole by more than 3 %: the machine was unsteady, measure more repeats"
        )
    if any(parts[f"{name}_s"].ci95_s[1] < -0.03 * total for name in COMPONENTS if name != "residual"):
        found.append(
            "a stall is below zero: a run with less to do was slower; other jobs may have run meanwhile"
        )
    return found
