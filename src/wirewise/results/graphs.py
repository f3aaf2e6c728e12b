"""What trainings on graphs report: records of epochs, of modes and of whole runs."""

from __future__ import annotations

import msgspec

__all__ = [
    "EpochRecord",
    "IncrementalRecord",
    "IncrementalRun",
    "MeasuredPass",
    "MiniBatchRecord",
    "MiniBatchRun",
    "ModeResult",
    "PlacementRecord",
    "PlacementRun",
    "RunResult",
]


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One training epoch of one mode, over all ranks."""

    epoch: int
    loss: float
    """Mean training loss over the global training nodes."""
    train_s: float
    """Wall-clock time of the epoch on the slowest rank, re-planning included, evaluation left out."""
    eval_s: float = 0.0
    """Wall-clock time of the evaluation after this epoch (0 when there was none)."""
    phases: dict[str, float] = {}
    """Seconds of the mean rank in each phase: pack, wire, unpack, central, marginal, reduce, plan,
    other."""
    bytes_sent: int = 0
    """Payload bytes of halo messages that all ranks sent in the epoch."""
    bits: dict[str, dict[int, int]] = {}
    """Messages by bit width for each exchange: {"forward1": {2: 812, 8: 3071}}."""
    accuracy: dict[str, float] = {}
    """Accuracy (or micro-F1) by split, "train", "validation", "test"; empty when not evaluated."""


class ModeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole training run in one mode."""

    epochs: list[EpochRecord]
    epoch_s: float
    """Median of `train_s`, the first two (warm-up) epochs left out."""
    epoch_s_quartiles: tuple[float, float]
    time_to_reference_loss_s: float | None
    """Wall-clock seconds, evaluations included, until the reference mode's loss was reached; None: never."""
    final_loss: float
    accuracy: float
    """Test accuracy at the best validation accuracy."""
    bytes_sent: int
    """Payload bytes of all ranks over all epochs."""
    kernel_bytes_sent: int | None
    """Bytes that the kernel's interface counters saw over the mode's epochs; None where there is no lab."""
    mean_bits: float
    """Mean bits per value over all messages sent."""
    peak_memory_bytes: list[int]
    """Peak resident growth of each rank during training."""
    memory_model_bytes: list[int]
    """The documented formula: part + halo + activations of each rank."""

    @property
    def run_s(self) -> float:
        """Training seconds of all epochs: warm-up, probes of links and choosing bits included, evaluation not."""
        return sum(record.train_s for record in self.epochs)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Several modes trained on the same parts, interleaved."""

    dataset: str
    workers: int
    hosts: int
    network: str
    """"lab", "slurm" or "loopback"."""
    link_bytes_per_s: float | None
    model: str
    hidden: int
    layers: int
    seed: int
    epochs: int
    graph: dict[str, float]
    """Figures of the graph: nodes, edges, features, classes, halo_rows, central_fraction."""
    reference: str
    """Name of the mode that the others are compared with."""
    modes: dict[str, ModeResult]
    environment: dict[str, str]
    """Versions, processor, command, date."""
    gradients: str = "float32"
    """Type in which weight gradients travelled, in all modes."""
    notes: list[str] = []
    """Sentences that a reader of the numbers must know: emulated parts, fallbacks, loopback."""


class MiniBatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A mode of mini-batch training, measured."""

    epoch_s: float
    """Median seconds of an epoch."""
    epochs_s: tuple[float, ...]
    remote_rows: int
    """Rows that all machines fetch in an epoch."""
    bytes_sent: int
    """Bytes of ids and rows of all machines in an epoch, without headers."""
    bytes_predicted: int
    """Bytes of ids and rows that the cache plan expects, before training."""
    gradient_bytes: int
    """Gradient bytes of all machines in an epoch; without a codec those of a ring."""
    hit_rate: float
    """Cached share of the rows of other machines that batches needed."""
    accuracy: float | None
    """Accuracy on test nodes, drawn evenly; None: computing was emulated."""
    loss: float | None
    """Training loss of the last epoch; None: computing was emulated."""
    stage_s: dict[str, float]
    """Median seconds of a batch on rank 0, by stage."""
    link_s: float
    """Seconds in which the busiest link carries an epoch's ids, rows and gradients, headers of TCP and Ethernet too."""
    cpu_s: float
    """Seconds that the processors which the machines share here need to compute an epoch."""
    pipelined: bool = False
    speedup: float = 1.0
    """Epoch of the first mode over that of this one."""
    speedup_run: float = 1.0
    """Setup and all epochs of the first mode over those of this one."""
    slept_s: float = 0.0
    """Seconds of an epoch that are slept, as an accelerator would compute: emulated."""
    row_format: str = "dense"
    """How fetched rows travel: dense, bits, ones (their columns), sparse, int8 or bfloat16."""
    row_bytes: float = 0.0
    """Bytes of a row in that format, mean of all nodes."""
    sampling_bytes: int = 0
    """Bytes of nodes and neighbours of all machines in an epoch, where the topology is partitioned."""
    setup_s: float = 0.0
    """Seconds before the first epoch that only this mode needs: its cache planned and filled."""

    @property
    def run_s(self) -> float:
        """Seconds of the setup and of all epochs."""
        return self.setup_s + sum(self.epochs_s)

    @property
    def predicted_s(self) -> float:
        """Epoch by the model: in a pipeline the longest of link, processors and sleep, otherwise their sum."""
        parts = (self.link_s, self.cpu_s, self.slept_s)
        return max(parts) if self.pipelined else sum(parts)

    @property
    def binding(self) -> str:
        """What an epoch cannot be faster than: "link", "processors", or the "accelerator" that is slept."""
        parts = {"link": self.link_s, "processors": self.cpu_s, "accelerator": self.slept_s}
        return max(parts, key=lambda name: parts[name])


class MiniBatchRun(msgspec.Struct, frozen=True, kw_only=True):
    """Modes of mini-batch training over partitioned features, one after another."""

    dataset: str
    workers: int
    link: str
    alpha: float
    policy: str
    batches: int
    """Batches of an epoch on each machine."""
    predicted_remaining: float
    """Share of the remote rows that the cache plan expects to be fetched."""
    sampler_edges_per_s: float
    """Rate of the sampler on one thread."""
    modes: dict[str, MiniBatchRecord]
    hosts: int = 0
    policies: dict[str, dict[str, float]] = {}
    """Share of the remote rows that each policy leaves to fetch, by alpha."""
    codec: str = ""
    """Codec of gradients, in modes that compress them."""
    topology: str = "replicated"
    device: str = "cpu"
    share: str = "equal"
    """How machines divide the cached rows, "equal" or "balanced" (`planners.cache.vip`)."""
    processors: str = "shared"
    """"shared": machines compute on the processors of one computer; "own": as if on their own ones, emulated."""


class IncrementalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A method that learnt the tasks of a growing graph; accuracies are means over the classes of a task."""

    ap: float
    """Mean accuracy over all tasks after the last one."""
    af: float
    """Mean change of the tasks' accuracies since each was learnt; negative: forgotten."""
    ap_by_task: tuple[float, ...]
    """AP after each task, over the tasks so far."""
    af_by_task: tuple[float, ...]
    accuracy: tuple[tuple[float, ...], ...]
    """Accuracies of tasks 0 to t after task t is learnt."""
    seconds: float
    """Learning and evaluation."""


class IncrementalRun(msgspec.Struct, frozen=True, kw_only=True):
    """Methods that learnt the same tasks of a growing graph."""

    dataset: str
    setting: str
    growth: str
    tasks: int
    classes_per_task: int
    budget: int
    """Nodes of each class that methods of rehearsal keep."""
    network: str = "loopback"
    """"slurm", or "loopback" where all ranks were on one machine."""
    hosts: int = 1
    workers: int
    seed: int
    methods: dict[str, IncrementalRecord]


class PlacementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A placement of tasks under an order of flows, simulated and carried out; seconds are those of an iteration."""

    method: str
    policy: str
    simulated_s: float
    measured_s: float
    """Median seconds over turns."""
    turns_s: tuple[float, ...]
    error: float
    """Relative error, simulated / measured - 1."""
    simulated_gain: float
    """Share of the first plan's time that is saved, in the simulation."""
    measured_gain: float
    """Share of the first plan's time that is saved, on the hosts."""
    lower_bound_s: float
    """Simulated seconds that no order of flows beats with these places."""
    crossing_bytes: float
    """Bytes between tasks on different hosts in an iteration."""
    latest: dict[str, tuple[str, float]]
    """Which task of each kind, and which flow, ended furthest from its simulated end, and by how many seconds."""


class PlacementRun(msgspec.Struct, frozen=True, kw_only=True):
    """Placements of the same tasks, carried out in turns on hosts of a lab."""

    emulated: str
    """What was not real, in words."""
    network: str = "lab"
    """"lab", or "slurm", where links are as they were measured."""
    hosts: int = 0
    links: tuple[str, ...]
    """Rate of each host."""
    tasks: int
    iterations: int
    turns: int
    plans: dict[str, PlacementRecord]
    """The first one is what the others are compared with."""
    fastest: str
    """Name of the plan with the shortest measured iteration."""


class MeasuredPass(msgspec.Struct, frozen=True, array_like=True):
    """A pass of a stage over a microbatch as it was carried out."""

    kind: str
    """F: forward; B: backward; I and W: backward for inputs and for weights."""
    stage: int
    update: int
    """Number of the update among those of a turn."""
    microbatch: int
    start_s: float
    """Seconds since the first pass of the turn."""
    end_s: float
