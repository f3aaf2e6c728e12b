"""What commands at the top are asked for. Light, because `wirewise --help` imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from wirewise import options as opt

__all__ = ["Check", "Conditions", "Export", "Request"]


class Request(opt.Options, frozen=True, kw_only=True):
    """What `wirewise show` was asked for; None: not said."""

    sources: list[str]
    html: Annotated[Path | None, opt.about("Page to write, which plays what is shown.")] = None
    on: Annotated[str | None, opt.about("Topology of programs: a preset or a file.")] = None
    size: Annotated[str | None, opt.about("Larger buffer of a rank, such as 1MB.")] = None
    ranks: Annotated[opt.Count | None, opt.about("Ranks of algorithms, by default 8.")] = None
    root: Annotated[opt.Natural, opt.about("Root of algorithms that have one.")] = 0
    segments: Annotated[opt.Count, opt.about("Segments of algorithms.")] = 1
    step: Annotated[int | None, opt.about("Step of a recorded run.")] = None
    json: str | None = None


class Check(opt.Options, frozen=True, kw_only=True):
    """What `wirewise check` was asked for."""

    source: str
    on: Annotated[str | None, opt.about("Topology that a plan must fit.")] = None
    job: Annotated[
        Path | None,
        opt.about(
            "Job that the plan must fit: tasks for a placement plan, a queue for a job plan, operators for a "
            "parallel plan."
        ),
    ] = None
    fifo: Annotated[
        opt.Count | None,
        opt.about(
            "Messages that a channel between ranks holds; by default 1, for an MSCCL file as many as NCCL has for its "
            "protocol (Simple 2, LL and LL128 8)."
        ),
    ] = None
    dialect: Annotated[
        Literal["microsoft", "azure"], opt.about("Dialect of an MSCCL file: microsoft or azure.")
    ] = "microsoft"
    root: Annotated[opt.Natural, opt.about("Root of an MSCCL file of a broadcast or reduce.")] = 0
    json: str | None = None


class Export(opt.Options, frozen=True, kw_only=True):
    """What `wirewise export` was asked for."""

    source: str
    to: Annotated[
        Literal["msccl-xml", "msccl-xml-azure", "mscclpp-json", "nccl-tuner", "nccl-graph", "chakra"],
        opt.about("Format of the file."),
    ]
    out: Path
    topology: Annotated[str | None, opt.about("Preset or file, for nccl-tuner and nccl-graph.")] = None
    protocol: Annotated[
        Literal["Simple", "LL", "LL128"], opt.about("Protocol of MSCCL: Simple, LL or LL128.")
    ] = "Simple"
    in_place: Annotated[bool, opt.about("Form for calls in place (MSCCL, MSCCL++).")] = False
    instances: Annotated[opt.Count, opt.about("Copies that share every chunk (MSCCL, MSCCL++).")] = 1
    channels: Annotated[
        opt.Count | None,
        opt.about("Connections of two ranks in a copy, by default as many as needed (MSCCL)."),
    ] = None
    fuse: Annotated[bool, opt.about("Steps that receive and pass on at once (MSCCL).")] = False
    size: Annotated[str, opt.about("Larger buffer of a rank (chakra).")] = "1MB"
    min_size: Annotated[str | None, opt.about("Least size to use it for (MSCCL, MSCCL++).")] = None
    max_size: Annotated[str | None, opt.about("Size to stop using it at (MSCCL, MSCCL++).")] = None
    gpu: Annotated[
        Literal["volta", "ampere", "hopper", "blackwell"], opt.about("Generation of GPUs (nccl-tuner).")
    ] = "ampere"
    json: str | None = None


class Conditions(opt.Options, frozen=True, kw_only=True):
    """What belongs to `wirewise sim --plan`."""

    on: Annotated[str | None, opt.about("Topology of --plan, a preset or a file.")] = None
    bandwidth: Annotated[
        str | None,
        opt.about("Bandwidth of each host, such as 10gbit, instead of --on (gradients, operators)."),
    ] = None
    ranks_per_host: Annotated[
        opt.Count | None, opt.about("Ranks that share the bandwidth of a host; by default 1.")
    ] = None
    costs: Annotated[
        str | None, opt.about("Costs of codecs: v100, or a JSON file of measured times (gradients).")
    ] = None
    row_bytes: Annotated[opt.Count | None, opt.about("Bytes of a row on the wire (cached rows).")] = None
    stragglers: Annotated[
        str | None,
        opt.about(
            "Factor of the compute of each rank, drawn anew in each sample: exp:MEAN, lognormal:SIGMA or "
            "some:SHARE:FACTOR (stages, recorded runs)."
        ),
    ] = None
    failures: Annotated[
        opt.Positive | None, opt.about("Seconds between failures, the mean, to draw runs with (recovery).")
    ] = None
    samples: Annotated[
        Annotated[int, opt.about(ge=10)] | None,
        opt.about("Samples of stragglers, by default 200, or of failures, 1,000."),
    ] = None
    seed: Annotated[opt.Natural | None, opt.about("Seed of the samples, by default 0.")] = None
    html: Annotated[Path | None, opt.about("Page to write, with the timeline of all ranks.")] = None
