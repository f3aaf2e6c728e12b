"""Options of the experiment; importable without torch."""

from __future__ import annotations

from typing import Annotated

from wirewise import options as opt

__all__ = ["DproOptions"]


class DproOptions(opt.Options, frozen=True, kw_only=True):
    """Options of measurement and of planning of buckets."""

    warmup: Annotated[opt.Natural, opt.about("Warm-up steps of a run, which do not count.")] = 5
    steps: Annotated[int, opt.about("Measured steps of a run.", ge=2)] = 30
    pairs: Annotated[int, opt.about("Runs under the plan, each paired with one without it.", ge=2)] = 4
    planner: Annotated[
        str, opt.about("Planner of buckets: dpro, mcmc, exhaustive, rules, ddp.", option="--with")
    ] = "dpro"
    time_budget_s: Annotated[
        opt.Positive, opt.about("Search budget, in seconds.", option="--time-budget")
    ] = 60.0
