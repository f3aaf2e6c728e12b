"""Options of a measurement of stalls. Needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wirewise import options as opt

__all__ = ["StallJob"]


class StallJob(opt.Options, frozen=True, kw_only=True):
    """Options of a measurement of stalls."""

    command: list[str]
    """Command such as torchrun ... train.py on one machine, or python train.py."""
    steps: Annotated[opt.Count, opt.about("Steps to measure in every run.")] = 50
    warmup: Annotated[opt.Natural, opt.about("Steps before them.")] = 5
    repeats: Annotated[opt.Count, opt.about("Repeats of every run, in alternating order.")] = 3
    hosts: Annotated[opt.Count, opt.about("Hosts of a lab, to measure the network too; 1: not measured.")] = 1
    link: opt.Link = "1gbit"
    network_command: Annotated[
        str | None,
        opt.about("Shell command that runs the same job over several machines, to measure their network."),
    ] = None
    launcher: Annotated[
        Literal["torchrun", "direct"],
        opt.about("torchrun, or direct: the ranks alone, faster and with fewer variables set."),
    ] = "torchrun"
    in_lab: bool = False
    """Whether runs on one machine are on a host of a lab, too."""
    batches: Annotated[opt.Count, opt.about("Batches that synthetic data repeats.")] = 4
    cached_items: Annotated[opt.Count, opt.about("Most items that the cached run keeps in memory.")] = 1024
    fractions: Annotated[
        list[Annotated[float, opt.about(ge=0, le=1)]],
        opt.about(
            "Fraction of the items cached in an additional run; may be repeated.",
            option="--cache-fraction",
        ),
    ] = msgspec.field(default_factory=list)
    drop_caches: Annotated[
        bool, opt.about("Whole machine's page cache dropped before cold runs; needs root.")
    ] = False
    timeout_s: Annotated[opt.Timeout, opt.about("Seconds after which a run is ended.")] = 600.0
