"""Point-to-point messages between ranks, collected in order of arrival.

gloo's receives cannot be polled, so one daemon thread for each peer waits for its message and reports the
arrival; NCCL messages of one exchange start as one group, because single ones would wait for each other. A peer that
dies or stops responding becomes a `PeerError` on every rank, and the ranks agree through the store on *which* peer
it was.
"""

from __future__ import annotations

import datetime
import itertools
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray

from wirewise.errors import InputError, PeerError
from wirewise.instruments import blocked
from wirewise.log import logger
from wirewise.runtime.alike import description, digests, first_and_last, replace_in_groups
from wirewise.runtime.calls import CallLog
from wirewise.runtime.failures import Failures
from wirewise.runtime.script_calls import leak_group, watch

__all__ = ["PendingExchange", "Transport", "transport_of"]

_log = logger("transport")
_MEASURED = "the exchange of measured values"
_GRACE_S = 3.0
_GAVE_UP = "another rank gave up"
_APART = "the ranks make other calls"
_LOST = "a rank of the group was lost"
_LOOK_S = 0.25
"""How often a rank that waits looks whether another has given up."""


class Transport:
    """Messages between the ranks of one process group.

    Args:
        group: A torch process group (gloo or NCCL), or a bare `ProcessGroupGloo`.
        timeout_s: Seconds to wait for a message before its sender counts as hung.
        store: Torch store shared by all ranks; with it, errors name the rank that failed first.
        is_lost: Function that returns whether the group is known to have lost a rank, which ends waits. Defaults to
            never.
        calls: Name of this transport's calls, if all ranks make the same ones in the same order from one thread; with
            a store, ranks with other calls are then detected within seconds. Defaults to no detection.

    Raises:
        InputError: The timeout is invalid.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        timeout_s: float = 120.0,
        store: Any = None,
        is_lost: Callable[[], bool] | None = None,
        calls: str = "",
    ):
        self.group = group
        self.is_lost = is_lost or (lambda: False)
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        if not 0 < timeout_s < float("inf"):
            raise InputError(f"timeout_s is {timeout_s}; expected finite seconds above 0")
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.timeout_s = timeout_s
        self.store = store
        self.aborts = "gloo" not in str(group.name()).lower()
        """Calls of the group end without an error when it is aborted, as those of NCCL do; those of gloo raise one."""
        self.on_device = "nccl" in str(group.name()).lower()
        """Messages travel between devices (NCCL); otherwise those of a device are staged in pinned host memory."""
        self.peers = [(self.rank + r) % self.world_size for r in range(1, self.world_size)]
        self._failures = Failures(self.rank, self.peers, store)
        self.calls = CallLog(self.rank, self.peers, store, calls) if calls and store is not None else None
        if self.calls is not None:
            watch(self.calls)
        self._jobs: dict[int, queue.SimpleQueue] = {}
        self._threads: list[threading.Thread] = []
        self._lent: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        """Aliases of tensors that a thread of the group has not let go of."""
        self._calls_made = itertools.count()
        # Also at the end of a program that never calls `close`.
        weakref.finalize(self, _end, self._jobs, self._threads, self._lent)

    def open(self, label: str, tag: int, receives: Mapping[int, torch.Tensor]) -> PendingExchange:
        """Start an exchange: receives are posted at once, sends follow by `PendingExchange.send`.

        Args:
            label: Name of the exchange for error messages ("forward1 of epoch 12").
            tag: Tag unique among exchanges in flight.
            receives: Buffer for each peer that will send; empty buffers are skipped.
        """
        self._note(label)
        return PendingExchange(self, label, tag, receives)

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """Alias of a tensor for a collective of the group.

        A thread of gloo lets go of its tensors just after their collective has ended. If nobody else has a tensor then,
        the thread needs the interpreter, and aborts the process ("terminate called without an active exception") if the
        interpreter is shutting down. An alias shows when that is over, which the end of the program waits for.
        """
        if self.on_device:
            return tensor
        alias = tensor.detach()
        self._lent[next(self._calls_made)] = alias
        return alias

    def _leak_group(self) -> None:
        """Leak the group and label a blocked thread of it holds, instead of waiting for that thread."""
        leak_group(self.group)
        self._lent.clear()

    def _note(self, label: str) -> None:
        if self.calls is not None:
            self.calls.note(label)

    def exchange(
        self, label: str, tag: int, sends: Mapping[int, torch.Tensor], receives: Mapping[int, torch.Tensor]
    ):
        """Send and receive one message for each peer and wait for all of them."""
        pending = self.open(label, tag, receives)
        for peer in self.peers:
            if peer in sends:
                pending.send(peer, sends[peer])
        pending.launch()
        for _ in pending.arrivals():
            pass
        pending.wait_sends()

    def all_reduce(self, tensor: torch.Tensor, label: str, op: Any = None) -> None:
        """Reduce `tensor` in place over all ranks (sum by default) and wait."""
        if self.world_size == 1:
            return
        if tensor.is_cuda != self.on_device:
            moved = self.staged(tensor)
            self.all_reduce(moved, label, op)
            tensor.copy_(moved)
            return
        options = dist.AllreduceOptions()
        options.reduceOp = op or dist.ReduceOp.SUM  # type: ignore[assignment]
        self._carry_out(lambda: self.group.allreduce([self.lend(tensor)], options), label)

    def all_gather(self, tensor: torch.Tensor, label: str) -> list[torch.Tensor]:
        """Gather equal-shaped tensors of all ranks, in rank order."""
        if self.world_size == 1:
            return [tensor]
        if tensor.is_cuda != self.on_device:
            return [t.to(tensor.device) for t in self.all_gather(self.staged(tensor), label)]
        out = [torch.empty_like(tensor) for _ in range(self.world_size)]
        lent = [self.lend(one) for one in out]
        self._carry_out(lambda: self.group.allgather([lent], [self.lend(tensor)]), label)
        return out

    def slowest(self, values: ArrayLike, label: str = _MEASURED) -> NDArray[np.float64]:
        """Maximum over the ranks, elementwise, such as the seconds of the slowest rank.

        Args:
            values: Number or nested numbers, of the same shape on all ranks.
            label: Name of the exchange for error messages.

        Returns:
            Numbers of that shape, equal on all ranks.

        Raises:
            PeerError: A peer is gone.
        """
        return self._reduced(values, label, dist.ReduceOp.MAX)

    def total(self, values: ArrayLike, label: str = _MEASURED) -> NDArray[np.float64]:
        """Sum over the ranks, elementwise; arguments and errors as in `slowest`."""
        return self._reduced(values, label, dist.ReduceOp.SUM)

    def mean(self, values: ArrayLike, label: str = _MEASURED) -> NDArray[np.float64]:
        """Mean over the ranks, elementwise; arguments and errors as in `slowest`."""
        return self.total(values, label) / self.world_size

    def _reduced(self, values: ArrayLike, label: str, op: Any) -> NDArray[np.float64]:
        tensor = torch.from_numpy(np.array(values, dtype=np.float64))
        self.all_reduce(tensor, label, op)
        return tensor.numpy()

    @torch.no_grad()
    def broadcast(
        self,
        tensors: Mapping[str, torch.Tensor],
        label: str = "the broadcast of the parameters",
        *,
        compared: bool = False,
    ) -> None:
        """Broadcast the tensors of rank 0 to all ranks, in place, several tensors at a time.

        Args:
            tensors: Tensors by name, of any dtype and on any device, in the same order on all ranks.
            label: Name of the exchange for error messages.
            compared: Whether names, shapes and dtypes are known to be those of rank 0; otherwise they are compared
                first.

        Raises:
            InputError: A tensor differs in name, shape or dtype; raised on every rank, with the tensor's name.
            PeerError: A peer is gone.
        """
        if self.world_size == 1:
            return
        if not compared:
            self._compare(tensors, label)
        replace_in_groups(
            tensors, lambda names, flat: self._broadcast_flat(flat, f"{label} ({first_and_last(names)})")
        )

    def from_first(self, content: bytes, label: str) -> bytes:
        """Broadcast bytes from rank 0; those of other ranks are ignored.

        Raises:
            PeerError: A peer is gone.
        """
        size = self._broadcast_flat(torch.tensor([len(content)]), f"{label} (its size)")
        if self.rank == 0:
            sent = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0)
        else:
            sent = torch.empty(int(size), dtype=torch.uint8)
        return self._broadcast_flat(sent, label).numpy().tobytes() if sent.numel() else b""

    def from_all(self, content: bytes, label: str) -> list[bytes]:
        """Gather bytes from each rank, of any length, in rank order.

        Raises:
            PeerError: A peer is gone.
        """
        sizes = [int(size) for size in self.all_gather(torch.tensor([len(content)]), f"{label} (sizes)")]
        padded = bytearray(content.ljust(max(sizes) or 1, b"\0"))
        parts = self.all_gather(torch.frombuffer(padded, dtype=torch.uint8), label)
        return [part.numpy().tobytes()[:size] for part, size in zip(parts, sizes, strict=True)]

    def _compare(self, tensors: Mapping[str, torch.Tensor], label: str) -> None:
        """Raise on every rank unless all have tensors of the same names, shapes and types in the same order."""
        own = digests(tensors)
        short = torch.stack([torch.tensor(len(own)), own.sum()])
        seen = torch.stack(self.all_gather(short, label))
        if bool((seen == seen[0]).all()):
            return
        count = int(seen[:, 0].min())
        others = torch.stack(self.all_gather(own[:count].contiguous(), label)) if count else own[None, :0]
        differ = (others != others[0]).any(dim=0).nonzero().flatten().tolist()
        place = differ[0] if differ else count
        raise InputError(
            f"{label}: ranks differ from tensor {place} on, which is {description(tensors, place)} on rank "
            f"{self.rank}; they have {seen[:, 0].tolist()} tensors: give all ranks the same model"
        )

    def _broadcast_flat(self, flat: torch.Tensor, label: str) -> torch.Tensor:
        """Values of rank 0, 1-D, of the same size everywhere, as bytes: no type is beyond a process group then."""
        if self.world_size == 1:
            return flat
        staged = self.staged(flat)
        options = dist.BroadcastOptions()
        options.rootRank = 0
        bits = staged.view(torch.uint8)
        self.complete(lambda: self.group.broadcast([self.lend(bits)], options), label)
        return staged.to(flat.device)

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of it, on the device that the process group uses."""
        if tensor.is_cuda == self.on_device:
            return tensor
        return tensor.cuda() if self.on_device else tensor.cpu()

    def barrier(self, label: str) -> None:
        """Wait for all ranks.

        Raises:
            PeerError: A peer is gone, or another rank has given up.
        """
        self._carry_out(self.group.barrier, label)

    def _carry_out(self, collective: Callable[[], dist.Work], label: str) -> None:
        if self.on_device:
            self._note(label)
            # Without a timeout only later work on the device would wait.
            self.guard(lambda: collective().wait(self.timeout), label)
            self.check_group(label)
        else:
            self.complete(collective, label)

    def check_group(self, label: str) -> None:
        """Raise if the group was aborted, as device operations in flight then ended with undefined buffers.

        Raises:
            PeerError: A rank of the group is lost.
        """
        if self.aborts and self.is_lost():
            raise PeerError(f"{label} was aborted: {_LOST}")

    def complete(self, collective: Callable[[], dist.Work], label: str) -> None:
        """Start a collective and wait for it; errors as in `wait_for`."""
        self._note(label)
        started: list[dist.Work] = []
        self.guard(lambda: started.append(collective()), label)
        self.wait_for(started[0], label)

    def guard(self, action: Callable[[], object], label: str, peer: int | None = None) -> None:
        """Run a blocking call of torch, and convert its failure to a `PeerError` that names the peer."""
        try:
            action()
        except PeerError:
            raise
        except (RuntimeError, ValueError) as error:
            raise self.failure(label, peer, str(error)) from error

    def wait_for(self, work: dist.Work, label: str) -> None:
        """Wait for a collective; a rank that waits for one that gave up gives up too, so that the dead rank is found.

        Raises:
            PeerError: A peer is gone, or another rank has given up.
        """
        if self.on_device:
            # With a timeout NCCL would block the host; its watchdog looks after silent peers.
            self.guard(work.wait, label)
            return
        start_s, lost = time.monotonic(), False
        while (left := start_s + self.timeout_s - time.monotonic()) > 0:
            try:
                # torch takes less than a millisecond for no limit.
                work.wait(datetime.timedelta(seconds=min(max(left, 0.01), _LOOK_S)))
            except RuntimeError:
                if work.is_completed():
                    # It failed, or it ended just after this wait gave up: it says which when it is asked again.
                    self.guard(work.wait, label)
                    self.check_group(label)
                    return
            else:
                self.check_group(label)
                return
            if lost:
                self._leak_group()
                raise self.failure(label, None, _LOST)
            lost = self.is_lost()
            self.check_peers(label, time.monotonic() - start_s)
        self._leak_group()
        raise self.failure(label, None, "timed out")

    def check_peers(self, label: str, waits_s: float) -> None:
        """Raise if a wait is known to be futile.

        Args:
            label: Name of the exchange.
            waits_s: Time that this rank has been waiting in it, in seconds.

        Raises:
            PeerError: Another rank gave up, left with an error, or makes different calls.
        """
        gave_up = self.has_remote_timeout()
        if gave_up or (self.calls is not None and self.calls.fault(waits_s)):
            self._leak_group()
            raise self.failure(label, None, _GAVE_UP if gave_up else _APART)

    def leave(self, error: Exception, where: str) -> None:
        """Publish that this rank left the common calls with an error; a later call withdraws it.

        Args:
            error: Exception that was raised; errors caused by other ranks are not published.
            where: Name of the call that raised it.
        """
        if self.calls is not None and not isinstance(error, PeerError):
            self.calls.leave(error, where)

    def has_remote_timeout(self) -> bool:
        """Whether another rank has reported a timeout."""
        return self._failures.has_remote_timeout()

    def waiter(self, peer: int) -> queue.SimpleQueue:
        """Queue of the daemon thread that waits for messages from `peer`."""
        if peer not in self._jobs:
            jobs: queue.SimpleQueue = queue.SimpleQueue()
            thread = threading.Thread(target=_serve, args=(jobs,), name=f"wirewise-wait-{peer}", daemon=True)
            thread.start()
            self._jobs[peer] = jobs
            self._threads.append(thread)
        return self._jobs[peer]

    def close(self) -> None:
        """End the waiting threads; one that is blocked on a hung peer is left to its timeout."""
        _end(self._jobs, self._threads, self._lent)

    def failure(self, label: str, peer: int | None, cause: str) -> PeerError:
        """Make the error of a failed wait, which names the rank that failed first if the store has it."""
        if peer is None and len(self.peers) == 1:
            (peer,) = self.peers
        _log.info("waited in vain in %s for %s: %s", label, "all" if peer is None else f"rank {peer}", cause)
        first = self._failures.first(peer, label)
        if (
            cause in (_GAVE_UP, _APART)
            and self.calls is not None
            and (text := self.calls.fault(float("inf")))
        ):
            return PeerError(text)
        if self._apart(label):
            return self._apart_failure(label)
        silent = "imed out" in cause or "timeout" in cause.lower()
        who = f"rank {first}" if first is not None else "a peer"
        if first is not None and peer is not None and first != peer:
            how = f"{who} failed first and rank {peer} stopped after it"
        elif cause == _GAVE_UP:
            how = f"{who} failed first and others stopped after it"
        elif silent:
            how = f"{who} sent nothing for {self.timeout_s:g} s"
        else:
            how = f"{who} closed its connection"
        short = re.sub(r"\[[^\]]*/gloo/[^\]]*\]\s*", "", cause).splitlines()[0][:160] if cause else ""
        return PeerError(
            f"rank {self.rank} waited in {label}: {how} (it died, hangs or lost its network). "
            f"Look at the log of {who}; then start again from the last checkpoint. [{short}]"
        )

    def _apart(self, label: str) -> bool:
        """Whether all ranks live and wait, but not all in the same exchange."""
        places = self._failures.places
        return len(places) == len(self.peers) and any(place and place != label for place in places.values())

    def _apart_failure(self, label: str) -> PeerError:
        others = "; ".join(f"rank {rank} in {place}" for rank, place in sorted(self._failures.places.items()))
        return PeerError(
            f"rank {self.rank} waited in {label}, and {others}: all of them live, but are not in the same exchange (or "
            "the network lost a message). Expected the same calls in the same order on all ranks: as many forward and "
            "backward passes and evaluations, also on a rank without training nodes; layers that are left out and line "
            "searches decided by numbers that are equal on all ranks"
        )


def transport_of(
    process_group: dist.ProcessGroup | Transport | None = None, *, timeout_s: float = 120.0, store: Any = None
) -> Transport:
    """Get the transport of a process group, which defaults to the default group.

    Args:
        process_group: Group, or its transport, which is returned unchanged.
        timeout_s: Seconds to wait for a message before its sender counts as hung.
        store: Torch store shared by all ranks; the default group has its own.
    """
    if isinstance(process_group, Transport):
        return process_group
    if process_group is None:
        process_group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    assert process_group is not None
    return Transport(process_group, timeout_s=timeout_s, store=store)


def _other_side(buffer: torch.Tensor) -> torch.Tensor:
    """A buffer of the same size on the side that the process group reads: pinned host memory, or the device."""
    if buffer.is_cuda:
        return torch.empty_like(buffer, device="cpu", pin_memory=True)
    return torch.empty_like(buffer, device="cuda")


def _end(
    jobs: dict[int, queue.SimpleQueue],
    threads: list[threading.Thread],
    lent: weakref.WeakValueDictionary[int, torch.Tensor],
) -> None:
    for of_peer in jobs.values():
        of_peer.put(None)
    # A thread that lets go of torch's objects while the interpreter shuts down would abort the process. Those that wait
    # in vain share the time: one for each of 63 peers would have kept a failed rank for three minutes.
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        # The collector may come to a transport in any thread, also in one of its own.
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
    while len(lent) and time.monotonic() < deadline:
        time.sleep(0.001)
    jobs.clear()
    threads.clear()


def _serve(jobs: queue.SimpleQueue) -> None:
    while (job := jobs.get()) is not None:
        work, timeout, peer, arrived = job
        try:
            work.wait(timeout)
            arrived.put((peer, time.perf_counter(), None))
        except (RuntimeError, ValueError) as error:
            arrived.put((peer, time.perf_counter(), str(error)))
        # Drop the references: a buffer must not live on because its thread is idle.
        del job, work, arrived


class PendingExchange:
    """Exchange in flight."""

    def __init__(self, transport: Transport, label: str, tag: int, receives: Mapping[int, torch.Tensor]):
        self.transport, self.what, self.tag = transport, label, tag
        self.opened_s = time.perf_counter()
        self.arrival_s: dict[int, float] = {}
        """Seconds from opening to arrival, for each peer that has arrived."""
        self.sent_s: dict[int, float] = {}
        """`time.perf_counter` when the buffer for a peer could be written again, where single sends are known."""
        self.bytes_sent = 0
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()
        self._sends: list[tuple[int, dist.Work, torch.Tensor]] = []
        self._operations: list[dist.P2POp] = []
        self._works: list[dist.Work] = []
        self._staged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._open: set[int] = set()
        self._expected: set[int] = set()
        self._landed: list[int] = []
        for peer in reversed(transport.peers):
            buffer = receives.get(peer)
            if buffer is None or buffer.numel() == 0:
                continue
            if buffer.is_cuda != transport.on_device:
                host = _other_side(buffer)
                self._staged[peer] = (buffer, host)
                buffer = host
            self._open.add(peer)
            self._expected.add(peer)
            if transport.on_device:
                self._operations.append(dist.P2POp(dist.irecv, buffer, peer, transport.group))
            else:
                self._receive(peer, buffer)

    def _receive(self, peer: int, buffer: torch.Tensor) -> None:
        works: list[dist.Work] = []
        # A connection that is closed already is told here.
        self.transport.guard(
            lambda: works.append(self.transport.group.recv([buffer], peer, self.tag)), self.what, peer
        )
        self.transport.waiter(peer).put((works[0], self.transport.timeout, peer, self._arrived))

    def send(self, peer: int, buffer: torch.Tensor) -> None:
        """Post one message; `buffer` must stay unchanged until `wait_sends`."""
        if buffer.numel() == 0:
            return
        self.bytes_sent += buffer.numel() * buffer.element_size()
        if buffer.is_cuda != self.transport.on_device:
            buffer = _other_side(buffer).copy_(buffer)
        if self.transport.on_device:
            self._operations.append(dist.P2POp(dist.isend, buffer, peer, self.transport.group))
            return
        self.transport.guard(
            lambda: self._sends.append((peer, self.transport.group.send([buffer], peer, self.tag), buffer)),
            self.what,
            peer,
        )

    def launch(self) -> None:
        """Mark all sends as posted; messages between devices start only now, as one group."""
        if self._operations:
            self.transport.guard(
                lambda: self._works.extend(dist.batch_isend_irecv(self._operations)), self.what
            )
            self._operations = []

    def arrivals(self) -> Iterator[int]:
        """Yield peers in the order in which their messages arrive.

        Raises:
            PeerError: A peer closed its connection or timed out.
        """
        while self._landed:
            yield self._landed.pop(0)
        while self._open:
            if self.transport.on_device:
                peer, at = min(self._open), time.perf_counter()
                while self._works:
                    self.transport.guard(self._works.pop().wait, self.what)
            else:
                with blocked("recv"):
                    peer, at = self._next_arrival()
            self._open.discard(peer)
            if peer in self._staged:
                target, host = self._staged.pop(peer)
                target.copy_(host, non_blocking=True)
            self.arrival_s[peer] = at - self.opened_s
            yield peer

    def expects(self, peer: int) -> bool:
        """Whether a message of this peer belongs to the exchange, arrived or not."""
        return peer in self._expected

    def drain(self) -> None:
        """Wait until every message has arrived; `arrivals` still yields each of them once."""
        self._landed = list(self.arrivals())

    def mark_arrived(self, peers: Iterable[int]) -> None:
        """Mark messages as arrived (rows restored from a checkpoint or a log)."""
        landed = list(peers)
        self._landed += landed
        self._expected |= set(landed)

    @property
    def waits(self) -> bool:
        """Whether messages are expected, and none is ready to be yielded."""
        return bool(self._open) and not self._landed and self._arrived.empty()

    def _next_arrival(self) -> tuple[int, float]:
        """The next peer whose message has landed, and when."""
        start_s, lost = time.monotonic(), False
        while time.monotonic() < start_s + self.transport.timeout_s + _GRACE_S:
            try:
                peer, at, error = self._arrived.get(timeout=_LOOK_S)
            except queue.Empty:
                if lost:
                    self.transport._leak_group()
                    raise self.transport.failure(self.what, None, _LOST) from None
                lost = self.transport.is_lost()
                self.transport.check_peers(self.what, time.monotonic() - start_s)
                continue
            if error is not None:
                raise self.transport.failure(self.what, peer, error)
            return peer, at
        raise self.transport.failure(self.what, min(self._open), "timed out")

    def wait_sends(self) -> None:
        """Wait until every sent buffer may be overwritten."""
        for peer, work, _ in self._sends:
            self.transport.guard(partial(work.wait, self.transport.timeout), self.what, peer)
            self.sent_s[peer] = time.perf_counter()
        self._sends.clear()
