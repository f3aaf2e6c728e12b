"""What a run of schedulers is asked to do."""

from __future__ import annotations

from typing import Annotated, Literal

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.lab import HostFault, parse_fault
from wirewise.planners import PLANNERS

__all__ = ["KIND_RANKS", "TapFingerJob"]

KIND_RANKS: dict[str, tuple[int, ...]] = {"text": (), "pipeline": (2, 4, 8), "graph": ()}
"""Kinds of real jobs with the numbers of ranks that they can have; none: any."""


def _host_fault(text: str) -> HostFault:
    found = parse_fault(text)
    if not isinstance(found, HostFault):
        raise InputError(f"got {text!r}; expected a fault of a host at a time, such as kill:1@10s")
    return found


class TapFingerJob(opt.Options, frozen=True, kw_only=True):
    """Everything that a run must know.

    Raises:
        InputError: A value that cannot be used.
    """

    queues: Annotated[
        Literal["even", "uneven"],
        opt.about("Simulated clusters: even, three of 16 and 16; or uneven, six of 4 to 32."),
    ] = "even"
    seeds: Annotated[opt.Count, opt.about("Simulated queues, each drawn by a seed of its own.")] = 10
    jobs: Annotated[opt.Natural, opt.about("Jobs of a simulated queue; 0: 64 for each cluster.")] = 0
    kept: Annotated[
        opt.Share,
        opt.about(
            "Share of a slot's progress that is left to a job that was given something else, simulated."
        ),
    ] = 0.5
    real_jobs: Annotated[opt.Natural, opt.about("Jobs that are run for real; 0: none.")] = 12
    planner: Annotated[str, opt.about("Scheduler of the real jobs.", words=tuple(PLANNERS["jobs"]))] = (
        "tapfinger"
    )
    clusters: Annotated[opt.Count, opt.about("Clusters of real jobs, a host of the lab each.")] = 2
    cpus: Annotated[opt.Count, opt.about("Processors of each of them.")] = 4
    gpus: Annotated[int, opt.about("Accelerators of each of them, emulated.", ge=2)] = 4
    processor: Annotated[
        float, opt.about("Part of a real processor that one of a cluster stands for.", ge=0.02, le=4)
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
        str, opt.about("What happens to a host while real jobs run, such as kill:1@10s; nothing: none.")
    ] = ""
    network: Annotated[
        Literal["auto", "lab", "loopback"], opt.about("Network between the ranks of a real job.")
    ] = "auto"
    link: opt.Link = "1gbit"
    seed: Annotated[opt.Seed, opt.about("Seed of the first simulated queue and of the real one.")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def host_fault(self) -> HostFault | None:
        """What happens to a host; None: nothing."""
        return _host_fault(self.fault) if self.fault else None
