"""Options of top-level commands; imported by `wirewise --help`, so kept light."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from wirewise import options as opt

__all__ = ["Check", "Conditions", "Export", "Request"]


class Request(opt.Options, frozen=True, kw_only=True):
    """Options of `wirewise show`; None if not given."""

    sources: list[str]
    html: Annotated[Path | None, opt.about("Page to write, which plays what is shown.")] = None
    svg: Annotated[
        Path | None,
        opt.about("Folder for the charts of a page (of --html) as SVG files, for slides and documents."),
    ] = None
    topology: Annotated[str | None, opt.about("Topology of programs: a preset or a file.")] = None
    size: Annotated[str | None, opt.about("Larger buffer of a rank, such as 1MB.")] = None
    ranks: Annotated[opt.Count | None, opt.about("Ranks of algorithms, by default 8.")] = None
    root: Annotated[opt.Natural, opt.about("Root of algorithms that have one.")] = 0
    segments: Annotated[opt.Count, opt.about("Segments of algorithms.")] = 1
    step: Annotated[int | None, opt.about("Step of a recorded run.")] = None
    json: str | None = None


class Check(opt.Options, frozen=True, kw_only=True):
    """Options of `wirewise check`."""

    source: str
    topology: Annotated[str | None, opt.about("Topology that a plan must fit.")] = None
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
            "Depth of a channel's FIFO, in messages; by default 1, for an MSCCL file NCCL's (Simple "
            "2, LL and LL128 8)."
        ),
    ] = None
    dialect: Annotated[
        Literal["microsoft", "azure"], opt.about("Dialect of an MSCCL file: microsoft or azure.")
    ] = "microsoft"
    root: Annotated[opt.Natural, opt.about("Root of an MSCCL file of a broadcast or reduce.")] = 0
    json: str | None = None


class Export(opt.Options, frozen=True, kw_only=True):
    """Options of `wirewise export`."""

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
    in_place: Annotated[bool, opt.about("For in-place calls (MSCCL, MSCCL++).")] = False
    channel_kind: Annotated[
        Literal["memory", "port"], opt.about("Kind of the channels; port also between hosts (MSCCL++).")
    ] = "memory"
    instances: Annotated[opt.Count, opt.about("Copies that share every chunk (MSCCL, MSCCL++).")] = 1
    channels: Annotated[
        opt.Count | None,
        opt.about("Connections of two ranks in a copy, by default as many as needed (MSCCL)."),
    ] = None
    fuse: Annotated[bool, opt.about("Fuse receives with forwarding sends (MSCCL).")] = False
    size: Annotated[str, opt.about("Larger buffer of a rank (chakra).")] = "1MB"
    min_size: Annotated[str | None, opt.about("Minimum message size to use it for (MSCCL, MSCCL++).")] = None
    max_size: Annotated[
        str | None, opt.about("Message size from which it is no longer used (MSCCL, MSCCL++).")
    ] = None
    gpu: Annotated[
        Literal["volta", "ampere", "hopper", "blackwell"], opt.about("Generation of GPUs (nccl-tuner).")
    ] = "ampere"
    json: str | None = None


class Conditions(opt.Options, frozen=True, kw_only=True):
    """Options of `wirewise sim --plan`."""

    topology: Annotated[str | None, opt.about("Topology of --plan, a preset or a file.")] = None
    bandwidth: Annotated[
        str | None,
        opt.about("Bandwidth of each host, such as 10gbit, instead of --topology (gradients, operators)."),
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
            "Random slowdown of each rank's compute, sampled independently: exp:MEAN, lognormal:SIGMA "
            "or some:FRACTION:FACTOR (stages, recorded runs)."
        ),
    ] = None
    failures: Annotated[
        opt.Positive | None, opt.about("Mean time between failures, in seconds, of sampled runs (recovery).")
    ] = None
    samples: Annotated[
        Annotated[int, opt.about(ge=10)] | None,
        opt.about("Samples of stragglers, by default 200, or of failures, 1,000."),
    ] = None
    seed: Annotated[opt.Natural | None, opt.about("Seed of the samples, by default 0.")] = None
    html: Annotated[Path | None, opt.about("Page to write, with the timeline of all ranks.")] = None
