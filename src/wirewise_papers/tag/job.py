"""Job file of a deployment run, which the parent writes for its ranks, and properties of the models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.plans.deployment import DeploymentPlan
from wirewise.trace.stages import StageTrace
from wirewise.units import parse_rate

__all__ = ["BASELINES", "COMPARED", "SIZES", "WHOLE", "DeploymentJob", "ModelName", "TagOptions"]

ModelName = Literal["cnn", "gpt", "moe", "unet", "mlp"]

SIZES: dict[str, dict[str, Any]] = {
    "cnn": {"side": 32, "channels": 16, "hidden": 512},
    "gpt": {"length": 32, "width": 128, "vocabulary": 512},
    "moe": {"length": 32, "width": 64, "vocabulary": 512, "capacity": 8},
    "unet": {"side": 32, "channels": 16},
    "mlp": {"width": 256, "layers": 2},
}
"""Arguments of the built-in models, besides the batch."""

WHOLE: dict[str, tuple[str, ...]] = {
    "cnn": (),
    "gpt": ("blocks.*",),
    "moe": ("blocks.*",),
    "unet": ("into", "downs.*", "ups.*"),
    "mlp": ("blocks.*.*",),
}
"""Submodules of each model that stay whole."""

BASELINES = {
    "ddp": "torch's DistributedDataParallel, the batch in even shares",
    "ddp-proportional": "DistributedDataParallel with shares as hosts are fast, each loss weighted with its share",
}
"""Meaning of each baseline."""


COMPARED = 10
"""Number of first steps whose losses are compared with those of one process."""


class TagOptions(opt.Options, frozen=True, kw_only=True):
    """Model, heterogeneous hosts, and planners to compare.

    Raises:
        InputError: A value is invalid.
    """

    model: Annotated[ModelName, opt.about("Embedded model.")] = "cnn"
    speeds: Annotated[
        tuple[opt.Positive, ...],
        opt.about("Speed of each host, a rank on each; 1 takes --compute-ms for the whole batch."),
    ] = (1.0, 1.0, 0.5, 0.25)
    network: opt.HostNetwork = "auto"
    links: Annotated[
        tuple[str, ...],
        opt.about("Rate of each host's link, or one for all; none: 200 Mbit/s times the host's speed."),
    ] = ()
    batch: Annotated[opt.Count, opt.about("Rows per step, over all ranks.")] = 32
    plans: Annotated[
        opt.Distinct,
        opt.about("Baselines and planners to train with; the first is compared with."),
    ] = ("ddp", "ddp-proportional", "tag")
    compute_ms: Annotated[
        opt.Positive,
        opt.about("Milliseconds of the passes over a whole batch on a host of speed 1; the rest is slept."),
    ] = 1000.0
    computing: Annotated[
        Literal["slept", "real"],
        opt.about(
            "Whether passes sleep until the device would be done, or compute at full speed, on slower hosts with "
            "their processes stopped for a part of the time; modules are measured before then."
        ),
    ] = "slept"
    steps: Annotated[int, opt.about("Steps of a window.", ge=2)] = 4
    turns: Annotated[opt.Count, opt.about("Windows of each plan, interleaved.")] = 3
    seed: Annotated[opt.Seed, opt.about("Seed of weights, data and searches.")] = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for rate in self.links:
            parse_rate(rate)
        if len(self.links) not in (0, 1, len(self.speeds)):
            raise InputError(
                f"got {len(self.links)} links for {len(self.speeds)} speeds; expected one for each host, one for all, "
                "or none"
            )
        if self.computing == "real" and max(self.speeds) != 1.0:
            raise InputError(
                f"got speeds of at most {max(self.speeds):g} under real computing; expected the fastest host at 1, the "
                "speed of this machine"
            )
        if len(self.speeds) > self.batch:
            raise InputError(
                f"a batch of {self.batch} rows has none for some of {len(self.speeds)} hosts; expected at least one "
                "each"
            )

    @property
    def rates(self) -> tuple[str, ...]:
        """Rate of each host."""
        if len(self.links) == 1:
            return self.links * len(self.speeds)
        return self.links or tuple(f"{200 * speed:g}mbit" for speed in self.speeds)


class DeploymentJob(opt.Options, frozen=True, kw_only=True):
    """Plans of one model that hosts execute alternately.

    Raises:
        InputError: There is no plan, or plans are for another batch or number of hosts.
    """

    model: ModelName
    speeds: tuple[float, ...]
    network: opt.HostNetwork = "lab"
    rates: tuple[str, ...]
    batch: opt.Count
    plans: dict[str, DeploymentPlan]
    """Plans by name; those of `BASELINES` are executed by torch in the rows of their first group."""
    compute_ms: opt.Positive = 1000.0
    measured: StageTrace | None = None
    """Measured modules, for real compute. None to sleep for the time of the emulated device."""
    steps: opt.Count = 4
    turns: opt.Count = 3
    seed: opt.Seed = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.plans:
            raise InputError("got no plan; expected one or more")
        for name, plan in self.plans.items():
            if (plan.world_size, plan.batch) != (len(self.speeds), self.batch):
                raise InputError(
                    f"plan {name!r} is for {plan.world_size} ranks and {plan.batch} rows; expected {len(self.speeds)} "
                    f"ranks, a host for each, and {self.batch} rows"
                )
