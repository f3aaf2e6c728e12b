"""Options of `wirewise advise`. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from wirewise import options as opt

__all__ = ["AdviceOptions", "TraceSource"]


class AdviceOptions(opt.Options, frozen=True, kw_only=True):
    """Length of the measurement, and codecs to choose from."""

    codecs: Annotated[tuple[str, ...], opt.about("Codecs of gradients to choose from.")] = (
        "fp16",
        "topk",
        "efsign",
    )
    ratio: Annotated[float, opt.about("Fraction of the values that sparse codecs keep.", gt=0, le=1)] = 0.01
    warmup: Annotated[opt.Natural, opt.about("Warm-up steps, which do not count.")] = 5
    steps: Annotated[int, opt.about("Measured steps, without a plan and under each plan.", ge=2)] = 20
    trials: Annotated[
        opt.Natural, opt.about("Trial windows of each plan; 0: decide by predictions alone.")
    ] = 2
    restarts: Annotated[
        opt.Natural,
        opt.about(
            "Changes that are tried by restarting the command, such as workers of its loader; 0: none."
        ),
    ] = 3
    minutes: Annotated[opt.Positive, opt.about("Minutes that all trials may take.")] = 5.0


class TraceSource(opt.Options, frozen=True, kw_only=True):
    """A recorded run to advise on, in place of a command."""

    trace: Annotated[
        list[Path],
        opt.about(
            "Run folder, or file of torch.profiler, to advise on in place of a command; may be repeated."
        ),
    ] = msgspec.field(default_factory=list)
    topology: Annotated[
        str | None, opt.about("Another cluster to predict the recorded run on: a preset or a file (--trace).")
    ] = None
    costs: Annotated[
        str | None, opt.about("Costs of codecs: v100, or a JSON file of measured times (--trace).")
    ] = None
