"""Parts of a plan executed by a DDP communication hook: chunks, or codecs and schemes, of its buckets."""

import datetime
import inspect
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wirewise.errors import InputError, PeerError, PlanError
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime.data_parallel.carrier import GroupSender, InFlightGroup
from wirewise.runtime.data_parallel.compression import Compression, check_plan
from wirewise.runtime.data_parallel.matching import (
    check_decisions,
    check_pieces,
    check_ranks,
    ranks_that_differ,
)
from wirewise.runtime.data_parallel.pools import Pools, WithPools
from wirewise.runtime.transport import Transport

__all__ = ["HookState", "bucket_caps", "check_hooked", "hook"]

_MIB = 2**20

Future = torch.futures.Future


def hook(
    plan: FusionPlan | None = None,
    process_group: dist.ProcessGroup | None = None,
    *,
    codec: str | None = None,
    compression: Compression | None = None,
    model: nn.Module | None = None,
    timeout_s: float = 120.0,
) -> tuple["HookState", Callable[["HookState", Any], Future[Tensor]]]:
    """Make the state and hook for `DistributedDataParallel.register_comm_hook(state, hook)`.

    DistributedDataParallel decides which gradients share a bucket before it calls a hook. A bucket takes the codec
    and scheme that hold most of its bytes in the plan, or the chunks of the plan's bucket next in size. Pass
    `bucket_caps(plan)` to DistributedDataParallel to approximate the plan's buckets, or use `parallel`, which
    executes all of the plan. Pieces of parameters are grouped as in the plan, once DistributedDataParallel hands
    their bucket over; that needs the model. Residuals stay with their parameters when DistributedDataParallel
    rebuilds its buckets, except those of a parameter that no rank used in a step, whose result
    DistributedDataParallel discards.

    Args:
        plan: Plan to execute. None to use `codec` for all buckets.
        process_group: Process group of DistributedDataParallel. Defaults to the default one. Codecs use a separate
            group with the same ranks.
        codec: Name of a gradient codec for all buckets; all-reduced if payloads can be summed, else gathered.
        compression: Options of the codecs' use.
        model: Model wrapped by DistributedDataParallel, for parameter names. None to number them from last to first,
            and match the plan's buckets by bytes in gradient order.
        timeout_s: Timeout of a bucket, in seconds.

    Raises:
        InputError: Neither or both of plan and codec, or an unknown codec.
        PlanError: The plan is inconsistent, or makes decisions beyond these; the message names the fields.
    """
    if (plan is None) == (codec is None):
        raise InputError(
            f"got the plan {plan and plan.planner!r} and the codec {codec!r}; expected one of them"
        )
    state = HookState(plan, process_group, codec, compression or Compression(), model, timeout_s)
    return state, _compress if state.compresses else _reduce


def check_hooked(plan: FusionPlan) -> None:
    """Raise if a plan is inconsistent, or makes decisions that the hook cannot execute.

    Raises:
        PlanError: The message names the place or the fields.
    """
    plan.check_itself()
    check_decisions(
        plan,
        ("chunks", "codec", "scheme", "decode", "splits"),
        "the hook of DistributedDataParallel",
        "use runtime.data_parallel.parallel, or plan without them",
    )


class HookState(WithPools):
    """State of the hook, made by `hook`.

    Attributes:
        compresses: Whether any bucket has a codec or another scheme than all-reduce.
        pools: State of error feedback.
        bytes_sent: Bytes sent by this rank so far in compressed steps.
    """

    def __init__(
        self,
        plan: FusionPlan | None,
        process_group: dist.ProcessGroup | None,
        codec: str | None,
        compression: Compression,
        model: nn.Module | None,
        timeout_s: float,
    ) -> None:
        self.plan, self.process_group = plan, process_group
        self.compression, self.timeout_s = compression, timeout_s
        self._always = None if codec is None else _bucket_of(codec, compression)
        self.compresses = True
        if plan is not None:
            check_hooked(plan)
            self.compresses = check_plan(plan, compression) or bool(plan.splits)
        named = {} if model is None else dict(model.named_parameters())
        self._names: dict[Tensor, str] = {p: name for name, p in named.items()}
        self._by_name = model is not None
        sizes = {name: p.numel() for name, p in named.items()}
        self.pools = Pools(sizes, compression, shapes={name: p.shape for name, p in named.items()})
        if plan is not None and plan.splits:
            check_pieces(plan, named)
            self.pools.split(plan.splits)
        self._planned = {name: b for b in (plan.buckets if plan else ()) for name in b.parameters}
        self._carrier: GroupSender | None = None
        self._travelling: list[InFlightGroup] = []
        self._uncompressed: Transport | None = None
        self._reducing: list[tuple[dist.Work, str]] = []
        self._start_bytes = self.bytes_sent = 0

    def chunks(self, size_bytes: int) -> int:
        """Number of collectives for a bucket of this size: chunks as long as those of the plan's next larger bucket."""
        assert self.plan is not None
        like = min(self.plan.buckets, key=lambda bucket: abs(bucket.size_bytes - size_bytes))
        return max(round(size_bytes * like.chunks / like.size_bytes), 1)

    def account(self) -> list[dict[str, Any]]:
        """Account of each group of the last step, as in `Reducer.account`."""
        return [one.account() for one in self._travelling]

    def begin(self, bucket: Any) -> Future[Tensor]:
        """Compress a bucket of DistributedDataParallel; the future resolves to the mean over the ranks.

        Raises:
            InputError: The gradient is sparse.
            PlanError: Ranks differ in plan or compression, or the plan is for another model or number of ranks.
            PeerError: A peer is gone.
        """
        flat: Tensor = bucket.buffer()
        self._expect_dense(flat, bucket.parameters())
        carrier = self._carrier or self._open(flat.device)
        if bucket.index() == 0:
            self._travelling, self._start_bytes = [], 0
        names = self._names_of(bucket.parameters())
        groups = self._groups(names, self._start_bytes, flat.nbytes)
        self._start_bytes += flat.nbytes
        future: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)  # type: ignore[list-item]
        coming = _Coming(len(groups), lambda: future.set_result(flat))
        sizes = [sum(self.pools.member(name).size for name in own) for own, _ in groups]
        for (own, way), part in zip(groups, flat.split(sizes), strict=True):
            one = carrier.begin(
                own, part, codec=way.codec, scheme=way.scheme, decode=way.decode, done=coming.came
            )
            self._travelling.append(one)
        if bucket.is_last():
            self._check_size()
            # Before DistributedDataParallel copies buckets to gradients, and where an error reaches `backward()`.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        return future

    def reduce(self, bucket: Any) -> Future[Tensor]:
        """All-reduce a bucket of DistributedDataParallel in chunks; the future resolves to the mean over the ranks.

        Raises:
            InputError: The gradient is sparse.
            PlanError: The plan was made for another number of ranks.
            PeerError: A peer is gone.
        """
        flat: Tensor = bucket.buffer()
        self._expect_dense(flat, bucket.parameters())
        transport = self._uncompressed = self._uncompressed or self._join()
        if bucket.index() == 0:
            self._reducing = []
        what = f"the all-reduce of bucket {bucket.index()}"
        flat.div_(transport.world_size)
        started: list[dist.Work] = []
        for piece in flat.tensor_split(self.chunks(flat.nbytes)):
            if piece.numel():
                transport.guard(partial(_begin_reduce, started, piece, transport.group), what)
        self._reducing += ((work, what) for work in started)
        if bucket.is_last():
            # What fails does so here: the future below never does, and `backward()` would go on with a part of the sum.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_reducing)
        return torch.futures.collect_all([work.get_future() for work in started]).then(lambda _: flat)

    def close(self) -> None:
        """End the threads."""
        if self._carrier is not None:
            self._carrier.close()
            self._carrier = None

    def _finish(self) -> None:
        assert self._carrier is not None
        self._carrier.finish(self._travelling)
        self.bytes_sent += sum(one.sent_bytes for one in self._travelling)

    def _finish_reducing(self) -> None:
        assert self._uncompressed is not None
        for work, what in self._reducing:
            self._uncompressed.wait_for(work, what)

    def _join(self) -> Transport:
        """The group of DistributedDataParallel, for buckets that go as they are."""
        store = dist.distributed_c10d._get_default_store()
        transport = Transport(_existing(self.process_group), timeout_s=self.timeout_s, store=store)
        assert self.plan is not None
        check_ranks(self.plan, transport.world_size)
        return transport

    def _open(self, device: torch.device) -> GroupSender:
        """Join a group of our own: DistributedDataParallel goes on using its group meanwhile."""
        default = _existing(self.process_group)
        ranks = dist.get_process_group_ranks(default)
        if self.plan is not None:
            # Before the group is opened: a rank that refuses meanwhile would look to the others like one that died.
            check_ranks(self.plan, len(ranks))
        try:
            group = dist.new_group(
                ranks,
                timeout=datetime.timedelta(seconds=self.timeout_s),
                backend=dist.get_backend(default),
                use_local_synchronization=True,
                group_desc="wirewise",
            )
        except RuntimeError as error:
            raise PeerError(
                f"rank {dist.get_rank()} waited for ranks {ranks} to open a group for compressed gradients: {error}; "
                "see which of them ended, and start all of them again"
            ) from error
        store = dist.distributed_c10d._get_default_store()
        transport = Transport(group, timeout_s=self.timeout_s, store=store)
        self._check_agreement(transport)
        self.pools.to(device)
        self._carrier = GroupSender(transport, self.pools, self.compression)
        return self._carrier

    def _expect_dense(self, flat: Tensor, parameters: Sequence[Tensor]) -> None:
        if flat.layout != torch.strided:
            names = [self._names.get(one, f"of shape {list(one.shape)}") for one in parameters]
            raise InputError(
                f"the gradient of {', '.join(map(repr, names))} is sparse; the hook carries dense buckets: make the "
                "module with sparse=False, or leave the hook away"
            )

    def _check_agreement(self, transport: Transport) -> None:
        plan = None if self.plan is None else self.plan.to_json()
        told = f"{plan} {self._always} {self.compression.described()}"
        if others := ranks_that_differ(transport, told):
            raise PlanError(
                f"ranks {others} gave the hook another plan, codec or Compression than rank 0; give all ranks the same"
            )

    def _names_of(self, parameters: Sequence[Tensor]) -> tuple[str, ...]:
        # Within a bucket the first parameter of the model comes first, but the last bucket goes first.
        for parameter in reversed(parameters):
            if parameter not in self._names:
                name = f"parameter {len(self._names)}"
                self._names[parameter] = name
                self.pools.add({name: parameter.numel()}, {name: parameter.shape})
        return tuple(self._names[parameter] for parameter in parameters)

    def _groups(
        self, names: tuple[str, ...], start_bytes: int, size_bytes: int
    ) -> list[tuple[tuple[str, ...], Bucket]]:
        """Groups in which a bucket of DDP travels: itself, or the plan's groups if it holds pieces."""
        members = [member for name in names for member in self.pools.members_of(name)]
        if self._by_name and self.plan is not None:
            self._check_known(members)
        if len(members) == len(names):
            return [(names, self._way(names, start_bytes, size_bytes))]
        groups = itertools.groupby(members, key=lambda member: self._planned[member])
        return [(tuple(own), way) for way, own in groups]

    def _check_known(self, members: Sequence[str]) -> None:
        assert self.plan is not None
        if missing := [name for name in members if name not in self._planned]:
            raise PlanError(
                f"the plan by {self.plan.planner!r} has no parameter {missing[0]!r}; make it again from this model"
            )

    def _way(self, names: tuple[str, ...], start_bytes: int, size_bytes: int) -> Bucket:
        """The bucket of the plan that holds most of the bytes of a bucket of DistributedDataParallel."""
        if self._always is not None:
            return self._always
        assert self.plan is not None
        shares: Counter[int] = Counter()
        if self._by_name:
            for name in names:
                shares[self.plan.buckets.index(self._planned[name])] += self.pools.sizes[name]
        else:
            begin = 0
            for number, planned in enumerate(self.plan.buckets):
                end = begin + planned.size_bytes
                shares[number] = min(end, start_bytes + size_bytes) - max(begin, start_bytes)
                begin = end
        return self.plan.buckets[shares.most_common(1)[0][0]]

    def _check_size(self) -> None:
        if self.plan is not None and not self._by_name and self._start_bytes != self.plan.size_bytes:
            raise PlanError(
                f"the plan by {self.plan.planner!r} is for {self.plan.size_bytes} bytes of gradients, the buckets of "
                f"DistributedDataParallel have {self._start_bytes}; make the plan again from this model"
            )


class _Coming:
    """Tells once so many groups have come, each on whatever thread."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left, self._done, self._lock = count, done, threading.Lock()

    def came(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._done()


def _existing(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """A group, or the default one."""
    found = dist.group.WORLD if group is None else group
    assert found is not None
    return found


def _begin_reduce(started: list[dist.Work], piece: Tensor, group: dist.ProcessGroup) -> None:
    work = dist.all_reduce(piece, group=group, async_op=True)
    assert work is not None
    started.append(work)


def _bucket_of(codec: str, compression: Compression) -> Bucket:
    """A plan's bucket with the codec and the nearest scheme."""
    linear = codec == "none" or compression.codec(codec).linear
    scheme = "all_reduce" if linear else "all_gather"
    return Bucket(parameters=("all",), size_bytes=1, codec=codec, scheme=scheme)


# DistributedDataParallel compares the annotations with the types, so they must not be strings.
def _compress(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Mean of a bucket over the ranks, by the codec and scheme of the plan."""
    return state.begin(bucket)


def _reduce(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """Mean of a bucket over the ranks, in chunks."""
    return state.reduce(bucket)


def bucket_caps(plan: FusionPlan) -> dict[str, Any]:
    """Arguments of DistributedDataParallel that make its buckets approximate the plan's.

    DistributedDataParallel closes a bucket once it holds its cap, in the order in which gradients got ready in the
    first step. If it supports a cap per bucket, its buckets equal the plan's from the second step on, if the plan
    keeps that order; if it takes a single cap, that is the median of the plan's.
    """
    sizes = [bucket.size_bytes / _MIB for bucket in plan.buckets]
    if "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters:
        return {"bucket_cap_mb_list": sizes}
    return {"bucket_cap_mb": sorted(sizes)[len(sizes) // 2]}
