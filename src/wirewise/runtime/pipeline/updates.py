"""Weight update from the gradients of all microbatches, replicas and stages together.

Its communication runs on a separate thread in a fixed order, overlapped with the passes of the next update: mean over
replicas (the one `Reducer`), sum over the stages that share a parameter, norm over all stages. The optimizer then
steps on the thread of the passes, before the first pass that needs its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from wirewise.errors import InputError, PeerError
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime.data_parallel import Reducer
from wirewise.runtime.pipeline.dtensors import plain_parameter, with_part
from wirewise.runtime.pipeline.messages import MessageJournal
from wirewise.runtime.pipeline.user_steps import check_steps
from wirewise.runtime.pipeline.weights import Weights
from wirewise.runtime.stage_gradients import GradientScope, as_stage_gradient
from wirewise.runtime.transport import Transport

__all__ = [
    "AgreedGradients",
    "DelayCorrection",
    "GradientExchange",
    "LossScale",
    "Optimizers",
    "WeightUpdates",
]

DelayCorrection = Literal["none", "nesterov", "error_feedback"]

Optimizers = (
    Callable[[list[nn.Parameter]], Optimizer | Sequence[Optimizer]]
    | Callable[[list[tuple[str, nn.Parameter]]], Optimizer | Sequence[Optimizer]]
)
Schedules = Callable[[Optimizer], LRScheduler]

_BUCKET_BYTES = 2**24
_LOOK_AHEAD = 0.9
"""Fraction of the velocity that a step of "nesterov" keeps (Ajanthan et al., ICML 2025)."""


class LossScale:
    """Loss scale that keeps small half-precision gradients from underflow, with its history.

    With two weight versions, batches of update t use the scale after update t - 2, like their weights, so that all
    microbatches of an update have the same scale on all stages.

    Args:
        scale: Loss scale, or the initial one if `dynamic`.
        dynamic: Whether to halve it after non-finite gradients, and double it after `patience` good updates.
        patience: Consecutive updates with finite gradients before the scale doubles.
    """

    def __init__(self, scale: float = 1.0, *, dynamic: bool = False, patience: int = 1000) -> None:
        if not 0 < scale < float("inf") or patience < 1:
            raise InputError(f"got loss scale {scale} and patience {patience}; expected finite ones above 0")
        self.dynamic, self.patience = dynamic, patience
        self.history = [scale]
        """Factor after so many updates; only the last few are kept by `state`."""
        self._first = 0
        self._good = 0

    def after(self, updates: int) -> float:
        """Scale in force after a number of updates."""
        return self.history[updates - self._first]

    def update(self, finite: bool) -> None:
        """Count an update with finite or non-finite gradients."""
        now = self.history[-1]
        self._good = self._good + 1 if finite else 0
        if self.dynamic and not finite:
            now /= 2
        elif self.dynamic and self._good >= self.patience:
            now, self._good = now * 2, 0
        self.history.append(now)
        if len(self.history) > 4:
            self.history.pop(0)
            self._first += 1

    def state(self) -> dict[str, Any]:
        """State for `load`."""
        return {"history": list(self.history), "first": self._first, "good": self._good}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a state."""
        self.history, self._first, self._good = list(state["history"]), state["first"], state["good"]


class AgreedGradients(NamedTuple):
    """Gradients agreed on by all ranks."""

    gradients: dict[str, Tensor]
    norm: float
    """Norm over all stages, without the loss scale; 0 if not needed."""
    finite: bool


class GradientExchange:
    """Exchange of the gradients of an update between ranks.

    Args:
        weights: Weights of this rank.
        replicas: Transport between the ranks with the same stages. None if there is only one.
        shared: Local name of each parameter shared with other stages, its index among shared ones, and a transport
            between these stages.
        counted: Parameters whose norm this rank counts, by name, with the number of ranks of its stage that count the
            same shard; a parameter shared by several stages is counted by one.
        everyone: Transport between all ranks, for the norm. None if the norm is not needed.
        replica_count: Number of data-parallel pipelines.
        journal: Journal of agreed results, also of an earlier run.
    """

    def __init__(
        self,
        weights: Weights,
        replicas: Transport | None,
        shared: Mapping[str, tuple[int, Transport]],
        counted: Mapping[str, int],
        everyone: Transport | None,
        replica_count: int,
        journal: MessageJournal | None = None,
    ) -> None:
        self._shared, self._counted = dict(shared), dict(counted)
        self._everyone, self._replica_count = everyone, replica_count
        self.groups = [one.group for one in (replicas, everyone, *(one for _, one in shared.values())) if one]
        """Process groups of some of the ranks, or of all."""
        self._journal = journal or MessageJournal()
        self._parts = {name: plain_parameter(p) for name, p in weights.named.items()}
        self._reducer = _reducer(self._parts, replicas) if replicas is not None and self._parts else None

    def reduce_gradients(self, gradients: dict[str, Tensor], scale: float, update: int) -> AgreedGradients:
        """Average over replicas, sum over sharing stages, and compute the norm over all ranks; a blocking call.

        Args:
            gradients: Gradients of this rank by name, for parameters that have one; modified.
            scale: Loss scale of the gradients.
            update: Number of the update.

        Raises:
            PeerError: A peer is gone.
        """
        self._journal.on_reduce(update)
        if self._reducer is not None:
            gradients = self._mean(gradients)
        for name, (number, transport) in self._shared.items():
            what = f"the sum of the gradients of {name!r} over the stages that share it"
            flat = self._flagged(name, gradients.pop(name, None))
            summed = self._journal.agree(update, number + 1, partial(_summed, transport, flat, what))
            if summed[-1] > 0:
                gradients[name] = summed[:-1].view(self._parts[name].shape)
        if scale != 1.0 and gradients:
            torch._foreach_div_(list(gradients.values()), scale)
        if self._everyone is None:
            return AgreedGradients(gradients, 0.0, True)
        own = sum(
            float(gradients[name].double().square().sum()) / alike
            for name, alike in sorted(self._counted.items())
            if name in gradients
        )
        norm = torch.tensor(own / self._replica_count, dtype=torch.float64)
        what = "the norm of the gradients"
        total = float(self._journal.agree(update, 0, partial(_summed, self._everyone, norm, what)))
        return AgreedGradients(gradients, total**0.5 if total == total else total, total < float("inf"))

    def _flagged(self, name: str, gradient: Tensor | None) -> Tensor:
        """A gradient with one more element, which says whether there is one, [elements + 1]."""
        if gradient is None:
            return self._parts[name].detach().new_zeros(self._parts[name].numel() + 1)
        return torch.cat([gradient.reshape(-1), gradient.new_ones(1)])

    def _mean(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Means over replicas, where one of them has a gradient; it counts as zero for the others."""
        assert self._reducer is not None
        device = next(iter(self._parts.values())).device
        present = torch.tensor([float(name in gradients) for name in self._parts], device=device)
        self._reducer.begin(extra=present)
        for name, parameter in self._parts.items():
            parameter.grad = gradients.get(name)
        self._reducer.finish()
        found = {
            name: parameter.grad
            for (name, parameter), count in zip(self._parts.items(), present.tolist(), strict=True)
            if count > 0 and parameter.grad is not None
        }
        for parameter in self._parts.values():
            parameter.grad = None
        return found

    def close(self) -> None:
        """End the reducer."""
        if self._reducer is not None:
            self._reducer.close()

    def abandon(self) -> None:
        """Stop the reducer without waiting for in-flight exchanges; for use after the loss of a peer."""
        if self._reducer is not None:
            self._reducer.abandon()


def _summed(transport: Transport, tensor: Tensor, label: str) -> Tensor:
    transport.all_reduce(tensor, label)
    return tensor


class WeightUpdates:
    """Updates of a rank's weights: started after its last backward pass, finished when the result is needed.

    Args:
        weights: Weights of this rank.
        exchange: Gradient exchange between ranks.
        optimizers: Optimizers of the original parameters.
        schedules: Learning-rate schedules, stepped once per update.
        clip: Maximum norm of all gradients together. None for no clipping.
        scale: Scale of the loss.
        correction: Correction of gradients that are one update old, with two versions.
        scope: Parameters of this rank among those of all stages. None if they are all on this rank.

    Raises:
        InputError: The step of an optimizer or a schedule takes more than gradients.
    """

    def __init__(
        self,
        weights: Weights,
        exchange: GradientExchange,
        optimizers: Sequence[Optimizer],
        schedules: Sequence[LRScheduler],
        *,
        clip: float | None,
        scale: LossScale,
        correction: DelayCorrection,
        scope: GradientScope | None = None,
    ) -> None:
        check_steps([*optimizers, *schedules])
        self._weights, self._exchange, self._scale, self._scope = weights, exchange, scale, scope
        self._optimizers, self._schedules, self._clip = list(optimizers), list(schedules), clip
        self._correction = _CORRECTIONS[correction](weights)
        self._thread = ThreadPoolExecutor(1, "wirewise-update")
        self._started: Future[AgreedGradients] | None = None
        self.last: AgreedGradients | None = None
        """Gradients of the last update that is done, for records; their tensors may be in use again."""

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        """Process groups in use."""
        return self._exchange.groups

    @property
    def ready(self) -> bool:
        """Whether the exchange of an update is done, and only the step is missing."""
        return self._started is not None and self._started.done()

    @property
    def under_way(self) -> bool:
        """Whether gradients are being exchanged."""
        return self._started is not None and not self._started.done()

    def start(self, version: int, scale: float) -> None:
        """Start an update, once all backward passes of its microbatches are done.

        Args:
            version: Weight version of the gradients.
            scale: Loss scale of the gradients.
        """
        assert self._started is None, "the update before is not finished"
        gradients = self._weights.take_gradients(version)
        self._started = self._thread.submit(
            self._exchange.reduce_gradients, gradients, scale, self._weights.newest
        )

    def finish(self) -> None:
        """Wait for the gradients and step; does nothing if no update was started.

        Raises:
            PeerError: A peer is gone.
        """
        if self._started is None:
            return
        settled = self._started.result()
        self._started = None
        if self._clip is not None and settled.finite and settled.norm > 0:
            factor = min(1.0, self._clip / (settled.norm + 1e-6))
            if factor < 1.0 and settled.gradients:
                torch._foreach_mul_(list(settled.gradients.values()), factor)
        before = self._weights.advance()
        if settled.finite:
            self._step(before, settled.gradients)
        for schedule in self._schedules:
            schedule.step()
        self._scale.update(settled.finite)
        self.last = settled

    def _step(self, before: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        self._correction.begin(before)
        for name, parameter in self._weights.named.items():
            # None stays none: an optimizer with momentum or weight decay would move a parameter by zeros.
            parameter.grad = self._gradient(name, gradients[name]) if name in gradients else None
        for optimizer in self._optimizers:
            optimizer.step()
        for parameter in self._weights.named.values():
            parameter.grad = None
        self._correction.end(before)

    def _gradient(self, name: str, part: Tensor) -> Tensor:
        """A gradient as optimizers see it: a hook that clips several must not take the norm of this stage alone."""
        gradient = with_part(part, self._weights.named[name])
        return gradient if self._scope is None else as_stage_gradient(gradient, self._scope, name)

    def exchange_over(self, make: Callable[[], GradientExchange]) -> None:
        """Continue with the transports from `make` after a peer was lost; an unfinishable update is dropped."""
        try:
            self.finish()
        except PeerError:
            self._started = None
        self._weights.drop_gradients()
        self._exchange.abandon()
        self._exchange = make()

    def state(self) -> dict[str, Any]:
        """State for `load`; call `finish` before."""
        return {
            # Their own state dictionaries hold the tensors that the next step changes.
            "optimizers": [deepcopy(one.state_dict()) for one in self._optimizers],
            "schedules": [deepcopy(one.state_dict()) for one in self._schedules],
            "scale": self._scale.state(),
            "correction": self._correction.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; call it after the weights are loaded.

        Raises:
            InputError: The number of optimizers or schedules differs.
        """
        lists: dict[str, list[Any]] = {"optimizers": self._optimizers, "schedules": self._schedules}
        for name, own in lists.items():
            if len(state[name]) != len(own):
                raise InputError(
                    f"the checkpoint has {len(state[name])} {name}; expected {len(own)}, as given here"
                )
            for one, saved in zip(own, state[name], strict=True):
                one.load_state_dict(saved)
        self._scale.load(state["scale"])
        self._correction.load(state["correction"])

    def close(self) -> None:
        """End the thread, without waiting for peers that may be gone."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._exchange.close()


class _NoCorrection:
    """The optimizer takes the delayed gradient as it is."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._base: dict[str, Tensor] = {}
        """Weights that the optimizer steps on, where they are not those that gradients are computed at."""

    def begin(self, before: dict[str, Tensor]) -> None:
        """Called with the newest version before the optimizer steps on the copy of it."""

    def end(self, before: dict[str, Tensor]) -> None:
        """Called after the optimizer's step."""

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""


class _ErrorFeedback(_NoCorrection):
    """The difference of a step to the one before is added to it once more: W' = W + s(t) + (s(t) - s(t-1)).

    The step at t would have been another one at the newest weights; how steps have changed in one update estimates by
    how much, and what was estimated wrong is in the next difference (after Zmushko et al., ICML 2026). An optimizer
    steps along its own path, W(t) less the last correction, so that corrections do not add up.
    """

    def begin(self, before: dict[str, Tensor]) -> None:
        named = self._weights.named
        if not self._base:
            self._base = {name: tensor.clone() for name, tensor in before.items()}
        for name, parameter in named.items():
            parameter.data.copy_(self._base[name])

    @torch.no_grad()
    def end(self, before: dict[str, Tensor]) -> None:
        for name, parameter in self._weights.named.items():
            step = parameter.data - self._base[name]
            self._base[name].copy_(parameter.data)
            parameter.data.add_(self._ahead(name, step))

    def _ahead(self, name: str, step: Tensor) -> Tensor:
        """Difference of the published weights from the optimizer's path."""
        return step

    def state(self) -> dict[str, Any]:
        return {"base": {name: tensor.clone() for name, tensor in self._base.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        self._base = {name: tensor.clone() for name, tensor in state["base"].items()}


class _Nesterov(_ErrorFeedback):
    """Gradients are taken where a discounted velocity will have led (after Ajanthan et al., ICML 2025).

    v' = c v + (1 - c) s, the path moves on by v', and the published weights are c v' ahead of it. The velocity is a
    momentum: give an optimizer without one of its own, such as Adam with a first beta of 0.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self._velocity: dict[str, Tensor] = {}

    @torch.no_grad()
    def end(self, before: dict[str, Tensor]) -> None:
        for name, parameter in self._weights.named.items():
            base = self._base[name]
            velocity = self._velocity.setdefault(name, torch.zeros_like(base))
            velocity.mul_(_LOOK_AHEAD).add_(parameter.data - base, alpha=1.0 - _LOOK_AHEAD)
            base.add_(velocity)
            parameter.data.copy_(base).add_(velocity, alpha=_LOOK_AHEAD)

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "velocity": {name: tensor.clone() for name, tensor in self._velocity.items()}
        }

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._velocity = {name: tensor.clone() for name, tensor in state["velocity"].items()}


_CORRECTIONS: dict[DelayCorrection, type[_NoCorrection]] = {
    "none": _NoCorrection,
    "nesterov": _Nesterov,
    "error_feedback": _ErrorFeedback,
}


def _reducer(parts: Mapping[str, nn.Parameter], replicas: Transport) -> Reducer:
    """The reducer of a rank's parts of all trained parameters, in buckets in the order of back-propagation."""
    holder = nn.Module()
    names: dict[str, nn.Parameter] = {}
    for name, parameter in parts.items():
        # A dot would name a module.
        holder.register_parameter(name.replace(".", "/"), parameter)
        names[name.replace(".", "/")] = parameter
    buckets: list[list[str]] = [[]]
    held = 0
    for name, parameter in reversed(names.items()):
        if held and held + parameter.nbytes > _BUCKET_BYTES:
            buckets.append([])
            held = 0
        buckets[-1].append(name)
        held += parameter.nbytes
    plan = FusionPlan(
        world_size=replicas.world_size,
        planner="stages",
        buckets=tuple(
            Bucket(parameters=tuple(own), size_bytes=sum(names[n].nbytes for n in own)) for own in buckets
        ),
    )
    return Reducer(holder, plan, replicas, until="finish")
