"""Trace records of a rank: header, ops, probes of other clocks, and readings of its own clock."""

from __future__ import annotations

import msgspec

__all__ = ["COLLECTIVES", "FORMAT", "KINDS", "ClockFit", "Header", "Op", "Probe", "RankTrace", "Trace"]

FORMAT = 1
"""Number of the file format that this version writes and reads."""

KINDS = (
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "step",
    "wait",
    "encode",
    "decode",
    "other",
)
"""Kinds of ops. A "step" spans one whole step; a "wait" is the main thread blocked on a communication."""

COLLECTIVES = (
    "",
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
)
"""Kinds of communication; the first stands for none."""


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Timed operation of one rank.

    It refers to nothing that could refer to it, so the garbage collector, which would walk through millions, leaves it.
    """

    name: str
    """Name such as "layer3.conv1", "bucket 2", "all_reduce", "optimizer"; of a wait, the communication's."""
    kind: str
    """One of KINDS."""
    start_s: float
    """Start, on this rank's clock (`time.perf_counter`) unless the trace is aligned."""
    end_s: float
    step: int
    """Index of the step; -1 before the first step."""
    thread: str = "main"
    """ "main", "comm" (a slot of the process group) or another name."""
    stream: str = ""
    """Accelerator stream that ran it; empty for the host."""
    group: str = ""
    """Name of the process group; empty for none. For waits, encodes and decodes, that of their communication."""
    seq: int = -1
    """Sequence number of the collective in its group, consistent across ranks."""
    collective: str = ""
    """One of COLLECTIVES."""
    size_bytes: int = 0
    """Payload of this rank, in bytes."""
    dtype: str = ""
    """Type of the payload, such as "float32"; empty if unknown."""
    split_bytes: tuple[int, ...] = ()
    """Bytes of an all_to_all to each rank of the group; empty if equal."""
    peer: int = -1
    """Other end of send and recv, or the source of a broadcast, as a global rank."""
    tag: int = -1
    enqueued_s: float = -1.0
    """Time at which the caller handed a communication over, or launched what a stream ran; `start_s` is the same
    unless the dequeue is known."""
    caller: str = "main"
    """Thread that launched a communication."""
    algorithm: str = ""
    """Algorithm of a collective that an op of kind "other" with its group and number executes; empty if a library
    did."""
    parameters: tuple[str, ...] = ()
    """Parameters whose gradients a bucket holds."""
    gradient_bytes: int = 0
    """Bytes of the parameters whose gradients a backward op completes; 0 if unknown."""
    cpu_s: float = -1.0
    """CPU time of the script's thread in a step, in seconds; -1 if unknown."""
    preempted_s: float = -1.0
    """Seconds of a step in which it was runnable without a CPU; -1 if unknown."""


class Probe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Round trip: send and receive times on the prober's clock, answer time on the peer's clock."""

    peer: int
    sent_s: float
    peer_s: float
    received_s: float
    size_bytes: int = 0
    """Bytes sent to the peer, whose answer is short; 0 if both messages are short."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a trace: the rank that recorded it."""

    rank: int
    world_size: int
    host: str
    groups: dict[str, list[int]]
    """Global ranks of each process group."""
    format: int = FORMAT
    run: str = ""
    """Unique id of the run, the same on all its ranks; empty if unknown."""
    local_rank: int = 0
    comm_slots: int = 2
    """Number of collectives of a group that run concurrently: gloo's threads, 1 for NCCL."""
    link_bytes_per_s: float = 0.0
    """Rate of the link in bytes per second; 0 if unknown."""
    clock_pairs: list[tuple[float, int]] = []
    """Readings of `time.perf_counter` in s and `time.time_ns`, made together."""
    probes: list[Probe] = []
    environment: dict[str, str] = {}


class ClockFit(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's clock: common time = t + offset_s + drift * (t - reference_s)."""

    offset_s: float
    """Offset at `reference_s`."""
    drift: float
    """Drift of the clock, in seconds per second."""
    reference_s: float

    def common(self, t: float) -> float:
        """Convert time `t` of the rank's clock to the common clock."""
        return t + (self.offset_s + self.drift * (t - self.reference_s))


class RankTrace(msgspec.Struct):
    """Trace of one rank."""

    header: Header
    ops: list[Op]
    complete: bool = True
    """Whether the file is complete; False if it was truncated."""


class Trace(msgspec.Struct):
    """Trace of all ranks, in order of rank."""

    ranks: list[RankTrace]
    aligned: bool = False
    """Whether all times are on the clock of rank 0."""
    offsets: list[ClockFit] = []
    """Clock fit of each rank, once aligned."""
    notes: list[str] = []
    """Notes for the reader, such as a truncated file."""
    partial: str = ""
    """Description of the ranks that were not recorded; empty if all were. If not, nothing that compares ranks can be
    computed, and the index of a rank in `ranks` is not its number."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def steps(self) -> list[int]:
        """Indices of the steps that all ranks have, in order.

        Where a rank has "step" ops, only the steps that they span count: others were not finished.
        """
        common = [self._steps_of(rank) for rank in self.ranks]
        return sorted(set.intersection(*common)) if common else []

    def of(self, rank: int, step: int) -> list[Op]:
        """Ops of a rank in a step, by start time."""
        return sorted(
            (op for op in self.ranks[rank].ops if op.step == step), key=lambda op: (op.start_s, -op.end_s)
        )

    @staticmethod
    def _steps_of(rank: RankTrace) -> set[int]:
        marked = {op.step for op in rank.ops if op.kind == "step" and op.step >= 0}
        return marked or {op.step for op in rank.ops if op.step >= 0}
