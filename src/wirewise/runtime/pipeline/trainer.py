"""Training under a plan of stages: its timetable is worked off action by action, batch after batch."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.log import logger
from wirewise.planners.reshard import alike_links
from wirewise.plans import StagePlan
from wirewise.plans.timetables import ActionKind, StagePass
from wirewise.rng import stream_key
from wirewise.runtime.pipeline.evaluation import EvaluationResult, evaluate_batch, evaluation_mode
from wirewise.runtime.pipeline.feed import Batch, BatchFeed
from wirewise.runtime.pipeline.groups import check_same_plan, make_exchange
from wirewise.runtime.pipeline.layers import INPUT, LayerGraph
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
from wirewise.runtime.pipeline.values import ValueExchange
from wirewise.runtime.pipeline.weights import Weights
from wirewise.runtime.ranges import profiled
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["PassRecord", "Pipeline", "UpdateResult"]

_log = logger("pipeline")
_PASSES = {"F": "forward", "B": "backward", "I": "backward to inputs", "W": "backward to weights"}
_AHEAD = 8
"""Actions ahead for which receives are posted."""


class PassRecord(NamedTuple):
    """An action as it was carried out."""

    step: StagePass
    version: int
    """Updates that the weights had seen."""
    start_s: float
    """When all that it needs had arrived, by `time.perf_counter`."""
    end_s: float


class UpdateResult(NamedTuple):
    """An update whose backward passes are done on this rank."""

    update: int
    loss: float | None
    """Mean loss over the microbatches of this replica, on ranks with the last stage; None elsewhere."""


class Pipeline:
    """Trains a model in stages, as a plan says; every rank of the plan makes one and calls `train` with it.

    After an error, and after a `train` that was not run to its end, make a new one and load the last state.

    Args:
        layers: The model, or a list of modules in which each feeds the next. All ranks give the same; ranks use the
            modules of their own stages alone, so others may be on the device "meta".
        plan: Stages, ranks and timetable, the same on all ranks. Where ranks share a stage, its modules are
            tensor-parallel, and all of its ranks get the same microbatches.
        loss: Mean loss of a microbatch from the model's output and the targets.
        optimizer: Makes one or several optimizers of the parameters of this rank, which it is given as a list.
        schedule: Makes the learning-rate schedule of an optimizer; it moves on once an update, whether the update was
            skipped or not.
        process_group: Ranks of the plan, gloo or NCCL; none: the default group, which NCCL needs.
        clip: Largest norm of the gradients of all stages together; None: any.
        loss_scale: Factor of the loss in backward passes, or `LossScale`; updates whose gradients are not finite are
            then skipped on all ranks. None: 1, and nothing is looked at.
        delay_correction: What is done about gradients that are one update old where two versions of the weights are
            kept: "none", "nesterov" or "error_feedback", which keep one or two further copies of the weights.
        seed: Seed of the random numbers that modules draw.
        links: Links between the ranks, the same on all, by which values are moved between stages of several ranks;
            None: hosts by their names, all alike.
        shards: Names, such as "3.weight", of plain parameters that are a part of their own on each of the ranks which
            share a stage; all other plain ones are the same on each. Needed for a norm of gradients alone.
        in_order: Whether messages between stages match by their order instead of by tags; None: on devices, as NCCL has
            no tags.
        recorded: Whether `records` is filled.
        around: Context in which each pass is computed, without its messages, such as a range of a profiler.
        timeout_s: Seconds to wait for any one message before the peer counts as silent.
        store: A torch store that all ranks share, for a group that is not the default one.
        journal: Keeps messages, so that a rank that is lost can be recomputed; None: nothing is kept.

    Raises:
        PlanError: The plan does not fit the model or the group, or ranks have different ones.
        InputError: Something else that cannot be used as given.
        PeerError: A peer is gone.
    """

    def __init__(
        self,
        layers: LayerGraph | nn.Sequential | Sequence[nn.Module],
        plan: StagePlan,
        *,
        loss: Loss,
        optimizer: Optimizers,
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
        if len(layers.inputs) > 1:
            raise InputError(
                f"the model takes {list(layers.inputs)}; expected one tensor: stages hand the targets to `loss` alone"
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
        made = optimizer(list(self.weights.named.values())) if self.weights.named else []
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
        )
        self.update = 0
        """Number of the next update."""
        self.records: list[PassRecord] = []
        """Actions as they were carried out, where asked for."""
        self._wide = len(plan.ranks[self.position][0]) > 1
        self._recorded = recorded
        self._around = around or (lambda _: nullcontext())
        self._values = ValueExchange(values, plan, transport, self.stages, self._journal, links, in_order)
        self._unfinished: dict[int, int] = {}
        self._losses: dict[int, Tensor] = {}
        self._broken = ""

    def train(self, batches: Iterable[Batch]) -> Iterator[UpdateResult]:
        """Train with one batch an update; every rank is given batches of the same number, those of a replica alike.

        Where updates follow each other without a flush, the batch of the next update is taken before the result of
        one is there. The weights of the modules between two results are the newest that are known by then.

        Args:
            batches: Inputs and targets, [microbatches x microbatch size, ...] each. Stages that use neither may get
                any tensors with that many rows.

        Yields:
            Result of each update, once its backward passes are done on this rank.

        Raises:
            InputError: A batch of another size, a module that does not return one tensor, microbatches whose
                activations differ in shape, or a pipeline that cannot go on.
            PeerError: A peer is gone; the message says which stage waits for whom. Weights are those of the last
                update that was finished.
        """
        if self._broken:
            raise InputError(f"{self._broken}; make a new Pipeline and load the state of the last checkpoint")
        feed = BatchFeed(iter(batches), self.update, self.plan)
        self.begin()
        self._broken = "this pipeline was left in the middle of an update"
        try:
            self._values.begin(self.update)
            while feed.has(self.update):
                until = self._journal.meet(self.update)
                last = None if until is None else until - 1
                yield from self._walk(feed, self.update if self.plan.weight_versions == 1 else last)
            self._finish()
            self._journal.meet(self.update)
        finally:
            self.weights.originals()
            for stage in self.stages.values():
                stage.forget()
        self._broken = ""

    def evaluate(self, batches: Iterable[Tensor | Batch]) -> Iterator[EvaluationResult]:
        """Take batches through the model with its newest weights, in evaluation mode and without gradients.

        Every rank calls it with batches of the same sizes, between two `train` or after one; those of a replica are
        alike. A batch may have any number of rows, so a smaller last one is taken too.

        Args:
            batches: Inputs, or inputs and targets, [rows, ...] each.

        Yields:
            Output and loss of each batch, on the ranks with the last stage.

        Raises:
            InputError: A pipeline that was left in an update, keeps messages in a journal or sends them in order.
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
            inputs, targets = (batch, None) if isinstance(batch, Tensor) else batch
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
        """Process groups beside that of all ranks, over which gradients are summed or agreed on."""
        return [one for one in self._updates.groups if one is not self.transport.group]

    def begin(self) -> None:
        """Tell the journal which update comes next, on all ranks; `train` does it first.

        Raises:
            InputError: The journal lacks what this or another rank needs.
            PeerError: A peer is gone.
        """
        replicas = [rank for own in self.plan.ranks[self.position] for rank in own]
        self._journal.begin(self.transport, self.update, self._values.senders, replicas)

    def update_by(self, passes: Callable[[int, float], None]) -> None:
        """Do one update whose passes are carried out elsewhere, in whole or in part.

        Args:
            passes: Called with the number of the update and the factor of each microbatch's loss. The modules have the
                weights of the update's version then, and must have the gradients of all microbatches afterwards.
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

        Where updates follow each other without a flush, buffers have seen microbatches of the next one by then.
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
        """Go on from a state of the same rank under the same plan, bit by bit as if there had been no interruption.

        Args:
            state: State that `state_dict` gave; `train` is then called with the batches from `update` on.

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
        """Go on with new connections after a peer was lost: the same ranks, of which this one keeps what it has done.

        Every rank calls it, but those that were replaced, which make a `Pipeline` and load a state. `train` is then
        called with the batches from `update` on.

        Args:
            process_group: Ranks of the plan, gloo; none: the default group.
            store: A torch store that all ranks share, for a group that is not the default one.

        Raises:
            PlanError: Ranks have different plans.
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
        """End all threads; a message that is still waited for is left to its timeout."""
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
        with self._around(step), profiled(f"{_PASSES[step.kind]} of stage {step.stage}"):
            found = self._compute(step, stage, key, given, feed, version)
        if self._recorded:
            self.records.append(PassRecord(step, version, start_s, time.perf_counter()))
        if step.kind == "F":
            if LOSS in found:
                self._losses[step.update] = self._losses.get(step.update, 0) + found[LOSS].double()
            self._values.hand_on(stage, key, found)
        elif step.kind != "W":
            self._values.hand_back(stage, key, found)
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
        own = {INPUT: feed.part(*key)[0].to(stage.device)} if INPUT in stage.takes else {}
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
            target = feed.part(*key)[1].to(stage.device) if stage.has_loss else None
            return stage.forward(key, given, target, self.scale.after(version) / self.plan.microbatches)
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
