"""Options of a run of schedulers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.lab import HostFault, parse_fault
from wirewise.planners import PLANNERS

__all__ = ["REAL_KINDS", "RealKind", "TapFingerJob"]


class RealKind(NamedTuple):
    """Command of the ranks of a kind of real jobs."""

    target: str = "wirewise_papers.tapfinger.worker:train"
    """Function called with the job's folder, as "module:function" or "FILE.py:function"."""
    ranks: tuple[int, ...] = ()
    """Possible numbers of ranks of a job; empty for any."""


REAL_KINDS = {"text": RealKind(), "pipeline": RealKind(ranks=(2, 4, 8)), "graph": RealKind()}
"""Kinds of real jobs that come with wirewise."""


def _real_kind(text: str) -> tuple[str, RealKind]:
    """Name and kind, of `REAL_KINDS` or as NAME=FILE.py:FUNCTION.

    Raises:
        InputError: It is neither, or there is no such file or function.
    """
    if text in REAL_KINDS:
        return text, REAL_KINDS[text]
    name, _, target = text.partition("=")
    file, _, function = target.rpartition(":")
    if not name.isidentifier() or name in REAL_KINDS or not file.endswith(".py"):
        raise InputError(
            f"got the kind {text!r}; expected {', '.join(REAL_KINDS)}, or NAME=FILE.py:FUNCTION with another name"
        )
    try:
        found = ast.parse(Path(file).read_bytes(), file).body
    except (OSError, SyntaxError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {file} of the kind {name!r}: {why}; expected a Python file") from error
    known = [one.name for one in found if isinstance(one, ast.FunctionDef)]
    if function not in known:
        raise InputError(
            f"{file} has no function {function!r}; expected one that takes the folder of a job, of: "
            f"{', '.join(known) or 'none is there'}"
        )
    return name, RealKind(f"{Path(file).resolve()}:{function}")


def _host_fault(text: str) -> HostFault:
    found = parse_fault(text)
    if not isinstance(found, HostFault):
        raise InputError(f"got {text!r}; expected a fault of a host at a time, such as kill:1@10s")
    return found


class TapFingerJob(opt.Options, frozen=True, kw_only=True):
    """Settings of a run.

    Raises:
        InputError: A value is invalid.
    """

    queues: Annotated[
        Literal["even", "uneven"],
        opt.about("Simulated clusters: even, three of 16 and 16; or uneven, six of 4 to 32."),
    ] = "even"
    seeds: Annotated[opt.Count, opt.about("Simulated queues, each sampled with its own seed.")] = 10
    jobs: Annotated[opt.Natural, opt.about("Jobs of a simulated queue; 0: 64 for each cluster.")] = 0
    kept: Annotated[
        opt.Share,
        opt.about("Fraction of a slot's progress that a job keeps after its allocation changed, simulated."),
    ] = 0.5
    real_jobs: Annotated[opt.Natural, opt.about("Jobs that are run for real; 0: none.")] = 12
    kinds: Annotated[
        opt.Distinct,
        opt.about(
            "Kinds of real jobs: text, pipeline, graph; or NAME=FILE.py:FUNCTION, a function of your own that takes "
            "the folder of a job."
        ),
    ] = tuple(REAL_KINDS)
    planner: Annotated[str, opt.about("Scheduler of the real jobs.", words=tuple(PLANNERS["jobs"]))] = (
        "tapfinger"
    )
    clusters: Annotated[opt.Count, opt.about("Clusters of real jobs, one host each.")] = 2
    cpus: Annotated[opt.Count, opt.about("Processors of each of them.")] = 4
    gpus: Annotated[int, opt.about("Accelerators of each of them, emulated.", ge=2)] = 4
    processor: Annotated[
        float, opt.about("Fraction of a real processor that a cluster's processor stands for.", ge=0.02, le=4)
    ] = 0.25
    slot_s: Annotated[opt.Positive, opt.about("Seconds between decisions on real jobs.")] = 2.0
    rate: Annotated[opt.Positive, opt.about("Real jobs that arrive in a slot, on average.")] = 1.0
    size_s: Annotated[
        opt.Positive, opt.about("Seconds of an ordinary real job with the least that it starts with.")
    ] = 16.0
    spread: Annotated[float, opt.about("Standard deviation of the logarithm of a real job's size.", ge=0)] = (
        0.3
    )
    accelerator_s: Annotated[
        float, opt.about("Seconds that one accelerator needs for a step of a real job.", ge=0)
    ] = 0.5
    fault: Annotated[
        str, opt.about("Fault of a host while real jobs run, such as kill:1@10s; empty for none.")
    ] = ""
    network: Annotated[
        Literal["auto", "lab", "slurm", "loopback"],
        opt.about(
            "Network of the clusters of real jobs: hosts of the lab, hosts to which Slurm gives jobs, or this machine."
        ),
    ] = "auto"
    link: opt.Link = "1gbit"
    seed: Annotated[opt.Seed, opt.about("Seed of the first simulated queue and of the real one.")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name, _ in map(_real_kind, self.kinds)]
        if len(set(names)) < len(names):
            raise InputError(f"kinds are named {', '.join(names)}; expected each name once")
        if self.cpus * self.processor < 0.02:
            raise InputError(
                f"{self.cpus} processors of {self.processor} are less than the kernel can give; expected 0.02 in all"
            )
        fault = self.host_fault
        if fault is not None and not 0 <= fault.host < self.clusters:
            raise InputError(
                f"fault {self.fault!r} names host {fault.host}; expected 0 to {self.clusters - 1}"
            )

    @property
    def real_kinds(self) -> dict[str, RealKind]:
        """Kinds of real jobs by name."""
        return dict(map(_real_kind, self.kinds))

    @property
    def host_fault(self) -> HostFault | None:
        """Fault of a host; None if there is none."""
        return _host_fault(self.fault) if self.fault else None
