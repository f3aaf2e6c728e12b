"""Training under a plan of stages: its timetable is executed action by action, batch after batch."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.log import logger
from wirewise.planners.reshard import alike_links
from wirewise.plans import StagePlan
from wirewise.plans.timetables import ActionKind, StagePass
from wirewise.rng import stream_key
from wirewise.runtime.pipeline.evaluation import EvaluationResult, evaluate_batch, evaluation_mode
from wirewise.runtime.pipeline.feed import Batch, BatchFeed, named_inputs
from wirewise.runtime.pipeline.groups import check_same_plan, make_exchange
from wirewise.runtime.pipeline.layers import LayerGraph
from wirewise.runtime.pipeline.messages import MessageJournal
from wirewise.runtime.pipeline.reshard import hosts_of_ranks
from wirewise.runtime.pipeline.stage import LOSS, Loss, MicrobatchKey, StageCompute
from wirewise.runtime.pipeline.updates import (
    DelayCorrection,
    GradientExchange,
    LossScale,
    Optimizers,
    Schedules,
    WeightUpdates,
)
from wirewise.runtime.pipeline.user_steps import mark_gradients_taken, scope_of_position
from wirewise.runtime.pipeline.values import ValueExchange
from wirewise.runtime.pipeline.weights import Weights
from wirewise.runtime.ranges import profile_range
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["PassRecord", "Pipeline", "UpdateResult"]

_log = logger("pipeline")
_PASSES = {"F": "forward", "B": "backward", "I": "backward to inputs", "W": "backward to weights"}
_AHEAD = 8
"""Actions ahead for which receives are posted."""


class PassRecord(NamedTuple):
    """Record of an executed action."""

    step: StagePass
    version: int
    """Number of updates of the weights used."""
    start_s: float
    """Time at which all inputs had arrived, on the clock of `time.perf_counter`."""
    end_s: float


class UpdateResult(NamedTuple):
    """Update whose backward passes are done on this rank."""

    update: int
    loss: float | None
    """Mean loss over the microbatches of this replica, on ranks with the last stage; None elsewhere."""


class Pipeline:
    """Trainer of a model in stages under a plan; every rank of the plan creates one.

    After an error, or a `train` that was not run to its end, create a new one and load the last state.

    Args:
        layers: The model, or a list of modules in sequence. The same on all ranks; a rank uses the modules of its own
            stages alone, so others may be on the device "meta".
        plan: Stages, ranks and timetable, the same on all ranks. Where ranks share a stage, its modules are
            tensor-parallel, and all of its ranks get the same microbatches.
        loss: Mean loss of a microbatch from the model's output and the targets.
        optimizer: Function that makes one or several optimizers from the list of this rank's parameters.
        by_name: Whether `optimizer` gets pairs of name and parameter, named as in the model's `named_parameters()`,
            to form parameter groups, such as those without weight decay.
        schedule: Function that makes the learning-rate schedule of an optimizer, stepped once per update, also if the
            update is skipped.
        process_group: Ranks of the plan, gloo or NCCL. Defaults to the default group, which NCCL requires.
        clip: Maximum norm of the gradients of all stages together. None for no clipping.
        loss_scale: Loss scale, or `LossScale`; updates with non-finite gradients are then skipped on all ranks.
            Defaults to 1, without the check.
        delay_correction: Correction of gradients that are one update old with two weight versions: "none", "nesterov"
            or "error_feedback", which keep one or two further copies of the weights.
        seed: Seed of random numbers in modules.
        links: Links between the ranks, the same on all, from which moves between stages of several ranks are planned.
            Defaults to uniform links between hosts, by host name.
        shards: Names, such as "3.weight", of plain parameters that are separate shards on the ranks of a stage; other
            plain ones are replicated. Needed for gradient norms alone.
        in_order: Whether messages between stages match by order instead of tags. Defaults to True on devices, as NCCL
            has no tags.
        recorded: Whether to fill `records`.
        around: Context manager around the compute of each pass, without its messages, such as a profiler range.
        timeout_s: Seconds to wait for a message before its sender counts as hung.
        store: Torch store shared by all ranks, for a group that is not the default one.
        journal: Message log, so that a lost rank can be recomputed. None for no log.

    Raises:
        PlanError: The plan does not fit the model or the group, or differs between ranks.
        InputError: Another argument is invalid.
        PeerError: A peer is gone.
    """

    def __init__(
        self,
        layers: LayerGraph | nn.Sequential | Sequence[nn.Module],
        plan: StagePlan,
        *,
        loss: Loss,
        optimizer: Optimizers,
        by_name: bool = False,
        schedule: Schedules | None = None,
        process_group: dist.ProcessGroup | Transport | None = None,
        clip: float | None = None,
        loss_scale: float | LossScale | None = None,
        delay_correction: DelayCorrection = "none",
        seed: int = 0,
        links: Links | None = None,
        shards: Collection[str] | None = None,
        in_order: bool | None = None,
        recorded: bool = False,
        around: Callable[[StagePass], AbstractContextManager[Any]] | None = None,
        timeout_s: float = 120.0,
        store: Any = None,
        journal: MessageJournal | None = None,
    ) -> None:
        layers = layers if isinstance(layers, LayerGraph) else LayerGraph(layers)
        if len(layers.inputs) > 1 and journal is not None:
            raise InputError(
                f"a journal is given, and the model takes {list(layers.inputs)}; expected one tensor"
            )
        plan.check_itself()
        _check(plan, clip, delay_correction)
        if journal is not None:
            _check_journal(plan, layers)
        self.plan, self.layers, self._shards, self._loss = plan, layers, shards, loss
        self._with_norm = clip is not None or loss_scale is not None
        words = [plan.to_json(), repr(layers.sources), str(seed), str(clip), delay_correction, repr(links)]
        self._digest = hashlib.sha256("\n".join(words).encode()).digest()
        self._journal = journal or MessageJournal()
        values = layers.values(plan)
        transport = transport_of(process_group, timeout_s=timeout_s, store=store)
        in_order = transport.on_device if in_order is None else in_order
        _check_order(plan, transport, in_order, journal)
        self._in_order = in_order
        self.transport = transport = self._meet(transport)
        if links is None and any(len(ranks[0]) > 1 for ranks in plan.ranks):
            links = alike_links(hosts_of_ranks(transport))
        self._links = links
        self.position, self.replica, _ = plan.place_of(transport.rank)
        own = [number for number, stage in enumerate(plan.stages) if stage.position == self.position]
        key = stream_key(seed, self.replica)
        self.stages = {number: StageCompute(layers, plan, number, loss, key, self.replica) for number in own}
        modules = {name: m for stage in self.stages.values() for name, m in stage.modules.items()}
        self.weights = Weights(modules, plan.weight_versions)
        factor = 1.0 if loss_scale is None else loss_scale
        self.scale = factor if isinstance(factor, LossScale) else LossScale(factor)
        exchange = self._make_exchange()
        named = self.weights.named
        pairs = [(layers.plain_name(name, parameter), parameter) for name, parameter in named.items()]
        given: Any = pairs if by_name else list(named.values())
        made = optimizer(given) if named else []
        optimizers = [made] if isinstance(made, Optimizer) else list(made)
        self.weights.copy_versions()
        self._updates = WeightUpdates(
            self.weights,
            exchange,
            optimizers,
            [schedule(one) for one in optimizers] if schedule is not None else [],
            clip=clip,
            scale=self.scale,
            correction=delay_correction,
            scope=scope_of_position(plan, self.position, self.weights),
        )
        self.update = 0
        """Number of the next update."""
        self.records: list[PassRecord] = []
        """Actions as they were executed, where asked for."""
        self._wide = len(plan.ranks[self.position][0]) > 1
        self._recorded = recorded
        self._around = around or (lambda _: nullcontext())
        self._values = ValueExchange(values, plan, transport, self.stages, self._journal, links, in_order)
        self._unfinished: dict[int, int] = {}
        self._losses: dict[int, Tensor] = {}
        self._broken = ""

    def train(self, batches: Iterable[Batch]) -> Iterator[UpdateResult]:
        """Train with one batch per update; every rank passes equally many batches, those of a replica being equal.

        Without a flush between updates, the next batch is fetched before the result of an update is available.
        Between two results, the modules have the newest weights known by then.

        Args:
            batches: Inputs and targets, [microbatches x microbatch size, ...] each. Stages that use neither may get
                any tensors with that many rows. Several inputs are a tuple in the model's order, or a dict. A batch
                may be smaller if rows are independent: its loss is the mean over its rows.

        Yields:
            Result of each update, once its backward passes are done on this rank.

        Raises:
            InputError: A batch has another size, a module does not return one tensor, activations of microbatches
                differ in shape, or the pipeline cannot continue.
            PeerError: A peer is gone; the message says which stage waits for which. Weights are those of the last
                finished update.
        """
        if self._broken:
            raise InputError(f"{self._broken}; make a new Pipeline and load the state of the last checkpoint")
        feed = BatchFeed(iter(batches), self.update, self.plan, self.layers.inputs, self._smaller)
        self.begin()
        self._broken = "this pipeline was left in the middle of an update"
        try:
            self._values.begin(self.update)
            while feed.has(self.update):
                until = self._journal.meet(self.update)
                last = None if until is None else until - 1
                for result in self._walk(feed, self.update if self.plan.weight_versions == 1 else last):
                    # An exchange that is under way keeps gradients in the parameters, on its own thread.
                    between = nullcontext() if self._updates.under_way else mark_gradients_taken(self.weights)
                    with between:
                        yield result
            self._finish()
            self._journal.meet(self.update)
        finally:
            self.weights.originals()
            for stage in self.stages.values():
                stage.forget()
        self._broken = ""

    @property
    def _smaller(self) -> str:
        """Why no batch may have fewer rows than the plan says; nothing: it may."""
        if type(self._journal) is not MessageJournal:
            return "messages are kept in a journal"
        if len(self.plan.ranks[0]) > 1:
            return "replicas count alike in an update"
        if any(len(ranks[0]) > 1 for ranks in self.plan.ranks):
            return "ranks share stages"
        for name, module in self.layers.modules.items():
            if any(isinstance(one, _BatchNorm) and one.training for one in module.modules()):
                return f"module {name!r} normalises over rows, with which a smaller batch is filled up"
        return ""

    def evaluate(
        self, batches: Iterable[Tensor | Mapping[str, Tensor] | Batch]
    ) -> Iterator[EvaluationResult]:
        """Evaluate batches with the newest weights, in evaluation mode and without gradients.

        Every rank calls it with batches of the same sizes, between two calls of `train` or after one; those of a
        replica are equal. A batch may have any number of rows, so a smaller last one is allowed.

        Args:
            batches: Inputs, or a tuple of inputs and targets, [rows, ...] each; several inputs as in `train`.

        Yields:
            Output and loss of each batch, on the ranks with the last stage.

        Raises:
            InputError: The pipeline was left within an update, logs messages to a journal, or sends them in order.
            PeerError: A peer is gone.
        """
        if self._broken:
            raise InputError(f"{self._broken}; make a new Pipeline and load the state of the last checkpoint")
        if self._in_order or type(self._journal) is not MessageJournal:
            raise InputError(
                "messages are kept in a journal, or match by the order of the timetable, where those of an evaluation "
                "have no place; expected a pipeline over gloo without a journal, or a plain model with its weights"
            )
        self._finish()
        self.weights.originals()
        for batch in batches:
            given, targets = (batch, None) if isinstance(batch, Tensor | Mapping) else batch
            inputs = named_inputs(given, self.layers.inputs)
            with evaluation_mode(self.stages):
                yield evaluate_batch(
                    inputs,
                    targets,
                    stages=self.stages,
                    values=self._values,
                    plan=self.plan,
                    update=self.update,
                    loss=self._loss,
                )

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        """Process groups, besides that of all ranks, in which gradients are reduced or agreed on."""
        return [one for one in self._updates.groups if one is not self.transport.group]

    def begin(self) -> None:
        """Announce the next update to the journal, on all ranks; `train` does so first.

        Raises:
            InputError: The journal lacks what this or another rank needs.
            PeerError: A peer is gone.
        """
        replicas = [rank for own in self.plan.ranks[self.position] for rank in own]
        self._journal.begin(self.transport, self.update, self._values.senders, replicas)

    def update_by(self, passes: Callable[[int, float], None]) -> None:
        """Run one update whose passes are executed elsewhere, in whole or in part.

        Args:
            passes: Function called with the number of the update and the factor of each microbatch's loss. The
                modules then have the weights of the update's version, and must have the gradients of all microbatches
                afterwards.
        """
        self._finish()
        version = max(self.update - self.weights.versions + 1, 0)
        factor = self.scale.after(version)
        try:
            self.weights.use(version)
            passes(self.update, factor / self.plan.microbatches)
            self._updates.start(version, factor)
            self._finish()
        finally:
            self.weights.originals()
        self.update += 1

    def state_dict(self) -> dict[str, Any]:
        """State of this rank after the last result of `train`: weights in all versions, buffers, optimizers, schedules.

        Without a flush between updates, buffers have already seen microbatches of the next one.
        """
        self._finish()
        return {
            "plan": self.plan.to_json(),
            "update": self.update,
            "weights": self.weights.state(),
            "buffers": {name: buffer.detach().clone() for name, buffer in self._buffers().items()},
            **self._updates.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same rank under the same plan, bit for bit as without interruption.

        Args:
            state: Result of `state_dict`; then call `train` with the batches from `update` on.

        Raises:
            InputError: The state is of another plan or model.
        """
        if state["plan"] != self.plan.to_json():
            raise InputError(
                "the checkpoint was written under another plan; use that plan, or load weights by themselves"
            )
        own, given = self._buffers(), state["buffers"]
        if {name: one.shape for name, one in own.items()} != {name: one.shape for name, one in given.items()}:
            raise InputError(
                f"the checkpoint has the buffers {sorted(given)[:8]}; expected {sorted(own)[:8]} of the same shapes: "
                "load the file of this rank, for the same model"
            )
        self.weights.load(state["weights"], state["update"])
        for name, buffer in own.items():
            buffer.detach().copy_(given[name])
        self._updates.load(state)
        self.update = state["update"]

    def reconnect(
        self, process_group: dist.ProcessGroup | Transport | None = None, *, store: Any = None
    ) -> None:
        """Resume with new connections after a peer was lost, with the same ranks; this rank keeps its progress.

        Every rank calls it, except replacements, which create a `Pipeline` and load a state. Then call `train` with
        the batches from `update` on.

        Args:
            process_group: Ranks of the plan, gloo. Defaults to the default group.
            store: Torch store shared by all ranks, for a group that is not the default one.

        Raises:
            PlanError: The plan differs between ranks.
            PeerError: A peer is gone again.
        """
        self._values.close(lost=True)
        _log.info("connects its stages anew at update %d", self.weights.newest)
        self.transport = self._meet(
            transport_of(process_group, timeout_s=self.transport.timeout_s, store=store)
        )
        self._updates.exchange_over(self._make_exchange)
        self._journal.commit(self.weights.newest)
        self.update = self.weights.newest
        self._losses.clear()
        self._values = ValueExchange(
            self.layers.values(self.plan),
            self.plan,
            self.transport,
            self.stages,
            self._journal,
            self._links,
            self._in_order,
        )
        self._broken = ""

    def close(self) -> None:
        """End all threads; pending receives are left to their timeout."""
        self._updates.close()
        self._values.close()

    def _buffers(self) -> dict[str, Tensor]:
        return {
            f"{name}.{inner}": buffer
            for stage in self.stages.values()
            for name, module in stage.modules.items()
            for inner, buffer in module.named_buffers()
        }

    def _meet(self, transport: Transport) -> Transport:
        check_same_plan(transport, self.plan, int.from_bytes(self._digest[:8], "little") >> 1)
        return transport

    def _make_exchange(self) -> GradientExchange:
        return make_exchange(
            self.transport,
            self.plan,
            self.layers,
            self.weights,
            with_norm=self._with_norm,
            shards=self._shards,
            journal=self._journal,
        )

    def _finish(self) -> None:
        """Wait for the update that has begun."""
        self._updates.finish()
        self._journal.commit(self.weights.newest)

    def _walk(self, feed: BatchFeed, last: int | None) -> Iterator[UpdateResult]:
        """Work the timetable off, from the next update to `last` or to the last batch."""
        self._unfinished.clear()
        steps = self._steps(feed, last)
        upcoming: deque[StagePass] = deque()
        while True:
            for step in steps:
                upcoming.append(step)
                self._values.post(step)
                if len(upcoming) > _AHEAD:
                    break
            if not upcoming:
                return
            step = upcoming.popleft()
            if self._carry_out(step, feed):
                yield self._end(step.update, feed)

    def _steps(self, feed: BatchFeed, last: int | None) -> Iterator[StagePass]:
        """Steps of this position: those that fill the pipeline, then update after update."""
        row, m, first = self.plan.timetable[self.position], self.plan.microbatches, self.update

        def due(update: int) -> bool:
            return (last is None or update <= last) and feed.has(update)

        for action in row:
            if action.microbatch >= m:
                yield StagePass(first, action.kind, action.stage, action.microbatch - m)
        update = first
        while due(update):
            for action in row:
                later, microbatch = divmod(action.microbatch, m)
                if due(update + later):
                    yield StagePass(update + later, action.kind, action.stage, microbatch)
            update += 1

    def _carry_out(self, step: StagePass, feed: BatchFeed) -> bool:
        """Do one step; whether it was the last of its update."""
        version = max(step.update - self.weights.versions + 1, 0)
        # Ranks that share a stage step at the same place: an optimizer may need all of them.
        if (self._updates.ready and not self._wide) or version > self.weights.newest:
            self._finish()
        stage, key = self.stages[step.stage], (step.update, step.microbatch)
        given = self._arrived(stage, step.kind, key, feed)
        self.weights.use(version)
        start_s = time.perf_counter()
        with self._around(step), profile_range(f"{_PASSES[step.kind]} of stage {step.stage}"):
            found = self._compute(step, stage, key, given, feed, version)
        if self._recorded:
            self.records.append(PassRecord(step, version, start_s, time.perf_counter()))
        if step.kind == "F":
            if LOSS in found:
                loss = found[LOSS].double() * feed.weight(step.update, step.microbatch)
                self._losses[step.update] = self._losses.get(step.update, 0) + loss
            self._values.send_outputs(stage, key, found)
        elif step.kind != "W":
            self._values.send_input_gradients(stage, key, found)
        if step.kind in "BW":
            done = self._unfinished.get(step.update, 0) + 1
            self._unfinished[step.update] = done
            if done == self.plan.microbatches * len(self.stages):
                del self._unfinished[step.update]
                return True
        return False

    def _arrived(
        self, stage: StageCompute, kind: ActionKind, key: MicrobatchKey, feed: BatchFeed
    ) -> dict[str, Tensor]:
        """Wait for what a step needs: values for a forward pass, summed gradients for a backward pass."""
        if kind == "W":
            return {}
        if kind != "F":
            return self._values.gradients(stage, key)
        own = {name: one.to(stage.device) for name, one in feed.inputs(*key).items() if name in stage.takes}
        return own | self._values.activations(stage, key)

    def _compute(
        self,
        step: StagePass,
        stage: StageCompute,
        key: MicrobatchKey,
        given: dict[str, Tensor],
        feed: BatchFeed,
        version: int,
    ) -> dict[str, Tensor]:
        if step.kind == "F":
            target = feed.targets(*key).to(stage.device) if stage.has_loss else None
            factor = self.scale.after(version) / self.plan.microbatches * feed.weight(*key)
            return stage.forward(key, given, target, factor)
        if step.kind == "B":
            return stage.backward(key, given)
        if step.kind == "I":
            return stage.backward_inputs(key, given)
        stage.backward_weights(key)
        return {}

    def _end(self, update: int, feed: BatchFeed) -> UpdateResult:
        """All backward passes of an update are done."""
        version = max(update - self.weights.versions + 1, 0)
        # The last position begins no forward pass between the ends of two updates.
        self._finish()
        self._updates.start(version, self.scale.after(version))
        if self.plan.exchange == "end":
            self._finish()
        feed.forget(update)
        self.update = update + 1
        self.weights.originals()
        loss = self._losses.pop(update, None)
        return UpdateResult(update, None if loss is None else float(loss) / self.plan.microbatches)


def _check_journal(plan: StagePlan, layers: LayerGraph) -> None:
    if any(len(ranks[0]) > 1 for ranks in plan.ranks):
        raise InputError(
            "a journal is given, and ranks share stages, whose messages several ranks move; these are not kept: "
            "give a plan of width 1, or leave the journal out"
        )
    for name, module in layers.modules.items():
        if any(getattr(one, "running_mean", None) is not None for one in module.modules()):
            raise InputError(
                f"a journal is given, and module {name!r} keeps running means, which are not recomputed; give it "
                "track_running_stats=False or another normalization, or leave the journal out"
            )


def _check(plan: StagePlan, clip: float | None, correction: DelayCorrection) -> None:
    if clip is not None and not clip > 0:
        raise InputError(f"clip is {clip}; expected a norm above 0, or None")
    if correction not in ("none", "nesterov", "error_feedback"):
        raise InputError(f"delay_correction is {correction!r}; expected none, nesterov or error_feedback")
    if correction != "none" and plan.weight_versions == 1:
        raise InputError(
            f"delay_correction is {correction!r} and the plan keeps one version of the weights; gradients are not "
            "delayed then, expected 'none' or a plan with two versions"
        )


def _check_order(
    plan: StagePlan, transport: Transport, in_order: bool, journal: MessageJournal | None
) -> None:
    if transport.on_device and not in_order:
        raise InputError("in_order is False and messages between devices (NCCL) have no tags; leave it out")
    if in_order and journal is not None:
        raise InputError(
            "a journal is given, and messages match by their order, which those of an earlier run would break; give a "
            "gloo group, or leave the journal out"
        )
    if in_order and any(len(ranks[0]) > 1 for ranks in plan.ranks):
        raise InputError(
            "ranks share stages, whose moves have tags, and messages match by their order; give a gloo group: "
            "torch.distributed.new_group(backend='gloo'), or a default group of backend 'gloo'"
        )
