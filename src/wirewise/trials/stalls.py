"""Stash: repeated runs of an unmodified training script with one change each, and their differences."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wirewise import lab
from wirewise.cost.instances import Workload
from wirewise.cost.stalls import Amount
from wirewise.errors import InputError
from wirewise.files import owns_folder
from wirewise.hosts import OwnedFolder
from wirewise.profile.launch import environment
from wirewise.profile.stalls.cache import cache_folder
from wirewise.profile.stalls.records import ProfiledRun, read_run
from wirewise.profile.stalls.report import StallReport
from wirewise.profile.stalls.settings import ENTRY, StallSettings
from wirewise.profile.stalls.summary import report_of
from wirewise.sim.steps import StepPrediction, replay_changed, replay_steps
from wirewise.sim.traces import record
from wirewise.sim.whatif import parse
from wirewise.trace import Trace
from wirewise.trials.inside.tasks import TRIAL_VARIABLE
from wirewise.trials.last_words import last_lines
from wirewise.trials.stall_job import StallJob
from wirewise.trials.start import Launch, expect_one_host, open_network, parse_command, run_on
from wirewise.trials.windows import alternate

__all__ = ["StallJob", "counterfactuals", "measure", "run_once", "workload"]

_NEEDED_LINES = 12
_CHANGES = {"no_communication": "no_communication", "instant_data": "scale=data:x0"}
"""Change that simulates each counterfactual."""


@owns_folder
def measure(
    job: StallJob, folder: Path | None = None, log: Callable[[str], None] = lambda _: None
) -> StallReport:
    """Measure all stalls of a training script.

    Args:
        job: Command and measurement options.
        folder: Folder for the raw times of each run; removed if None.
        log: Called with progress messages.

    Raises:
        InputError: The command is invalid, or its script cannot be measured.
        PeerError: The script failed; the message holds its last lines.
        LabError: No lab can be built here.
    """
    launch = parse_command(job.command)
    _check(job, launch)
    found: dict[str, list[ProfiledRun]] = {}
    with ExitStack() as stack:
        root = folder or _own_folder(stack)
        runner = _Runner(job, launch, root, stack)
        names = _runs(job, launch)
        for repeat, name in alternate(names, job.repeats):
            log(f"repeat {repeat + 1} of {job.repeats}: {name}")
            found.setdefault(name, []).append(runner.run(name, repeat))
    return report_of(
        {name: found[name] for name in names},
        command=job.command,
        ranks=launch.ranks,
        hosts=job.hosts,
        steps=job.steps,
        warmup=job.warmup,
        network="own" if job.network_command else "lab" if job.hosts > 1 else "loopback",
        link_bytes_per_s=lab.Lab(job.hosts, job.link).rates[0] if job.hosts > 1 else None,
    )


def run_once(job: StallJob, name: str = "whole") -> ProfiledRun:
    """Measure one run by its name ("whole": unchanged job); errors as in `measure`."""
    launch = parse_command(job.command)
    _check(job, launch)
    with ExitStack() as stack:
        return _Runner(job, launch, _own_folder(stack), stack).run(name, 0)


def _own_folder(stack: ExitStack) -> Path:
    return stack.enter_context(OwnedFolder(Path(tempfile.gettempdir()), "wirewise-stalls-")).path


def _check(job: StallJob, launch: Launch) -> None:
    if not job.network_command:
        expect_one_host(
            "profile stalls",
            "say with --network-command, such as 'srun torchrun ...', how the job runs on all of them",
        )
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

    def run(self, name: str, repeat: int) -> ProfiledRun:
        """One run; `name` is "partial X" for the cached fraction X."""
        job, launch = self._job, self._launch
        kind, _, fraction = name.partition(" ")
        ranks = 1 if kind == "compute" else launch.ranks
        hosts = 1 if kind in ("compute", "machine") else job.hosts
        folder = (self._root / f"{repeat}-{name.replace(' ', '-')}").resolve()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with cache_folder() as cache:
            settings = StallSettings(
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
            result = self._start(ranks, hosts, own, _variables(settings, name))
        tail = last_lines([line for lines in result.tails for line in lines], _NEEDED_LINES)
        why = "timeout, " if result.timed_out else ""
        ending = f"{why}exit code {result.exit_code} in the run {name!r}. Its last lines:\n{tail}"
        return read_run(folder, ranks, job.warmup, job.steps, ending)

    def _start(self, ranks: int, hosts: int, own: bool, variables: dict[str, str]) -> lab.JobResult:
        options: dict[str, Any] = {"environment": variables, "timeout_s": self._job.timeout_s}
        options["launcher"] = self._job.launcher if self._launch.torchrun else "none"
        command = self._launch.arguments
        if own:
            command, options["launcher"] = ["sh", "-c", str(self._job.network_command)], "none"
            return run_on(lab.Loopback(), command, 1, **options)
        return run_on(self._network(hosts), command, ranks, **options)

    def _network(self, hosts: int) -> lab.Lab | lab.Loopback:
        if hosts not in self._networks:
            shaped = hosts > 1 or self._job.hosts > 1 or self._job.in_lab
            advice = "leave --hosts away, or give --network-command"
            kind = "lab" if shaped else "loopback"
            network: Any = open_network(kind, hosts, self._job.link, advice=advice)
            self._networks[hosts] = self._stack.enter_context(network)
        return self._networks[hosts]


def _variables(settings: StallSettings, trial: str) -> dict[str, str]:
    """Only what differs from this process: launchers set the rest for each rank."""
    wanted = environment({ENTRY: {**settings.variables(), TRIAL_VARIABLE: trial}})
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def _drop_caches() -> None:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        raise InputError(
            f"the page cache cannot be dropped: {error.strerror}; run as root, or without --drop-caches"
        ) from error


def workload(stalls: StallReport, samples: float) -> Workload:
    """Convert stalls to the workload of a job for `cost.instances.choose`.

    Hidden communication is the excess of a ring's predicted time on the measured link over the measured stall; it is
    assumed to be hidden on other machines, too.

    Args:
        stalls: Measured stalls; to judge machines with several hosts, over links of a known rate.
        samples: Total number of training samples of the job.

    Raises:
        InputError: The batch is not known, or a fact is no number.
    """
    batch = _fact(stalls, "batch", 0)
    if not batch > 0 or not samples > 0:
        raise InputError(f"got a batch of {batch:g} and {samples:g} samples; expected both above 0")
    ranks, size = stalls.ranks, _fact(stalls, "gradient_bytes", 0)
    reductions = _fact(stalls, "reductions", 1) or 1
    plain = Workload(
        samples=samples,
        batch=batch,
        compute_s=stalls.compute_s.mean_s,
        data_s=max(0.0, stalls.prep_s.mean_s) + max(0.0, stalls.fetch_s.mean_s),
        interconnect_s=max(0.0, stalls.interconnect_s.mean_s),
        gradient_bytes=size,
        reductions=reductions,
    )
    if stalls.link_bytes_per_s is None or ranks < 2:
        return plain
    ring = plain.ring_s(stalls.link_bytes_per_s, ranks)
    seen = stalls.interconnect_s.mean_s + stalls.network_s.mean_s
    return plain.hiding(max(0.0, ring - max(0.0, seen)))


def _fact(stalls: StallReport, name: str, default: float) -> float:
    value = stalls.facts.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise InputError(f"$.facts.{name} is {value!r}; expected a finite number of at least 0")
    return value


def counterfactuals(trace: Trace) -> dict[str, Amount]:
    """Predicted savings per step without communication and without input waits, in seconds.

    Args:
        trace: Trace of the same command on the same machines, on aligned clocks.

    Raises:
        InputError: Raised by `sim.replay_trace`.
    """
    found = record(trace)
    base = replay_steps(found.steps, found.links, interference=found.interference)
    kinds = {op.kind for rank in trace.ranks for op in rank.ops}
    changes = {name: text for name, text in _CHANGES.items() if name != "instant_data" or "data" in kinds}
    return {
        name: _gain(
            base, replay_changed(found.steps, found.links, parse(text), interference=found.interference)
        )
        for name, text in changes.items()
    }


def _gain(base: StepPrediction, without: StepPrediction) -> Amount:
    mean = base.predicted_step_s - without.predicted_step_s
    halves = [(p.ci95_s[1] - p.ci95_s[0]) / 2 for p in (base, without)]
    # As of independent means; both are of the same steps, so this is rather too wide.
    half = sum(width**2 for width in halves) ** 0.5
    return Amount(mean, (mean - half, mean + half))
