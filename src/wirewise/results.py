"""What a training run reports: one record an epoch, one result a mode, one result a run.

Runtimes write these records, reports and the command line read them. Seconds are float, bytes are int.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Advice",
    "Comparison",
    "CompressionRun",
    "DeploymentRecord",
    "DeploymentRun",
    "DeploymentTimes",
    "DproResult",
    "EpochRecord",
    "ExecutedJob",
    "ExecutedQueue",
    "ExecutedShare",
    "GroupRecord",
    "IncrementalRecord",
    "IncrementalRun",
    "JobsRun",
    "MeasuredPass",
    "MiniBatchRecord",
    "MiniBatchRun",
    "ModeResult",
    "MovedTimes",
    "ParallelRecord",
    "ParallelRun",
    "ParallelTimes",
    "PipelineRecord",
    "PipelineRun",
    "PipelineTimes",
    "PlacementRecord",
    "PlacementRun",
    "PlanRecord",
    "QueueMoment",
    "RealQueue",
    "RecoveryRecord",
    "RecoveryRun",
    "ReshardRecord",
    "ReshardRun",
    "RunResult",
    "SchedulerRecord",
    "SurvivalRecord",
    "Variant",
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


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """Several modes trained on the same parts, interleaved."""

    dataset: str
    workers: int
    hosts: int
    network: str
    """"lab" or "loopback"."""
    link_bytes_per_s: float | None
    model: str
    hidden: int
    layers: int
    seed: int
    epochs: int
    graph: dict[str, float]
    """nodes, edges, features, classes, halo_rows, central_fraction."""
    reference: str
    """Name of the mode that the others are compared with."""
    modes: dict[str, ModeResult]
    environment: dict[str, str]
    """Versions, processor, command, date."""
    gradients: str = "float32"
    """Type in which weight gradients travelled, in all modes."""
    notes: list[str] = []
    """Sentences that a reader of the numbers must know: emulated parts, fallbacks, loopback."""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Gradients that travel together in one step of a plan; measured times are medians of the slowest rank."""

    first: int
    """Number of its first tensor in the order of back-propagation."""
    last: int
    elements: int
    codec: str
    scheme: str
    decode: str
    payload_bytes: int
    """Bytes that a rank sends in a step, without headers."""
    predicted_s: tuple[float, float, float]
    """Seconds to encode, to communicate and to decode; what a scheme decodes on the way is part of communicating."""
    measured_s: tuple[float, float, float] | None = None


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and its steps."""

    step_s: float
    """Median over steps of the slowest rank."""
    quartiles_s: tuple[float, float]
    predicted_step_s: float
    error: float
    """predicted / measured - 1."""
    lower_bound_s: float
    """Seconds that no step of the planner's model beats with these codecs."""
    payload_bytes: int
    """Bytes that a rank sends in a step, without headers."""
    bytes_sent: int | None
    """Bytes of a step by the kernel's counters, with headers; None where there is no lab."""
    groups: list[GroupRecord]


class CompressionRun(msgspec.Struct, frozen=True, kw_only=True):
    """Plans of compressed gradients, carried out in turns."""

    model: str
    emulated: str
    """What was not real, in words."""
    hosts: int
    link: str
    codec: str
    tensors: int
    elements: int
    forward_s: float
    """Forward pass and optimizer, measured without other ranks."""
    backward_s: float
    """Seconds of back-propagation, measured without other ranks."""
    steps: int
    """Number of measured steps of each plan."""
    plans: dict[str, PlanRecord]
    fastest: str
    """Name of the plan with the shortest measured step."""


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
    slept_s: float = 0.0
    """Seconds of an epoch that are slept, as an accelerator would compute: emulated."""
    row_format: str = "dense"
    """How fetched rows travel: dense, bits, ones (their columns), sparse, int8 or bfloat16."""
    row_bytes: float = 0.0
    """Bytes of a row in that format, mean of all nodes."""
    sampling_bytes: int = 0
    """Bytes of nodes and neighbours of all machines in an epoch, where the topology is partitioned."""

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


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, what was planned, and what to do."""

    verdict: str
    """ "compress", "regroup" (an uncompressed plan, measured to be faster), "keep" (the script as it is), or "unknown":
    no plan was tried, and the prediction is too far off to advise upon."""
    sentence: str
    ranks: int
    gradient_bytes: int
    measured_step_s: float
    """Step of the command as it is."""
    predicted_ddp_s: float
    """Predicted step of the command as it is, with buckets of 25 MiB."""
    prediction_error: float
    """`predicted_ddp_s` / `measured_step_s` - 1."""
    predicted_plain_s: float
    """Predicted step of the best buckets without compression."""
    predicted_step_s: float
    """Predicted step of the best plan that may compress."""
    lower_bound_s: float
    gain: float
    """Share of the best uncompressed step that compressing saves, predicted."""
    tried_step_s: dict[str, float]
    """Measured step of each plan that was tried, by its codec, none, or mixed."""
    measured_gain: float | None
    """Share of the shortest uncompressed step, as it is or under a plan, that the best plan saves; None: none was
    tried."""
    compress: bool
    latency_s: float
    """Latency of an all-reduce, fitted to measured ones."""
    bandwidth_bytes_per_s: float
    """Bandwidth of each rank, fitted to measured all-reduces."""
    break_even_bytes_per_s: float | None
    """Bandwidth below which compressing pays; None: at none."""
    plan: str
    """File of the plan to use, where the verdict is to use one; else of one without compression."""
    lines: tuple[str, ...]
    """What to write into the script; none where the verdict is to keep it as it is, or unknown."""


class DproResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was said to give, and what it gave."""

    sentence: str
    """What bounds a step."""
    ranks: int
    measured_step_s: float
    """Step of the recorded run."""
    replayed_step_s: float
    error: float
    """replayed / measured - 1."""
    predicted_step_s: float
    """Under the plan, simulated."""
    predicted_gain: float
    """Share of the step that the plan saves, simulated."""
    present_step_s: list[float]
    """Each run without the plan, measured."""
    planned_step_s: list[float]
    """Each run with it, measured."""
    gain: float
    """Share of the step that the plan saves, measured: mean of pairs."""
    ci95: tuple[float, float]
    """Interval of the gain, by Student's t over pairs."""
    kept: bool
    """Whether the whole interval is above zero."""
    plan: str
    """File of the plan."""


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
    """simulated / measured - 1."""
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


class PipelineTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a pipeline measured while they trained."""

    steps_s: list[float]
    """Seconds of each update but the first of a turn, mean over the ranks."""
    ends_s: list[float]
    """Seconds of training until each update was done on all ranks."""
    losses: list[float]
    """Loss of each update."""
    bubble: float
    """Share of the time in which a rank computed nothing, mean over ranks and turns."""
    peak_bytes: int
    """Weights in all versions, gradients, state of the optimizer and most saved activations, of the fullest rank."""
    passes: list[MeasuredPass] = []
    """Passes over the first updates of the last turn, of the first replica."""


class PipelineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A mode in which a pipeline was trained."""

    step_s: float
    """Median seconds of an update."""
    predicted_step_s: float
    """Simulated seconds of an update."""
    bubble: float
    """Share of the time in which a rank computed nothing."""
    peak_bytes: int
    """Bytes of weights, gradients, optimizer and activations on the fullest rank."""
    final_loss: float
    """Mean loss of the last updates."""
    time_to_reference_loss_s: float | None
    """Seconds of training until the loss was within 1 % of the reference's final one; None: never."""
    losses: list[float]
    """Loss of each update, averaged with the few before it."""
    passes: list[MeasuredPass] = []
    """Passes over some updates in a row, of one replica."""

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_step_s / self.step_s - 1.0


class PipelineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model trained in stages in several modes, in turns."""

    emulated: str
    """What was not real, in words."""
    hosts: int
    link: str
    stages: int
    replicas: int
    microbatches: int
    updates: int
    optimizer: str
    meanings: dict[str, str]
    """Meaning of each mode."""
    modes: dict[str, PipelineRecord]
    """The first one is what the others are compared with."""
    fastest: str
    """Name of the mode with the shortest update."""
    speedup_step: float
    """Update of the first mode over that of 2bw, or of the fastest mode where 2bw is not among them."""


class RecoveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, from the instant of the signal to the first step that had not been committed before."""

    rank: int
    at_s: float
    """Seconds after the first step of the training."""
    strategy: str
    """Where the lost state came from: "replica", "log", "snapshot" in the memory of the host, or "checkpoint"."""
    detect_s: float
    """Seconds until the agent of the failed rank knew of it."""
    fence_s: float
    """Seconds more until no process of the old generation could act any more."""
    regroup_s: float
    """Seconds more until the new process group stood."""
    restore_s: float
    """Seconds more until every rank had the state of the step that was agreed on."""
    recompute_s: float = 0.0
    """Seconds more in which a new process computed logged steps again."""
    resume_s: float
    """Seconds more until the first new step was committed."""
    lost_iterations: int
    """Number of committed steps that were lost and computed again by all ranks."""
    replayed_iterations: int
    """Number of steps that the new process alone computed again from logs."""
    bit_equal: bool | None
    """Whether the state at the end of the training is that of an undisturbed one, bit for bit; None: not compared."""
    predicted_s: dict[str, float] = {}
    """Seconds that were predicted of each phase, by its name without the unit."""

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of each phase in the order in which they follow each other."""
        names = ("detect", "fence", "regroup", "restore", "recompute", "resume")
        return {name: getattr(self, f"{name}_s") for name in names}

    @property
    def recovered_s(self) -> float:
        """Seconds from the signal to the first new step."""
        return sum(self.phases_s.values())


class SurvivalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A way to survive failures, as one training with kills took it."""

    meaning: str
    kills: int
    spared: int
    """Number of kills that the training ended before."""
    step_s: float
    """Median seconds of a step before the first kill."""
    resumed_s: tuple[float, ...]
    """Seconds from each kill to the next step of the process in its place, whichever step that was."""
    recovered_s: tuple[float, ...]
    """Seconds from each kill to the first step that had not been committed before."""
    repeated: int
    """Number of committed steps that were computed again, over all kills."""
    steps: int
    """Number of steps that were committed in the end."""
    seconds: float
    """Seconds from the first to the last step."""
    goodput: float
    """Share of the time that an unprotected training without failures needs for the same steps."""
    bit_equal: bool | None
    """Whether the final state is that of an undisturbed training; None: not compared."""


class RecoveryRun(msgspec.Struct, frozen=True, kw_only=True):
    """A training under failures, next to other ways to survive them."""

    job: str
    hosts: int
    link: str
    optimizer: str
    consistency: str
    strategy: str
    """"auto", or the only way of recovery that was allowed."""
    state_bytes: int
    """Bytes of parameters and optimizer of a rank."""
    kills: int
    recoveries: tuple[RecoveryRecord, ...]
    bit_equal: bool
    """Whether the final state is that of an undisturbed training, bit for bit, on all ranks."""
    step_s: float
    """Median seconds of a protected step without failures."""
    unprotected_step_s: float
    """Median seconds of a step of the unmodified script without failures and checkpoints."""
    overhead: float
    """Protected over unprotected step without failures, less 1."""
    goodput: float
    baseline_goodput: float | None
    """Goodput of the unmodified script with checkpoints, restarted by torchrun; None: not trained."""
    baseline: str
    """How often the baseline writes checkpoints, in words."""
    speedup: float | None
    """Median seconds until the baseline takes a step again, over those until the protected training has a new one."""
    ways: dict[str, SurvivalRecord]
    """The protected training first."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One of the variants of a comparison: its row of the table and its bar, ready to be shown."""

    cells: dict[str, str]
    """Figures of its row of the table by the titles of the columns, the same for all variants."""
    length: float | None = None
    """Value that its bar shows, in one unit for all variants; None: no bar."""
    words: str = ""
    """Text at the end of the bar."""
    colour: str = "c1"
    """CSS class of its colour on pages: "c0" for a reference, "c2" for the best of several."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Variants of a job that were measured next to each other, in the words of terminals and pages.

    Everything that systems have in common is here; a page adds sections of its own.
    """

    kind: str
    """Command, and on what it ran."""
    sentence: str
    """Result with its conditions."""
    cards: tuple[tuple[str, str, str], ...] = ()
    """Title, value and detail of each main figure."""
    title: str
    """Heading of bars and table."""
    lead: str = ""
    """Explanation of bars and table: what was measured, how, and what the dashed line is."""
    what: str
    """Name of a variant in the singular: "plan", "mode", "method"."""
    variants: dict[str, Variant]
    goal: float = 0.0
    """Value that a dashed line marks among the bars; 0: no line."""
    meanings: dict[str, str] = {}
    """Meanings of the figures by their titles; if given, the table has a row a figure and a column a variant."""
    notes: tuple[str, ...] = ()
    """Sentences that a reader of the figures must know: what is emulated, simulated, left out."""
    facts: dict[str, str] = {}
    """Versions, settings and the like by name."""

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles above `rows`."""
        if self.meanings:
            return ("", *self.variants)
        return (self.what, *next((one.cells for one in self.variants.values()), {}))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of the table: one a variant, or where meanings are given one a figure."""
        if self.meanings:
            return [(title, *(one.cells[title] for one in self.variants.values())) for title in self.meanings]
        return [(name, *one.cells.values()) for name, one in self.variants.items()]


class MovedTimes(msgspec.Struct, kw_only=True):
    """What the ranks measured of the moves of one reshard plan."""

    seconds: list[float]
    """Duration of each move, from the first start to the last end."""
    equal: bool
    """Whether every rank had what slicing gives, bit for bit, each time."""
    received_bytes: list[int]
    """Bytes into the interface of each rank's host in the last move, headers included; 0: not counted."""
    sent_bytes: list[int]
    """Bytes out of it."""


class ReshardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One reshard plan as it was carried out."""

    strategy: str
    measured_s: float
    """Median of the turns."""
    turns_s: tuple[float, ...]
    bound_s: float
    """No plan takes less on these links."""
    predicted_s: float
    equal: bool
    bytes_sent: int
    """Bytes that the plan sends between ranks."""
    bytes_between_hosts: int
    received_bytes: tuple[int, ...]
    """Bytes into the interface of each rank's host, headers included."""
    sent_bytes: tuple[int, ...]


class ReshardRun(msgspec.Struct, frozen=True, kw_only=True):
    """Reshard plans of the same tensors, carried out in turns; the first one is what was asked for."""

    links: tuple[str, ...]
    """Rate of each host."""
    ranks: int
    tensors: int
    turns: int
    measured_s: float
    bound_s: float
    predicted_s: float
    equal: bool
    """Whether every move gave every rank what slicing gives, bit for bit."""
    plans: dict[str, ReshardRecord]


class DeploymentTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks measured of a training under one deployment plan."""

    steps_s: list[float]
    """Seconds of each step on the rank that took longest."""
    bytes_sent: int
    """Bytes out of all interfaces in a step, headers included; 0: not counted."""
    loss_error: float
    """Largest difference to the losses of one process over the first steps, relative where these are above 1."""


class DeploymentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan under which a model was trained."""

    step_s: float
    """Median seconds of a step."""
    predicted_step_s: float
    """Simulated seconds of a step."""
    bytes_sent: int
    """Bytes out of all interfaces in a step, headers included."""
    loss_equal: bool
    """Whether losses are those of one process to 1e-5."""
    loss_error: float
    steps_s: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_step_s / self.step_s - 1.0


class DeploymentRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model trained on unequal hosts under several plans, in turns."""

    emulated: str
    """What was not real, in words."""
    model: str
    speeds: tuple[float, ...]
    """Speed of each host."""
    links: tuple[str, ...]
    """Rate of each host."""
    batch: int
    steps: int
    """Measured steps of each plan."""
    meanings: dict[str, str]
    """Meaning of each plan."""
    plans: dict[str, DeploymentRecord]
    """The first one is what the others are compared with."""
    fastest: str
    """Name of the plan with the shortest step."""
    speedup: float
    """Step of the first plan over that of tag, or of the fastest plan where tag is not among them."""


class ExecutedShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a job had of a cluster for a time."""

    cluster: int
    cpus: int
    gpus: int
    start_s: float
    """Seconds since the first slot of the queue."""
    end_s: float


class ExecutedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a queue as it ran; seconds count from the first slot."""

    name: str
    kind: str
    steps: int
    arrival_s: float
    ended_s: float
    """When its last process was gone."""
    shares: tuple[ExecutedShare, ...]
    """What it had, in order of time; several: it was resized, moved, stopped for a while or failed."""
    failures: tuple[str, ...] = ()
    """Last words of each failure."""
    words: str = ""
    """Why it was given up; nothing: it was not."""

    @property
    def completion_s(self) -> float:
        """Seconds from arrival to end."""
        return self.ended_s - self.arrival_s


class QueueMoment(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of a queue after the decisions of a slot."""

    at_s: float
    waiting: int
    running: int


class ExecutedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of jobs as it ran under a policy."""

    jobs: tuple[ExecutedJob, ...]
    moments: tuple[QueueMoment, ...]
    """One for each slot."""
    starts_s: tuple[float, ...]
    """Seconds of each start, from the order until ranks are at the step that they go on from."""
    stops_s: tuple[float, ...]
    """Seconds of each stop, from the order until the state is saved and all processes are gone."""
    notes: tuple[str, ...]
    """What happened besides: failures, torn states, clusters that died."""

    @property
    def mean_completion_s(self) -> float:
        """Mean seconds from arrival to end of the jobs that were not given up; NaN if all were."""
        taken = [job.completion_s for job in self.jobs if not job.words]
        return sum(taken) / len(taken) if taken else float("nan")


class SchedulerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated queues under one scheduler; in slots."""

    mean_jct: float
    """Mean over queues of the mean from a job's arrival to its end."""
    ci95: tuple[float, float]
    """Interval of that mean, by Student's t over the queues."""
    makespan: float
    """Mean slot in which the last job of a queue ends."""
    p99: float
    """Mean over queues of what 99 of 100 jobs stay within."""
    quantiles: tuple[float, ...]
    """Slots from arrival to end that 0, 5, ... 100 of 100 jobs of all queues stay within."""


class RealQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of real jobs under one scheduler, and what was predicted of it."""

    planner: str
    predicted_jct_s: float
    """Simulated mean from a job's arrival to its end."""
    measured_jct_s: float
    """Mean over the jobs that were not given up."""
    error: float
    """Predicted over measured, less 1."""
    predicted_makespan_s: float
    measured_makespan_s: float
    slot_s: float
    clusters: tuple[str, ...]
    predicted_ends_s: dict[str, float]
    """Simulated end of each job."""
    executed: ExecutedQueue
    start_s: float
    """Median seconds of a start, measured before."""
    stop_s: float
    """Median seconds of a stop, measured before."""
    kept: float
    """Share of a slot's progress that these leave of one in which a job was given something else."""
    step_s: dict[str, dict[str, float]]
    """Measured seconds of a step, by kind, then by processors and accelerators as "2x1"."""
    notes: tuple[str, ...] = ()


class JobsRun(msgspec.Struct, frozen=True, kw_only=True):
    """Schedulers of queues of jobs: simulated next to each other, and one of them with real jobs."""

    queues: str
    """What was drawn, in words."""
    seeds: int
    kept: float
    """Share of a slot's progress that was left to a job that was given something else, simulated."""
    schedulers: dict[str, SchedulerRecord]
    """Schedulers by name, the shortest mean first."""
    real: RealQueue | None


class ParallelTimes(msgspec.Struct, kw_only=True):
    """What the ranks measured of one way to train."""

    losses: list[float]
    """Loss of each of the first steps."""
    steps_s: list[float] = []
    """Duration of each measured step, of the slowest rank."""
    sent_bytes: list[int] = []
    """Bytes out of the interfaces of all hosts in each measured step, headers included; empty: not counted."""


class ParallelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train a model on several ranks."""

    step_s: float
    """Median of all turns."""
    steps_s: tuple[float, ...]
    predicted_step_s: float | None
    """None: nothing was predicted of it."""
    bytes_sent: int | None
    """Bytes out of the interfaces of all hosts in a step, headers included; None: not counted."""
    predicted_bytes: int | None
    loss_equal: bool
    """Whether the losses of the first steps are those of one device."""
    loss_error: float
    """Largest difference of a loss from that of one device, as a share of it."""
    meaning: str = ""


class ParallelRun(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was trained on several ranks in several ways, in turns."""

    model: str
    parameters: int
    emulated: str
    links: tuple[str, ...]
    """Rate of each host."""
    turns: int
    capture_s: float
    """Seconds of capturing the model's step as a graph."""
    planning_s: float
    losses: tuple[float, ...]
    """Losses of one device."""
    plans: dict[str, ParallelRecord]
    """Ways to train, by name; `rhino` is the planned one."""
    fastest: str
    choices: dict[str, str] = {}
    """How the plan splits each block, in words."""
    why: tuple[str, ...] = ()
    """Reasons of the plan, and what it leaves whole."""
