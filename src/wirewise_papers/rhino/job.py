"""Options of a parallel run, and its models and sizes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.plans import ParallelPlan
from wirewise.plans.deployment import DeploymentPlan
from wirewise.sim.operator_times import DeviceFigures

__all__ = ["CUTS", "SIZES", "WAYS", "ModelName", "RhinoJob", "RhinoOptions"]

ModelName = Literal["gpt", "moe", "unet", "cnn", "gcn", "mlp"]

SIZES: dict[str, dict[str, int]] = {
    "mlp": {"batch": 256, "width": 512, "layers": 2},
    "gpt": {"batch": 8, "length": 64, "width": 256, "heads": 8, "layers": 2, "vocabulary": 1024},
    "moe": {
        "batch": 8,
        "length": 64,
        "width": 128,
        "heads": 8,
        "layers": 2,
        "vocabulary": 512,
        "experts": 8,
        "capacity": 16,
    },
    "unet": {"batch": 8, "side": 32, "channels": 24, "levels": 2},
    "cnn": {"batch": 16, "side": 32, "channels": 16, "hidden": 768},
    "gcn": {"nodes": 1024, "edges": 8192, "width": 256, "hidden": 512},
}
"""Arguments of each model in a run."""

WAYS: dict[str, str] = {
    "ddp": "torch's DistributedDataParallel: each rank has the model and a part of the batch",
    "fsdp": "torch's FSDP2: parameters in parts, gathered block by block; each rank has a part of the batch",
    "tensor": "written by hand: layers by columns, then by rows, with an all-reduce behind each pair, on all ranks",
    "tag": "a deployment plan of TAG: each module on some ranks, in shares of the batch or alone",
}
"""Meaning of each training method that a plan is compared with."""

CUTS: dict[str, str] = {
    "blocks.*.attention.qkv.*": "S0/3",
    "blocks.*.attention.out.weight": "S1",
    "blocks.*.mlp.up.*": "S0",
    "blocks.*.mlp.down.weight": "S1",
    "blocks.*.mlp.up": "S2",
    "blocks.*.mlp.down": "S1",
    "blocks.*.up.*": "S0",
    "blocks.*.down.weight": "S1",
    "first.*": "S0",
    "second.weight": "S1",
    "wide.*": "S0",
    "out.weight": "S1",
    "layers.0.*": "S0",
    "layers.1.weight": "S1",
}
"""Placements of parameters in manual tensor parallelism (`ways.from_cuts`); all others are replicated."""


class RhinoOptions(opt.Options, frozen=True, kw_only=True):
    """Options: model, hosts, and baselines.

    Raises:
        InputError: A value is invalid.
    """

    model: Annotated[ModelName, opt.about("Model of the run.")] = "gpt"
    hosts: Annotated[int, opt.about("Hosts, one rank on each.", ge=2)] = 4
    network: opt.HostNetwork = "auto"
    link: opt.Link = "100mbit"
    links: opt.Links = msgspec.field(default_factory=dict)
    against: Annotated[tuple[str, ...], opt.about("Baselines.", words=tuple(WAYS))] = (
        "ddp",
        "fsdp",
        "tensor",
    )
    level: Annotated[
        Literal["O2", "O3"], opt.about("Search segment by segment (O2), or of the whole graph at once (O3).")
    ] = "O3"
    stages: Annotated[opt.Natural, opt.about("Pipeline stages of the plan; 0: chosen.")] = 1
    memory_mb: Annotated[
        opt.Natural, opt.about("Memory of a rank's accelerator, in megabytes; 0: no limit.")
    ] = 0
    gflops: Annotated[opt.Positive, opt.about("Speed of a rank's accelerator, in GFLOP/s.")] = 4.0
    memory_gbyte_s: Annotated[
        opt.Positive, opt.about("Memory bandwidth of a rank's accelerator, in GB/s.")
    ] = 10.0
    launch_us: Annotated[opt.Positive, opt.about("Microseconds of the smallest operator.")] = 200.0
    steps: Annotated[opt.Count, opt.about("Measured steps of a window, after one warm-up step.")] = 3
    turns: Annotated[opt.Count, opt.about("Windows of each variant, interleaved.")] = 2
    learning_rate: Annotated[opt.Positive, opt.about("Learning rate of SGD.")] = 0.01
    seed: Annotated[opt.Seed, opt.about("Seed of weights and batch.")] = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        opt.check_links(self.links, self.hosts)
        if self.stages and self.hosts % self.stages:
            raise InputError(
                f"{self.hosts} hosts cannot be dealt out to {self.stages} stages evenly; expected a divisor of "
                f"{self.hosts}, or 0 to let it be chosen"
            )
        for name, size in SIZES[self.model].items():
            if name in ("batch", "nodes") and size % self.hosts:
                raise InputError(
                    f"{self.hosts} hosts cannot share a {name} of {size} evenly; expected a divisor of {size}"
                )

    @property
    def device(self) -> DeviceFigures:
        """Figures of a rank's accelerator."""
        flops_per_s = 1e9 * self.gflops
        return DeviceFigures(flops_per_s, flops_per_s, 1e9 * self.memory_gbyte_s, 1e-6 * self.launch_us)

    @property
    def emulated(self) -> str:
        """Description of the emulated accelerator."""
        return (
            f"operators take as long as on an accelerator of {self.gflops:g} GFLOP/s, {self.memory_gbyte_s:g} GB/s "
            f"and {self.launch_us:g} us for the smallest"
        )

    @property
    def rates(self) -> tuple[str, ...]:
        """Rate of each host's link."""
        return tuple(self.links.get(host, self.link) for host in range(self.hosts))


class RhinoJob(opt.Options, frozen=True, kw_only=True):
    """Job of the ranks of a run.

    Raises:
        InputError: A plan is for other ranks.
    """

    wish: RhinoOptions
    sizes: dict[str, int]
    """Arguments of the model."""
    plans: dict[str, ParallelPlan]
    """Plans by name."""
    ways: tuple[str, ...] = ()
    """Other training methods."""
    deployment: DeploymentPlan | None = None
    """Plan of the method "tag" (`deployed.deployment_of`)."""
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if ("tag" in self.ways) != (self.deployment is not None):
            raise InputError(
                f"got the ways {', '.join(self.ways) or 'none'} and {'no' if self.deployment is None else 'a'} "
                "deployment; expected both, 'tag' and its plan, or none of them"
            )
        planned = self.plans if self.deployment is None else {**self.plans, "tag": self.deployment}
        for name, plan in planned.items():
            if plan.world_size != self.wish.hosts:
                raise InputError(
                    f"plan {name!r} is for {plan.world_size} ranks on {self.wish.hosts} hosts; expected a rank on each"
                )

    def arguments(self, *, microbatches: int = 1) -> dict[str, Any]:
        """Arguments of the model for a fraction of the batch."""
        found: dict[str, Any] = {**self.sizes, "seed": self.wish.seed}
        for name in ("batch", "nodes"):
            if name in found:
                found[name] //= microbatches
        return found
