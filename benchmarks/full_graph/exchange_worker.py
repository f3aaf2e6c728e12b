"""One rank that only exchanges halo rows, with a set amount of work in between: `exchange_worker.py CASE.json`.

An epoch is one exchange forward and one backward through `HaloExchange`, as a layer makes them. Every round runs
every mode once. Rank 0 writes `measured.json` next to the case.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from wirewise import graph
from wirewise.lab import interface_bytes
from wirewise.profile.ending import end_process
from wirewise.runtime import full_graph
from wirewise.runtime.full_graph.measure import hosts_of, measure_codec, measure_links
from wirewise.trials.rank import join_job, prepare_process

SERIAL = " serial"
"""Suffix of a mode's name: the same without overlap."""


class Work(msgspec.Struct, frozen=True):
    """Computing between sending and receiving, as a multiple of the wire time of a mode without computing."""

    reference: str
    factor: float


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    width: int = 256
    modes: dict[str, Work | None]
    kind: str = "sleep"
    """How the work is done: "sleep", or "matmul" on this rank's one thread."""
    rounds: int = 5
    probe_bytes: tuple[int, ...] = ()
    probe_rounds: int = 5


class Measured(msgspec.Struct, kw_only=True):
    """What the ranks measured."""

    seconds: dict[str, list[float]] = {}
    """Each epoch, on the slowest rank."""
    phases: dict[str, list[dict[str, float]]] = {}
    """Each epoch, mean of the ranks."""
    payload_bytes: dict[str, int] = {}
    """One epoch, all ranks."""
    kernel_bytes: dict[str, int] = {}
    """All epochs of the mode, all hosts, as the interfaces counted them."""
    work_s: dict[str, float] = {}
    """Work that was asked for, an epoch."""
    rows: int = 0
    """Rows that one rank sends in an exchange, mean of the ranks."""
    s_per_byte: float = 0.0
    """Seconds a byte on the links, which `measure_links` fits for the planner."""
    pack_s: dict[int, float] = {}
    unpack_s: dict[int, float] = {}
    """One exchange of such rows by bit width, as `measure_codec` fits them for the planner."""
    probes: list[tuple[int, float]] = []
    """Bytes and seconds of all-to-alls."""


class Between(torch.autograd.Function):
    """Work in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx, x, work):
        ctx.work = work
        work()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.work()
        return grad, None


class Workload:
    """One mode: a matrix of own rows, and gradients for what one exchange returns."""

    def __init__(self, name: str, member: int, part: graph.Part, transport, width: int) -> None:
        mode = full_graph.mode(name.removesuffix(SERIAL))
        if name.endswith(SERIAL):
            mode = replace(mode, overlap=False)
        self.transport, self.epoch = transport, 0
        self.exchange = full_graph.HaloExchange(part, transport, mode, member=member)
        generator = torch.Generator().manual_seed(part.rank)
        self.x = torch.randn(part.num_own, width, generator=generator).requires_grad_()
        self.own_grad = torch.zeros(part.num_own, width)
        self.halo_grad = torch.randn(part.num_halo, width, generator=generator)
        self.work: Callable[[], None] = lambda: None
        self.sent = 0

    def run(self) -> tuple[float, dict[str, float]]:
        """One epoch: seconds and phases of this rank."""
        self.transport.all_reduce(torch.zeros(1), "start of an epoch")
        self.exchange.epoch = self.epoch
        self.exchange.clock.take()
        start = time.perf_counter()
        with self.exchange.clock.phase("marginal"):
            own, ticket = self.exchange.start(self.x, 1)
            own = Between.apply(own, self.work)
            halo = self.exchange.finish(ticket)
            torch.autograd.grad([own, halo], [self.x], [self.own_grad, self.halo_grad])
        seconds = time.perf_counter() - start
        self.epoch += 1
        sent = sum(lane.bytes_sent for lane in self.exchange.lanes.values())
        self.last_bytes, self.sent = sent - self.sent, sent
        return seconds, self.exchange.clock.take()


def matmul_work(seconds: float) -> Callable[[], None]:
    """A fixed number of products that took about `seconds` when they were counted."""
    a = torch.randn(192, 192)
    out = torch.empty_like(a)
    torch.mm(a, a, out=out)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < 0.2:
        torch.mm(a, a, out=out)
        count += 1
    repeats = round(seconds * count / (time.perf_counter() - start))

    def work() -> None:
        for _ in range(repeats):
            torch.mm(a, a, out=out)

    return work


def sleep_work(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def over_ranks(transport, values: list[float]) -> np.ndarray:
    gathered = transport.all_gather(torch.tensor(values, dtype=torch.float64), "measurements")
    return torch.stack(gathered).numpy()


def tune(case: Case, workloads: dict[str, Workload], transport, measured: Measured) -> None:
    """Give every mode its work, from the wire time of its reference without any."""
    found: dict[str, float] = {}
    for name, work in case.modes.items():
        if work is None:
            continue
        if work.reference not in found:
            wire = [workloads[work.reference].run()[1].get("wire", 0.0) for _ in range(4)][1:]
            found[work.reference] = float(over_ranks(transport, [float(np.median(wire))]).mean())
        seconds = work.factor * found[work.reference]
        measured.work_s[name] = seconds
        make = matmul_work if case.kind == "matmul" else sleep_work
        workloads[name].work = make(seconds / 2)


def host_bytes() -> float:
    counted = interface_bytes()
    return float(counted.tx_bytes) if counted else 0.0


def run_rounds(case: Case, workloads: dict[str, Workload], transport, measured: Measured) -> None:
    for load in workloads.values():
        load.run()
    names = list(workloads)
    for _ in range(case.rounds):
        for name in names:
            before = host_bytes()
            seconds, phases = workloads[name].run()
            sent = host_bytes() - before
            values = [seconds, workloads[name].last_bytes, sent]
            table = over_ranks(transport, values + [phases.get(p, 0.0) for p in full_graph.PHASES])
            measured.seconds.setdefault(name, []).append(float(table[:, 0].max()))
            measured.payload_bytes[name] = int(table[:, 1].sum())
            measured.kernel_bytes[name] = measured.kernel_bytes.get(name, 0) + int(table[:, 2].sum())
            mean = dict(zip(full_graph.PHASES, table[:, 3:].mean(axis=0).tolist(), strict=True))
            measured.phases.setdefault(name, []).append(mean)
        names.reverse()


def probe(case: Case, transport, measured: Measured) -> None:
    """All-to-alls of given sizes; the seconds until the slowest rank had everything."""
    for number in range(case.probe_rounds):
        for size in case.probe_bytes:
            buffers = {p: torch.empty(size, dtype=torch.uint8) for p in transport.peers}
            transport.all_reduce(torch.zeros(1), "start of a probe")
            pending = transport.open("probe", 9 + 16 * number, buffers)
            for peer in transport.peers:
                pending.send(peer, torch.zeros(size, dtype=torch.uint8))
            pending.launch()
            for _ in pending.arrivals():
                pass
            pending.wait_sends()
            seconds = over_ranks(transport, [max(pending.arrival_s.values())]).max()
            measured.probes.append((size, float(seconds)))


def measure(case: Case, folder: Path, transport) -> Measured:
    measured = Measured()
    if case.probe_bytes:
        probe(case, transport, measured)
    links = measure_links(transport, hosts_of(transport))
    slope = [links.pairs.s_per_byte[p, transport.rank] for p in transport.peers]
    measured.s_per_byte = float(over_ranks(transport, [float(np.mean(slope))]).mean())
    if case.modes:
        part = graph.load_part(folder / "parts", transport.rank, transport.world_size)
        rows = len(part.send_index)
        measured.rows = int(over_ranks(transport, [rows]).mean())
        codec = measure_codec(case.width, device=torch.device("cpu"))
        for bits in (8, 4, 2):
            costs = [
                codec.pack_s({bits: rows}, case.width),
                codec.unpack_s({bits: part.num_halo}, case.width),
            ]
            pack, unpack = over_ranks(transport, costs).mean(axis=0).tolist()
            measured.pack_s[bits], measured.unpack_s[bits] = pack, unpack
        workloads = {
            name: Workload(name, i, part, transport, case.width) for i, name in enumerate(case.modes)
        }
        tune(case, workloads, transport, measured)
        run_rounds(case, workloads, transport, measured)
    return measured


def main(path: str) -> None:
    folder = Path(path).parent
    case = msgspec.json.decode(Path(path).read_bytes(), type=Case)
    prepare_process()
    with join_job() as transport:
        measured = measure(case, folder, transport)
        if transport.rank == 0:
            (folder / "measured.json").write_bytes(msgspec.json.encode(measured))


if __name__ == "__main__":
    main(sys.argv[1])
    end_process()
