"""Mean of gradients over ranks, in the buckets of a plan, while back-propagation still runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wirewise.errors import InputError, PlanError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel.flat import FlatBucket
from wirewise.runtime.data_parallel.matching import check_agreement, check_uncompressed, parameters_of
from wirewise.runtime.full_graph.transport import Transport

__all__ = ["Reducer", "transport_of"]

Unused = Literal["error", "zeros"]
Until = Literal["backward", "step"]


def transport_of(
    process_group: dist.ProcessGroup | Transport | None = None, *, timeout_s: float = 120.0, store: Any = None
) -> Transport:
    """The ranks of a process group; without one, those of the default group."""
    if isinstance(process_group, Transport):
        return process_group
    if process_group is None:
        process_group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    assert process_group is not None
    return Transport(process_group, timeout_s=timeout_s, store=store)


class Reducer:
    """Averages the gradients of a model over all ranks as its plan says.

    A bucket starts to travel when its last gradient is there and every bucket before it has started, so all
    ranks start them in one order. With `attach(optimizer)` a script keeps `loss.backward(); optimizer.step()`.
    With `plan.accumulation` above 1 the script calls `backward()` as often before `step()`; gradients add up
    and travel in the last of them.

    Args:
        model: On every rank the same; not wrapped by DistributedDataParallel.
        plan: For as many ranks, the same on all.
        process_group: gloo or NCCL; none: the default group.
        unused: What to do with a parameter without gradient: "error", or "zeros", as
            `DistributedDataParallel(find_unused_parameters=True)` does: it counts as zero, and one that no
            rank used keeps what it had.
        until: When gradients must be there. "backward": when `backward()` returns, so that they can be clipped.
            "step": at `optimizer.step()`.
        collective: Instead of the group's all-reduce: sums a flat tensor over all ranks in place (`programs`);
            called on a thread of its own, in one order on all ranks. Where it has a method `handed_over`, that
            is told of each tensor before (`profile.Tracer.collective`).
        timeout_s: Seconds to wait for a bucket. A group of NCCL keeps to its own timeout.
        store: A torch store that all ranks share, for a group that is not the default one; with it errors name
            the rank that failed first.

    Raises:
        PlanError: The plan fits neither the model nor the group, or is not the same on all ranks.
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
        collective: Callable[[Tensor], None] | None = None,
        timeout_s: float = 120.0,
        store: Any = None,
    ) -> None:
        if unused not in get_args(Unused) or until not in get_args(Until):
            raise InputError(
                f"got unused={unused!r} and until={until!r}; expected {get_args(Unused)} and {get_args(Until)}"
            )
        plan.check_itself()
        check_uncompressed(plan)
        self.model, self.plan, self.unused, self.until = model, plan, unused, until
        self.transport = transport_of(process_group, timeout_s=timeout_s, store=store)
        self._check_ranks()
        self.buckets = [
            FlatBucket(parameters, bucket.chunks)
            for parameters, bucket in zip(parameters_of(model, plan), plan.buckets, strict=True)
        ]
        check_agreement(self.transport, model, plan)
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters.values()}
        self._collective = collective
        self._thread = ThreadPoolExecutor(1, "wirewise-reduce") if collective else None
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        self._in_pass = self._held = False
        self._forget()
        self.open()

    def _check_ranks(self) -> None:
        if self.plan.world_size != self.transport.world_size:
            raise PlanError(
                f"plan {self.plan.planner!r} was made for world size {self.plan.world_size}, the process group "
                f"has {self.transport.world_size} ranks; make the plan again or start {self.plan.world_size}"
            )

    def _forget(self) -> None:
        """Begin a step."""
        self._works: list[tuple[str, Any]] = []
        self._launched = 0
        self._passes = 0
        self._used: set[nn.Parameter] = set()
        self._flags: Tensor | None = None
        self._blank: set[nn.Parameter] = set()

    def open(self) -> None:
        """Hook into the model; done by the constructor, and again after `close`."""
        if not self._handles:
            hooks = [p.register_post_accumulate_grad_hook(self._ready) for p in self._bucket_of]
            self._handles = [*hooks, self.model.register_forward_pre_hook(self._before_forward)]

    def close(self) -> None:
        """Wait for what travels and take the hooks off the model; gradients stay."""
        self.wait()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer.step()` wait for the gradients."""
        optimizer.register_step_pre_hook(lambda *_: self.finish())

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Back-propagations inside only add to the gradients; the next one outside reduces them."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @property
    def synchronizes(self) -> bool:
        """Whether the next back-propagation reduces the gradients."""
        return not self._held and self._passes + 1 >= self.plan.accumulation

    def finish(self) -> None:
        """Reduce gradients that have not been yet, as in a step with fewer micro-steps, and wait for all.

        Raises:
            InputError: A parameter has no gradient.
            PeerError: A peer is gone.
        """
        if self._used and self._launched < len(self.buckets):
            self._launch_rest()
        self.wait()

    def wait(self) -> None:
        """Wait for all buckets that travel.

        Raises:
            PeerError: A peer is gone.
        """
        if not self._launched:
            return
        for what, work in self._works:
            if isinstance(work, _Task):
                work.wait()
            else:
                self.transport.wait_for(work, what)
        if self._flags is not None:
            counts = self._flags.tolist()
            for number, parameter in enumerate(self._bucket_of):
                if parameter in self._blank and counts[number] == 0:
                    parameter.grad = None
        self._forget()

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
                self._begin_pass()
            bucket = self._bucket_of[parameter]
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
                f"the gradient of {self._name(parameter)!r} is sparse; buckets are dense: make the module with "
                "sparse=False"
            )
        if parameter not in bucket.missing:
            raise InputError(
                f"the gradient of {self._name(parameter)!r} came twice in one back-propagation; give "
                "use_reentrant=False to torch.utils.checkpoint"
            )

    def _end_pass(self) -> None:
        self._in_pass = False
        self._passes += 1
        if self._reduces:
            self._launch_rest()
            if self.until == "backward":
                self.wait()

    def _launch_ready(self) -> None:
        while self._launched < len(self.buckets) and not self.buckets[self._launched].missing:
            self._launch()

    def _launch_rest(self) -> None:
        """Launch the buckets that a parameter without gradient, or an early step, held back."""
        unused = [p for p in self._bucket_of if p not in self._used]
        if unused and self.unused == "error":
            names = ", ".join(self._name(p) for p in unused[:20])
            raise InputError(
                f"no gradient came for {len(unused)} parameters: {names}; use them in the loss, freeze them with "
                "requires_grad_(False) and plan again, or give unused='zeros'; with torch.utils.checkpoint give "
                "use_reentrant=False"
            )
        self._blank = {p for p in unused if p.grad is None}
        for bucket in self.buckets[self._launched :]:
            for parameter in bucket.parameters.values():
                bucket.own(parameter)
        while self._launched < len(self.buckets):
            self._launch()
        if self.unused == "zeros" and self.transport.world_size > 1:
            used = [float(p in self._used) for p in self._bucket_of]
            self._flags = torch.tensor(used, device=self.buckets[0].flats[0].device)
            self._works.append(("the exchange of unused parameters", self._start(self._flags, False)))

    def _launch(self) -> None:
        number, bucket = self._launched, self.buckets[self._launched]
        self._launched += 1
        if self.transport.world_size > 1:
            bucket.divide(self.transport.world_size)
            what = f"the all-reduce of bucket {number}"
            self._works += [(what, self._start(piece)) for piece in bucket.pieces]

    def _start(self, tensor: Tensor, planned: bool = True) -> Any:
        if planned and self._thread is not None:
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
            assert self._collective is not None
            if (handed_over := getattr(self._collective, "handed_over", None)) is not None:
                handed_over(tensor)
            return _Task(self._thread.submit(self._collective, tensor))
        started: list[Any] = []
        self.transport.guard(lambda: started.append(self.transport.group.allreduce([tensor])), "all-reduce")
        return started[0]

    def _name(self, parameter: nn.Parameter) -> str:
        return next(n for n, p in self._bucket_of[parameter].parameters.items() if p is parameter)


class _Task:
    """A collective on our thread; it has timeouts of its own."""

    def __init__(self, future: Future) -> None:
        self.future = future

    def wait(self) -> None:
        """Until it is done; raises what it raised."""
        self.future.result()
