"""Full-graph training of one model in one mode, epoch by epoch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wirewise.errors import InputError
from wirewise.plans import FusionPlan
from wirewise.results import EpochRecord
from wirewise.runtime.data_parallel.reducer import Reducer, Scale
from wirewise.runtime.full_graph.bits import BitController
from wirewise.runtime.full_graph.clock import PHASES, PhaseClock
from wirewise.runtime.full_graph.exchange import HaloExchange
from wirewise.runtime.full_graph.local import SPLITS, LocalGraph, PartTensors
from wirewise.runtime.full_graph.modes import ExchangeMode
from wirewise.runtime.pipeline.messages import MessageJournal
from wirewise.runtime.transport import Transport

__all__ = ["Trainer", "TrainerOptions", "gradient_reducer"]

_BUCKET_BYTES = 1 << 18
"""Models of graphs are small: larger buckets would leave nothing that travels behind back-propagation."""


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options independent of the mode."""

    learning_rate: float = 0.01
    weight_decay: float = 0.0
    seed: int = 0
    evaluate_every: int = 5
    """Epochs between evaluations; 0 means at the end only."""
    replan_every: int = 20
    """Epochs between bit-width decisions, after the first one."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate is {self.learning_rate}; expected a number above 0")
        if self.evaluate_every < 0 or self.replan_every < 1:
            raise InputError(
                f"evaluate_every is {self.evaluate_every} and replan_every is {self.replan_every}; "
                "expected at least 0 and 1"
            )


class Trainer:
    """Trainer of `model`, initialised from rank 0, on the parts of a graph, one per rank.

    The loss is the mean over all training nodes of the whole graph, so one rank and many ranks compute the
    same gradients. Single-label graphs use cross-entropy, multi-label graphs binary cross-entropy.

    Args:
        tensors: This rank's part.
        model: Model, called with a `LocalGraph`, that returns logits of the own nodes, [own, classes].
        transport: Messages between the ranks.
        mode: Mode of halo exchange.
        options: Learning rate, seed and so on.
        member: Number that distinguishes trainers in one process group.
        journal: Message log, so that a lost part can be recomputed. None for no log.

    Raises:
        InputError: A journal was given with a mode whose messages depend on communication between ranks.
    """

    def __init__(
        self,
        tensors: PartTensors,
        model: nn.Module,
        transport: Transport,
        mode: ExchangeMode,
        options: TrainerOptions | None = None,
        *,
        member: int = 0,
        journal: MessageJournal | None = None,
    ) -> None:
        if journal is not None and not (isinstance(mode.bits, int) and mode.skip_limit == 0):
            raise InputError(
                f"a journal is given, and mode {mode.name} decides on messages while it trains, which logs do not "
                "hold; give a mode with one width for all messages that skips none, or leave the journal out"
            )
        self._journal = journal or MessageJournal()
        self.tensors, self.model, self.transport, self.mode = tensors, model, transport, mode
        self.options = options = options or TrainerOptions()
        self.clock = PhaseClock()
        self.exchange = HaloExchange(
            tensors.part,
            transport,
            mode,
            seed=options.seed,
            device=tensors.device,
            dtype=tensors.dtype,
            member=member,
            clock=self.clock,
            journal=journal,
        )
        self.graph = LocalGraph(tensors, self.exchange, options.seed)
        self.bits = BitController(self.exchange, tensors, replan_every=options.replan_every)
        transport.broadcast(dict([*model.named_parameters(), *model.named_buffers()]))
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        self.reducer = gradient_reducer(model, transport, bits=mode.gradient_bits)
        self.epoch = 0
        self._pending: list[_Measured] = []

    def begin(self) -> None:
        """Announce the next epoch to the journal, on all ranks, before the first epoch or after loading a state.

        Raises:
            InputError: The journal lacks what this or another rank needs.
            PeerError: A peer is gone.
        """
        senders = [peer for peer, count in self.exchange.forward_route.receive_counts.items() if count]
        self._journal.begin(self.transport, self.epoch, senders, ())

    def train_epoch(self) -> float:
        """Train one epoch and return the mean loss over all training nodes.

        An epoch already done by other ranks is recomputed from the journal, without them.

        Raises:
            PeerError: A rank is dead or hung.
            CodecError: A message holds NaN or infinity.
        """
        self._journal.meet(self.epoch)
        started = time.perf_counter()
        sent = self._bytes_sent()
        with self.clock.phase("plan"):
            self.bits.before_epoch(self.epoch)
        self.model.train()
        self.exchange.training, self.exchange.epoch = True, self.epoch
        with self.clock.phase("marginal"):
            loss = self._loss(self.model(self.graph))
            summed = loss.detach().clone().view(1)
            known = self._journal.knows(self.epoch)
            if not known:
                self.reducer.begin(extra=summed)
            loss.backward()
        with self.clock.phase("reduce"):
            agreed = self._journal.agree(self.epoch, 0, partial(self._reduced, summed))
            if known:
                self._take_reduced(agreed[1:])
            total = float(agreed[0])
        with self.clock.phase("other"):
            self.optimizer.step()
        seconds = time.perf_counter() - started
        self._pending.append(
            _Measured(
                self.epoch, total, seconds, self.clock.take(), self._bytes_sent() - sent, self.bits.counts()
            )
        )
        self.epoch += 1
        self._journal.commit(self.epoch)
        return total

    def _reduced(self, summed: Tensor) -> Tensor:
        """The loss and, where a journal keeps them, the gradients of all ranks together, [1 + parameters]."""
        self.reducer.finish()
        if self.exchange.journal is None:
            return summed
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.cat(
            [summed, *(p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in trained)]
        )

    def _take_reduced(self, flat: Tensor) -> None:
        """Take gradients that all ranks came to in an earlier run."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        for parameter, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            found = part.view_as(parameter).to(parameter.device)
            if parameter.grad is None:
                parameter.grad = found.clone()
            else:
                parameter.grad.copy_(found)

    def _bytes_sent(self) -> int:
        return sum(lane.bytes_sent for lane in self.exchange.training_lanes().values())

    def _loss(self, logits: Tensor) -> Tensor:
        """This rank's share of the mean loss; zero, but part of the graph, without training nodes."""
        rows, part = self.tensors.split_rows["train"], self.tensors.part
        chosen, y = logits[rows], self.tensors.y[rows]
        if len(rows) == 0:
            return logits.sum() * 0.0
        if part.multilabel:
            summed = F.binary_cross_entropy_with_logits(chosen, y.to(chosen.dtype), reduction="sum")
            return summed / (part.train_count * part.num_classes)
        return F.cross_entropy(chosen, y, reduction="sum") / part.train_count

    @torch.no_grad()
    def logits(self, *, bits: int | None = None) -> Tensor:
        """Logits of the own nodes without dropout; `bits` overrides the width of evaluation messages."""
        self.model.eval()
        self.exchange.drain()
        normal = self.exchange.evaluation_bits
        self.exchange.training = False
        self.exchange.evaluation_bits = bits or normal
        try:
            with self.clock.phase("other"):
                return self.model(self.graph)
        finally:
            self.exchange.evaluation_bits = normal
            self.exchange.training = True

    def evaluate(self, *, bits: int | None = None) -> dict[str, float]:
        """Accuracy (micro-F1 for multi-label graphs) by split over the whole graph; also stored in the record.

        Splits without nodes are left out.
        """
        started = time.perf_counter()
        counts = _hits(self.logits(bits=bits), self.tensors)
        self.transport.all_reduce(counts, "evaluation")
        part = self.tensors.part
        sizes = (part.train_count, part.validation_count, part.test_count)
        scores = {
            name: float(2 * hits / bound.clamp_min(1))
            for name, (hits, bound), size in zip(SPLITS, counts, sizes, strict=True)
            if size
        }
        self.clock.take()
        if self._pending:
            self._pending[-1].accuracy = scores
            self._pending[-1].eval_s += time.perf_counter() - started
        return scores

    def drain(self) -> None:
        """Wait for messages in flight (stale modes), counted in the time of the last epoch."""
        started = time.perf_counter()
        self.exchange.drain()
        if self._pending:
            self._pending[-1].seconds += time.perf_counter() - started

    def due(self) -> bool:
        """Whether an evaluation is due after the epoch just trained."""
        every = self.options.evaluate_every
        return every > 0 and self.epoch % every == 0

    def records(self) -> list[EpochRecord]:
        """Records of the epochs since the last call, the same on every rank; a collective call."""
        measured, self._pending = self._pending, []
        if not measured:
            return []
        table = torch.tensor([m.numbers() for m in measured], dtype=torch.float64)
        ranks = torch.stack(self.transport.all_gather(table, "records"))
        bits = self.bits.gather_counts([m.bits for m in measured])
        return [m.record(ranks[:, i], bits[i]) for i, m in enumerate(measured)]

    def close(self) -> None:
        """Remove the trainer's hooks from the model."""
        self.reducer.close()


@dataclass
class _Measured:
    """Measurements of one epoch on one rank."""

    epoch: int
    loss: float
    seconds: float
    phases: dict[str, float]
    bytes_sent: int
    bits: dict[str, dict[int, int]]
    eval_s: float = 0.0
    accuracy: dict[str, float] | None = None

    def numbers(self) -> list[float]:
        return [self.seconds, self.eval_s, float(self.bytes_sent), *(self.phases.get(p, 0.0) for p in PHASES)]

    def record(self, ranks: Tensor, bits: dict[str, dict[int, int]]) -> EpochRecord:
        phases = ranks[:, 3:].mean(dim=0)
        return EpochRecord(
            epoch=self.epoch,
            loss=self.loss,
            train_s=float(ranks[:, 0].max()),
            eval_s=float(ranks[:, 1].max()),
            phases={p: float(s) for p, s in zip(PHASES, phases, strict=True)},
            bytes_sent=int(ranks[:, 2].sum()),
            bits=bits,
            accuracy=self.accuracy or {},
        )


def _hits(logits: Tensor, tensors: PartTensors) -> Tensor:
    """Twice the true positives, and their bound, of each split: 2 TP / (2 TP + FP + FN) is accuracy or micro-F1."""
    counts = torch.zeros(len(SPLITS), 2, dtype=torch.float64)
    for i, name in enumerate(SPLITS):
        rows = tensors.split_rows[name]
        if tensors.part.multilabel:
            guess, truth = logits[rows] > 0, tensors.y[rows] > 0
            counts[i, 0] = float((guess & truth).sum())
            counts[i, 1] = float(guess.sum() + truth.sum())
        else:
            counts[i, 0] = float((logits[rows].argmax(dim=1) == tensors.y[rows]).sum())
            counts[i, 1] = 2.0 * len(rows)
    return counts


def gradient_reducer(
    model: nn.Module, transport: Transport, *, scale: Scale = "sum", bits: int = 32
) -> Reducer:
    """Make a reducer of announced back-propagations (`begin`), in buckets of 256 KiB from the last layer on.

    Args:
        model: Model whose gradients are summed.
        transport: Transport between the ranks.
        scale: Scaling of the sum, as in `Reducer`; parts of a loss over the whole graph are summed.
        bits: 32: gradients are sent unchanged. 16: float32 gradients are rounded to bfloat16, sent and summed in it.
    """
    trained = [(name, p.nbytes) for name, p in model.named_parameters() if p.requires_grad]
    plan = FusionPlan.by_size(dict(reversed(trained)), transport.world_size, _BUCKET_BYTES)
    wire = torch.bfloat16 if bits == 16 else None
    return Reducer(model, plan, transport, until="finish", scale=scale, wire=wire)
