"""What a run of parallel plans is asked to do, and the models and sizes that it knows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.plans import ParallelPlan

__all__ = ["SIZES", "WAYS", "ModelName", "RhinoJob", "RhinoWish"]

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
}
"""Meaning of each way to train that a plan is compared with."""


class RhinoWish(opt.Options, frozen=True, kw_only=True):
    """What to train on which hosts, and what beside the plan.

    Raises:
        InputError: A value that cannot be used.
    """

    model: Annotated[ModelName, opt.about("Model of the run.")] = "gpt"
    hosts: Annotated[int, opt.about("Hosts of the lab, a rank on each.", ge=2)] = 4
    link: opt.Link = "200mbit"
    links: opt.Links = msgspec.field(default_factory=dict)
    against: Annotated[tuple[str, ...], opt.about("Other ways to train.", words=tuple(WAYS))] = tuple(WAYS)
    level: Annotated[
        Literal["O2", "O3"], opt.about("Search segment by segment (O2), or of the whole graph at once (O3).")
    ] = "O3"
    stages: Annotated[opt.Natural, opt.about("Pipeline stages of the plan; 0: chosen.")] = 1
    memory_mb: Annotated[opt.Natural, opt.about("Megabytes of a rank's accelerator; 0: any.")] = 0
    gflops: Annotated[
        opt.Positive, opt.about("Billion floating-point operations a second of a rank's accelerator.")
    ] = 8.0
    steps: Annotated[opt.Count, opt.about("Steps of a turn that are measured, behind one that is not.")] = 3
    turns: Annotated[opt.Count, opt.about("Turns in which each way trains its steps; ways alternate.")] = 2
    learning_rate: Annotated[opt.Positive, opt.about("Learning rate of SGD.")] = 0.01
    seed: Annotated[opt.Seed, opt.about("Seed of weights and batch.")] = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        opt.check_links(self.links, self.hosts)
        for name, size in SIZES[self.model].items():
            if name in ("batch", "nodes") and size % self.hosts:
                raise InputError(
                    f"{self.hosts} hosts cannot share a {name} of {size} evenly; expected a divisor of {size}"
                )

    @property
    def rates(self) -> tuple[str, ...]:
        """Rate of each host's link."""
        return tuple(self.links.get(host, self.link) for host in range(self.hosts))


class RhinoJob(opt.Options, frozen=True, kw_only=True):
    """What the ranks of a run carry out.

    Raises:
        InputError: Plans for other ranks.
    """

    wish: RhinoWish
    sizes: dict[str, int]
    """Arguments of the model."""
    plans: dict[str, ParallelPlan]
    """Plans by name."""
    ways: tuple[str, ...] = ()
    """Other ways to train."""
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, plan in self.plans.items():
            if plan.world_size != self.wish.hosts:
                raise InputError(
                    f"plan {name!r} is for {plan.world_size} ranks on {self.wish.hosts} hosts; expected a rank on each"
                )

    def arguments(self, *, microbatches: int = 1) -> dict[str, Any]:
        """Arguments of the model for a part of the batch."""
        found: dict[str, Any] = {**self.sizes, "seed": self.wish.seed}
        for name in ("batch", "nodes"):
            if name in found:
                found[name] //= microbatches
        return found
