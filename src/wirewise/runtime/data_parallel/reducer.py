"""Mean or sum of gradients over ranks, in the buckets of a plan, overlapped with back-propagation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.errors import InputError, PlanError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.carrier import GroupSender, InFlightGroup
from wirewise.runtime.data_parallel.compression import Compression, check_plan
from wirewise.runtime.data_parallel.exchanges import AllReduces, Exchanges
from wirewise.runtime.data_parallel.flat import FlatBucket, flat_buckets
from wirewise.runtime.data_parallel.hooks import WeakHook
from wirewise.runtime.data_parallel.matching import (
    check_agreement,
    check_decisions,
    check_ranks,
    check_unchanged,
    slots_of,
)
from wirewise.runtime.data_parallel.pools import Pools, WithPools
from wirewise.runtime.points import notify_point
from wirewise.runtime.ranges import profile_range
from wirewise.runtime.transport import Transport, transport_of

__all__ = ["Reducer"]

Unused = Literal["error", "zeros"]
Until = Literal["backward", "step", "finish"]
Scale = Literal["mean", "sum"]

_CARRIED = ("chunks", "codec", "scheme", "decode", "splits", "accumulation")
"""Decisions of a plan that a reducer executes."""


class Reducer(WithPools):
    """Reducer that averages or sums the gradients of a model over all ranks under a plan.

    A bucket is launched when its last gradient is ready and every earlier bucket has been launched, so all ranks
    launch them in the same order. With `attach(optimizer)` a script keeps `loss.backward(); optimizer.step()`. With
    `plan.accumulation` above 1 the script calls `backward()` that many times before `step()`; gradients accumulate
    and are reduced in the last call.

    Args:
        model: Model that is the same on every rank; not wrapped by DistributedDataParallel.
        plan: Plan for this number of ranks, the same on all.
        process_group: Process group of gloo or NCCL. Defaults to the default group.
        unused: Handling of a parameter without gradient: "error", or "zeros", as in
            `DistributedDataParallel(find_unused_parameters=True)`: it counts as zero, and one unused on all ranks
            keeps its gradient.
        until: When gradients must be available. "backward": when `backward()` returns, so that they can be clipped.
            "step": at `optimizer.step()`. "finish": only back-propagations between `begin()` and `finish()` are
            reduced, others are ignored; gradients start at zero there, also for parameters unused on all ranks, and
            other collectives may use the process group meanwhile, in the same order on all ranks.
        scale: "mean", or "sum" for plans without codecs and schemes.
        wire: Dtype in which float32 gradients are communicated and summed, for plans without codecs and schemes; a
            codec would use a separate thread, error feedback and a NaN check. Defaults to the gradients' own dtype.
        collective: Function that sums a flat tensor over all ranks in place, replacing the group's all-reduce
            (`programs`); called on a separate thread, in the same order on all ranks. Its method `handed_over`, if it
            has one, is called with each tensor before (`profile.Tracer.collective`).
        compression: Options of the plan's codecs. Under a plan with codecs, or with another scheme than all-reduce,
            nothing else may use the process group between `backward()` and the time of `until`.
        pools: Error-feedback state of an earlier reducer. Defaults to none.
        alone: Whether the plan's decisions beyond gradients are executed by nobody else, unlike under `parallel`;
            such plans are then refused.
        timeout_s: Timeout of a bucket, in seconds. An NCCL group has its own timeout.
        store: Torch store shared by all ranks, for a group that is not the default one; with it, errors name the rank
            that failed first.

    Raises:
        PlanError: The plan fits neither the model nor the group, differs between ranks, or makes further decisions;
            the message names the fields.
        PeerError: A peer is gone.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: FusionPlan,
        process_group: dist.ProcessGroup | Transport | None = None,
        *,
        unused: Unused = "error",
        until: Until = "backward",
        scale: Scale = "mean",
        wire: torch.dtype | None = None,
        collective: Callable[[Tensor], None] | None = None,
        compression: Compression | None = None,
        pools: Pools | None = None,
        alone: bool = True,
        timeout_s: float = 120.0,
        store: Any = None,
    ) -> None:
        for name, value, known in (
            ("unused", unused, Unused),
            ("until", until, Until),
            ("scale", scale, Scale),
        ):
            if value not in get_args(known):
                raise InputError(f"got {name}={value!r}; expected one of {get_args(known)}")
        plan.check_itself()
        if alone:
            check_decisions(plan, _CARRIED, "a reducer", "use runtime.data_parallel.parallel")
        self.compression = compression or Compression()
        self._carried = check_plan(plan, self.compression)
        if self._carried and (until == "finish" or scale == "sum" or wire is not None):
            raise PlanError(
                f"the plan by {plan.planner!r} has codecs or other schemes than all_reduce, got until={until!r}, "
                f"scale={scale!r} and wire={wire}; expected 'backward' or 'step', 'mean' and None, or another plan"
            )
        self.model, self.plan, self.unused, self.until, self.scale = model, plan, unused, until, scale
        self.transport = transport_of(process_group, timeout_s=timeout_s, store=store)
        check_ranks(plan, self.transport.world_size)
        self.buckets = flat_buckets(slots_of(model, plan), [bucket.chunks for bucket in plan.buckets])
        check_agreement(self.transport, model, plan, self.compression)
        self._buckets_of = _buckets_of(self.buckets)
        self._names = {p: name for name, p in model.named_parameters()}
        named = dict(model.named_parameters(remove_duplicate=False))
        self._splits = {self._names[named[name]]: size for name, size in plan.splits.items()}
        self.pools = pools or _pools_of(model, self.compression)
        self.pools.world_size = self.transport.world_size
        self._collective = collective
        self._direct = AllReduces(self.transport, collective)
        for bucket, planned in zip(self.buckets, plan.buckets, strict=True):
            bucket.checks = planned.codec != "none" and self.compression.codec(planned.codec).looks_first
            if wire is not None and self.transport.world_size > 1:
                bucket.narrow(wire)
        self._carrier: GroupSender | None = None
        self._accounts: list[dict[str, Any]] = []
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        self._in_pass = self._held = False
        self._forget()
        self.open()

    def _forget(self) -> None:
        """Begin a step."""
        self._direct.forget()
        self._travelling: list[InFlightGroup] = []
        self._launched = 0
        self._passes = 0
        self._used: set[nn.Parameter] = set()
        self._flags: Tensor | None = None
        self._flags_sum: Future[None] | None = None
        self._blank: set[nn.Parameter] = set()

    def open(self) -> None:
        """Register hooks on the model; called by the constructor, and needed again after `close`."""
        if not self._handles:
            self.pools.split(self._splits)
            if self._carried:
                self._carrier = GroupSender(
                    self.transport, self.pools, self.compression, sum_up=self._collective
                )
            ready = WeakHook(self._ready)
            hooks = [p.register_post_accumulate_grad_hook(ready) for p in self._buckets_of]
            if self.until != "finish":
                # The model holds this reducer, not the parameters.
                hooks.append(self.model.register_forward_pre_hook(self._before_forward))
            self._handles = hooks

    def close(self) -> None:
        """Wait for buckets in flight and remove the hooks from the model; gradients are kept."""
        self.wait()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._carrier is not None:
            self._carrier.close()
            self._carrier = None

    def abandon(self) -> None:
        """Remove the hooks from the model without waiting, when the process group and its buckets are lost."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._in_pass = False
        self._forget()
        if self._carrier is not None:
            self._carrier.close()
            self._carrier = None

    def account(self) -> list[dict[str, Any]]:
        """Account of each group of the last step: codec, scheme, sent_bytes, encode_s, communicate_s and decode_s.

        Empty for a plan without codecs and schemes, which uses torch's all-reduce.
        """
        return self._accounts

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Make `optimizer.step()` wait for the gradients."""
        optimizer.register_step_pre_hook(lambda *_: self.finish())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate gradients inside the context; the next back-propagation outside reduces them."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @property
    def synchronizes(self) -> bool:
        """Whether the next back-propagation reduces the gradients."""
        return not self._held and self._passes + 1 >= self.plan.accumulation

    @property
    def active(self) -> bool:
        """Whether a back-propagation with reduction is running."""
        return self._in_pass

    def begin(self, extra: Tensor | None = None) -> None:
        """Announce a back-propagation whose gradients are to be reduced, with until="finish".

        Args:
            extra: Tensor to sum over the ranks in place meanwhile, such as the loss.

        Raises:
            PeerError: A peer is gone.
        """
        self.wait()
        self._forget()
        for bucket in self.buckets:
            bucket.begin()
            bucket.clear()
        self._in_pass = self._reduces = True
        if extra is not None and self.transport.world_size > 1:
            self._direct.start(extra, "the sum that travels beside the gradients", planned=False)

    def add_nothing(self) -> None:
        """Participate in the reduction of a step without back-propagation, with unused="zeros"; call `finish` after it.

        Raises:
            InputError: With unused="error", as no parameter has a gradient.
            PeerError: A peer is gone.
        """
        self.wait()
        for bucket in self.buckets:
            bucket.begin()
        self._launch_rest()

    def finish(self) -> None:
        """Reduce the remaining gradients, as in a step with fewer micro-steps, and wait for all.

        Raises:
            InputError: A parameter has no gradient, or one to encode is not finite.
            PlanError: Parameters were frozen or added since the plan was applied.
            PeerError: A peer is gone.
        """
        announced = self._in_pass and self.until == "finish"
        if announced:
            self._in_pass = False
        if (announced or self._used) and self._launched < len(self.buckets):
            self._launch_rest()
        self.wait()

    def wait(self) -> None:
        """Wait for all buckets in flight.

        Raises:
            InputError: An encoded gradient is not finite (`Compression.nonfinite`).
            PeerError: A peer is gone.
        """
        if not self._launched:
            return
        with profile_range("wait for buckets"):
            self._direct.wait()
        for bucket in self.buckets:
            bucket.widen()
        if self._carrier is not None:
            self._finish(self._carrier)
        if self._flags is not None:
            counts = self._flags.tolist()
            for number, parameter in enumerate(self._buckets_of):
                if parameter in self._blank and counts[number] == 0:
                    # A codec may have brought what was left of before.
                    if self._carrier is None or not parameter.grad.any():  # type: ignore[union-attr]
                        parameter.grad = None
        self._forget()

    def _finish(self, carrier: GroupSender) -> None:
        travelling, self._travelling = self._travelling, []
        try:
            if self._flags_sum is not None:
                self._flags_sum.result()
            carrier.finish(travelling)
        except InputError:
            # Nothing travels any more, so another step may follow.
            self._forget()
            raise
        self._accounts = [one.account() for one in travelling]

    def _before_forward(self, *_: Any) -> None:
        if torch._C._current_graph_task_id() >= 0:
            # Part of a back-propagation that computes activations again.
            return
        if self._in_pass:
            # The last back-propagation ended in an error, so its gradients are of no use.
            self._in_pass = False
            self.wait()
            self._forget()
        self.wait()

    def _ready(self, parameter: nn.Parameter) -> None:
        with self._lock:
            if not self._in_pass:
                if self.until == "finish":
                    return
                self._begin_pass()
            for bucket in self._buckets_of[parameter]:
                self._check_gradient(parameter, bucket)
                bucket.own(parameter)
                bucket.missing.discard(parameter)
            self._used.add(parameter)
            if self._reduces:
                self._launch_ready()

    def _begin_pass(self) -> None:
        if self._launched:
            raise InputError(
                "a back-propagation began while gradients of the one before travel; call optimizer.step() "
                "between them or use until='backward'"
            )
        self._in_pass, self._reduces = True, self.synchronizes
        for bucket in self.buckets:
            bucket.begin()
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _check_gradient(self, parameter: nn.Parameter, bucket: FlatBucket) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise InputError(
                f"the gradient of {self._names[parameter]!r} is sparse; buckets are dense: make the module with "
                "sparse=False"
            )
        if parameter not in bucket.missing:
            raise InputError(
                f"the gradient of {self._names[parameter]!r} came twice in one back-propagation; give "
                "use_reentrant=False to torch.utils.checkpoint"
            )

    def _end_pass(self) -> None:
        self._in_pass = False
        self._passes += 1
        if self._reduces:
            self._launch_rest()
            try:
                # While gradients travel: it takes half a millisecond for 300 parameters.
                check_unchanged(self.model, self._buckets_of)
            finally:
                if self.until == "backward":
                    self.wait()

    def _launch_ready(self) -> None:
        # In the plan's order, whichever is ready first: backends match collectives of ranks by the order of calls.
        while self._launched < len(self.buckets) and not self.buckets[self._launched].missing:
            self._launch()

    def _launch_rest(self) -> None:
        """Launch the buckets that a parameter without gradient, or an early step, held back."""
        zeros = self.until == "finish"
        unused = [] if zeros else [p for p in self._buckets_of if p not in self._used]
        if unused:
            check_unchanged(self.model, self._buckets_of)
        if unused and self.unused == "error":
            names = ", ".join(self._names[p] for p in unused[:20])
            raise InputError(
                f"no gradient came for {len(unused)} parameters: {names}; use them in the loss, freeze them with "
                "requires_grad_(False) and plan again, or give unused='zeros'; with torch.utils.checkpoint give "
                "use_reentrant=False"
            )
        self._blank = {p for p in unused if p.grad is None}
        for bucket in self.buckets[self._launched :]:
            for parameter in bucket.parameters:
                bucket.own(parameter)
        while self._launched < len(self.buckets):
            self._launch()
        if self.unused == "zeros" and not zeros:
            used = [float(p in self._used) for p in self._buckets_of]
            self._flags = torch.tensor(used, device=self.buckets[0].flats[0].device)
            what = "the exchange of unused parameters"
            if self.transport.world_size == 1:
                return
            if self._carrier is None:
                self._direct.start(self._flags, what, planned=False)
            else:
                exchanges = Exchanges(self.transport, "unused parameters")
                self._flags_sum = self._carrier.run(partial(exchanges.all_reduce, self._flags))

    def _launch(self) -> None:
        number, bucket = self._launched, self.buckets[self._launched]
        notify_point("bucket", number)
        self._launched += 1
        if self._carrier is not None:
            self._carry(self._carrier, number)
        elif self.transport.world_size > 1:
            bucket.join()
            if self.scale == "mean":
                bucket.divide(self.transport.world_size)
            bucket.round()
            for piece in bucket.pieces:
                self._direct.start(piece, f"the all-reduce of bucket {number}")

    def _carry(self, carrier: GroupSender, number: int) -> None:
        bucket, planned = self.buckets[number], self.plan.buckets[number]
        bucket.join()
        for part, (flat, slots) in enumerate(zip(bucket.flats, bucket.slots, strict=True)):
            if flat.numel():
                started = carrier.begin(
                    tuple(slot.name for slot in slots),
                    flat,
                    codec=planned.codec,
                    scheme=planned.scheme,
                    decode=planned.decode,
                    chunks=planned.chunks,
                    checked=bucket.is_finite(part),
                )
                self._travelling.append(started)


def _buckets_of(buckets: Sequence[FlatBucket]) -> dict[nn.Parameter, list[FlatBucket]]:
    """Buckets of each parameter: several where it is in pieces."""
    found: dict[nn.Parameter, list[FlatBucket]] = {}
    for bucket in buckets:
        for parameter in bucket.parameters:
            found.setdefault(parameter, []).append(bucket)
    return found


def _pools_of(model: nn.Module, compression: Compression) -> Pools:
    named = dict(model.named_parameters())
    device = next(iter(named.values())).device
    sizes = {name: p.numel() for name, p in named.items()}
    return Pools(sizes, compression, device, shapes={name: p.shape for name, p in named.items()})
