"""Options of mini-batch training over partitioned features; imports torch only when a job is made."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from wirewise import options as opt
from wirewise.errors import InputError
from wirewise.graph.partition import AUTO
from wirewise.graph.sampling.sampler import check_hops, check_used_hops
from wirewise.planners.cache import POLICIES, Share

__all__ = ["MODES", "MiniBatchJob", "Mode"]


class Mode(NamedTuple):
    """Properties of a mode."""

    depth: int
    """Number of prefetched batches."""
    cached: bool
    bits: int
    """Bits of a value of a fetched row, unless exact rows take fewer bytes."""
    compressed: bool = False
    """Whether gradients are compressed."""


MODES = {
    "base": Mode(0, False, 32),
    "pipeline": Mode(4, False, 32),
    "cache": Mode(4, True, 32),
    "bf16": Mode(4, True, 16),
    "int8": Mode(4, True, 8),
    "gradients": Mode(4, True, 8, compressed=True),
}
"""Modes, from fetching all missing rows, to quantized rows and compressed gradients with a cache in a pipeline."""


def _check_codec(codec: str) -> None:
    # Needs torch, which takes seconds to import.
    from wirewise.codec.gradients import make

    make(codec)


class MiniBatchJob(opt.Options, frozen=True, kw_only=True):
    """Settings of the ranks of a run."""

    dataset: opt.Dataset = "debian"
    workers: Annotated[opt.Count, opt.about("Ranks, one part of the features each.")] = 4
    hosts: Annotated[opt.Natural, opt.about("Hosts of the lab; 0: one for each rank.")] = 0
    link: opt.Link = "100mbit"
    network: opt.Network = "auto"
    partition: Annotated[
        str, opt.about("Method of `wirewise data partition`; auto: metis if its memory is free, else stream.")
    ] = AUTO
    topology: Annotated[
        Literal["replicated", "partitioned"],
        opt.about(
            "replicated: all edges on every rank; partitioned: those of its own nodes, others requested."
        ),
    ] = "replicated"
    device: Annotated[Literal["cpu", "cuda"], opt.about("Where batches are made and trained.")] = "cpu"
    row_format: Annotated[
        Literal["smallest", "dense"],
        opt.about(
            "smallest: exact rows travel as bits, columns or values, whatever takes the fewest bytes; dense: "
            "with all their values."
        ),
    ] = "smallest"
    processors: Annotated[
        Literal["shared", "own"],
        opt.about(
            "shared: ranks compute here at once; own: as if each had a processor, its steps timed while no "
            "other rank computes, and slept (emulated)."
        ),
    ] = "shared"
    prefix: Annotated[opt.Share, opt.about("Fraction of own rows that a rank keeps on a CUDA device.")] = 0.15
    modes: Annotated[
        tuple[str, ...], opt.about("Modes to train; the first is what others are compared with.", words=MODES)
    ] = ("base", "pipeline", "cache", "int8", "gradients")
    fanouts: Annotated[tuple[int, ...], opt.about("Fanout of each hop; -1: all neighbours.")] = (15, 10, 5)
    batch_size: Annotated[opt.Count, opt.about("Batch size of a rank, in seed nodes.")] = 64
    alpha: Annotated[float, opt.about("Total cache size as a fraction of all nodes.", ge=0)] = 0.5
    policies: Annotated[
        tuple[str, ...],
        opt.about(
            "Policy of the cache, and others that it is compared with by the rows that they leave.",
            option="--policy",
            words=POLICIES,
        ),
    ] = ("vip",)
    share: Annotated[
        Share,
        opt.about("equal: each rank caches as many rows; balanced: the busiest link carries the fewest."),
    ] = "equal"
    codec: Annotated[str, opt.about("Codec of the mode gradients.", check=_check_codec)] = "bf16"
    train_share: Annotated[float, opt.about("Fraction of the training nodes to use.", gt=0, le=1)] = 0.13
    epochs: Annotated[opt.Count, opt.about("Training epochs of every mode.")] = 3
    hidden: opt.Hidden = 64
    dropout: opt.Dropout = 0.5
    learning_rate: opt.LearningRate = 0.003
    step_s: Annotated[float, opt.about(ge=0)] = 0.0
    """Seconds slept in each step as an accelerator would compute, in addition to the real compute; emulated."""
    threads: Annotated[opt.Count, opt.about("Threads that sample, of each rank.")] = 1
    tested: Annotated[opt.Count, opt.about("Largest number of test nodes that are evaluated.")] = 2000
    seed: Annotated[opt.Seed, opt.about("Seed of partition, sampling and weights.")] = 0
    timeout_s: opt.Timeout = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "cuda" and self.processors == "own":
            raise InputError("processors of their own are emulated on device 'cpu'; got device 'cuda'")
        if self.topology == "partitioned" and self.threads > 1:
            raise InputError(
                f"{self.threads} threads cannot sample a partitioned topology, whose ranks draw together; expected 1"
            )
        opt.check_spread(self.workers, self.hosts or self.workers)
        check_hops(self.fanouts, "cumulative")
        check_used_hops(self.fanouts, "--fanouts")
