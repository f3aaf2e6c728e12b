"""What the runs of an unmodified training script ask for. Needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wirewise import options as opt

__all__ = ["AdviceOptions", "DproOptions", "StallJob"]


class DproOptions(opt.Options, frozen=True, kw_only=True):
    """How to measure and to plan buckets (`recipes.dpro`)."""

    warmup: Annotated[opt.Natural, opt.about("Steps of a run that do not count.")] = 5
    steps: Annotated[int, opt.about("Steps of a run that count.", ge=2)] = 30
    pairs: Annotated[int, opt.about("Runs under the plan, each next to one without it.", ge=2)] = 4
    planner: Annotated[
        str, opt.about("Planner of buckets: dpro, mcmc, exhaustive, rules, ddp.", option="--with")
    ] = "dpro"
    time_budget_s: Annotated[opt.Positive, opt.about("Seconds for the search.", option="--time-budget")] = (
        60.0
    )


class AdviceOptions(opt.Options, frozen=True, kw_only=True):
    """How long to measure, and which codecs to choose from (`recipes.advise`)."""

    codecs: Annotated[tuple[str, ...], opt.about("Codecs of gradients to choose from.")] = (
        "fp16",
        "topk",
        "efsign",
    )
    ratio: Annotated[float, opt.about("Share of the values that sparse codecs keep.", gt=0, le=1)] = 0.01
    warmup: Annotated[opt.Natural, opt.about("Steps that do not count.")] = 5
    steps: Annotated[int, opt.about("Steps that count, without a plan and under each plan.", ge=2)] = 20
    trials: Annotated[opt.Natural, opt.about("Windows in which plans are tried; 0: predictions decide.")] = 2


class StallJob(opt.Options, frozen=True, kw_only=True):
    """What to measure of stalls, and how (`recipes.stalls`)."""

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
    """Put runs on one machine on a host of a lab as well."""
    batches: Annotated[opt.Count, opt.about("Batches that synthetic data repeats.")] = 4
    cached_items: Annotated[opt.Count, opt.about("Most items that the cached run keeps in memory.")] = 1024
    fractions: Annotated[
        list[Annotated[float, opt.about(ge=0, le=1)]],
        opt.about(
            "Part of the items that is cached in a run of its own; may be repeated.",
            option="--cache-fraction",
        ),
    ] = msgspec.field(default_factory=list)
    drop_caches: Annotated[
        bool, opt.about("Whole machine's page cache dropped before cold runs; needs root.")
    ] = False
    timeout_s: Annotated[opt.Timeout, opt.about("Seconds after which a run is ended.")] = 600.0
