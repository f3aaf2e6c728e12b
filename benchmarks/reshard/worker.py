"""One rank of the timed moves: carries out every case of FOLDER/job.json in turns, and counts bytes.

worker.py FOLDER
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wirewise.lab.counters import interface_bytes
from wirewise.plans import ReshardPlan
from wirewise.profile.ending import end_process
from wirewise.runtime.pipeline.redistribute import convert_state_dict, redistribute_across
from wirewise.runtime.pipeline.reshard import Resharder
from wirewise.runtime.pipeline.shards import part_of, same_bits
from wirewise.runtime.transport import Transport
from wirewise.trials.rank import join_job, prepare_process
from wirewise.trials.windows import alternate

Move = Callable[[], list[Tensor]]


def numbers(shape: Any, dtype: str = "float32") -> Tensor:
    whole = torch.arange(torch.Size(shape).numel()) * 7 % 251
    return whole.to(getattr(torch, dtype)).reshape(tuple(shape))


def planned(case: dict[str, Any], transport: Transport) -> tuple[Move, list[Tensor | None]]:
    """Plans one after the other; with `apart`, nobody begins one before all have ended the one before."""
    plans = [ReshardPlan.from_json(json.dumps(one)) for one in case["plans"]]
    movers = [Resharder(plan, transport) for plan in plans]
    tensors = [one for plan in plans for one in plan.tensors]
    wholes = [numbers(one.shape, one.dtype) for one in tensors]
    wanted = [part_of(w, t.target, transport.rank) for w, t in zip(wholes, tensors, strict=True)]
    given = [part_of(w, t.source, transport.rank) for w, t in zip(wholes, tensors, strict=True)]

    def move() -> list[Tensor]:
        found, first = [], 0
        for mover in movers:
            count = len(mover.plan.tensors)
            found += mover(given[first : first + count])
            first += count
            if case.get("apart"):
                transport.barrier("the end of a slice")
        return found

    return move, wanted


def by_torch(case: dict[str, Any], transport: Transport) -> tuple[Move, list[Tensor | None]]:
    """One tensor of rank 0 to all receivers, as torch's own calls do it."""
    rank, hosts, size = transport.rank, case["hosts"], case["elements"]
    receivers = [one for host in hosts for one in host]
    # All ranks make all groups, in the same order.
    everyone, group = dist.new_group([0, *receivers]), dist.new_group(receivers)
    local = [dist.new_group(host) for host in hosts]
    whole = numbers([size])
    own = whole if rank == 0 else torch.empty(size)
    peers = next((host for host in hosts if rank in host), [])

    def scattered(to: list[list[int]], groups: list[Any]) -> None:
        if rank == 0:
            works = []
            for members in to:
                parts = own.chunk(len(members))
                works += [dist.isend(part, member) for part, member in zip(parts, members, strict=True)]
            for work in works:
                work.wait()
        for members, gathering in zip(to, groups, strict=True):
            if rank in members:
                part = torch.empty(size // len(members))
                dist.recv(part, 0)
                dist.all_gather_into_tensor(own, part, group=gathering)

    def move() -> list[Tensor]:
        if rank == 0 or peers:
            if case["kind"] == "isend":
                if rank == 0:
                    for work in [dist.isend(own, one) for one in receivers]:
                        work.wait()
                else:
                    dist.recv(own, 0)
            elif case["kind"] == "broadcast":
                dist.broadcast(own, 0, group=everyone)
            elif case["kind"] == "local":
                scattered(hosts, local)
            else:
                scattered([receivers], [group])
        return [own]

    return move, [whole if peers else None]


def timed(job: dict[str, Any], transport: Transport) -> dict[str, Any]:
    """Seconds, counted bytes and equality of each case."""
    ready = {
        name: (planned if case["kind"] == "plans" else by_torch)(case, transport)
        for name, case in job["cases"].items()
    }
    found = {name: {"seconds": [], "equal": True} for name in ready}
    for number, name in alternate(list(ready), job["turns"] + 1):
        move, wanted = ready[name]
        transport.barrier("the start of a move")
        before, start = interface_bytes(), time.perf_counter()
        after = move()
        seconds = time.perf_counter() - start
        transport.barrier("the end of a move")
        passed = interface_bytes()
        assert before is not None and passed is not None
        counted = [passed.rx_bytes - before.rx_bytes, passed.tx_bytes - before.tx_bytes]
        same = all(want is None or same_bits(got, want) for got, want in zip(after, wanted, strict=True))
        slowest, wrong = transport.slowest([seconds, float(not same)]).tolist()
        gathered = transport.all_gather(torch.tensor(counted), "counters of interfaces")
        own = found[name]
        own["equal"] &= not wrong
        if number:
            own["seconds"].append(slowest)
            own["received"], own["sent"] = ([int(one[side]) for one in gathered] for side in (0, 1))
        if transport.rank == 0:
            print(f"{name} {slowest:.4f}", flush=True)
    return found


class Live(TorchDispatchMode):
    """Bytes of the storages that were made and live, and the most that did at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def _end(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, Tensor) and type(one) is Tensor:
                storage = one.untyped_storage()
                if id(storage) not in self._known:
                    self._known.add(id(storage))
                    weakref.finalize(storage, self._end, id(storage), storage.nbytes())
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
        return out


def model(job: dict[str, Any], transport: Transport) -> dict[str, Any]:
    """A model of many tensors from FSDP to tensor times data parallelism and back."""
    ranks = transport.world_size
    line, square = init_device_mesh("cpu", (ranks,)), init_device_mesh("cpu", (2, ranks // 2))
    shapes = job["shapes"]
    wholes = {
        f"w{n}": torch.randn(shape, generator=torch.Generator().manual_seed(n))
        for n, shape in enumerate(shapes)
    }
    state: dict[str, Any] = {
        name: distribute_tensor(whole, line, [Shard(0)], src_data_rank=None) for name, whole in wholes.items()
    }
    targets = {
        "there": (square, lambda _, tensor: [Replicate(), Shard(tensor.dim() - 1)]),
        "back": (line, lambda _, tensor: [Shard(0)]),
    }
    found = {}
    for name, (mesh, placements) in targets.items():
        before_bytes = sum(one.to_local().nbytes for one in state.values())
        transport.barrier("the start of a move")
        before, start = interface_bytes(), time.perf_counter()
        with Live() as live:
            state = convert_state_dict(state, mesh, placements, bucket_bytes=job["bucket_bytes"])
            seconds = time.perf_counter() - start
        transport.barrier("the end of a move")
        passed = interface_bytes()
        assert before is not None and passed is not None
        equal = all(
            torch.equal(
                state[key].to_local(),
                distribute_tensor(whole, mesh, placements(key, whole), src_data_rank=None).to_local(),
            )
            for key, whole in wholes.items()
        )
        after_bytes = sum(one.to_local().nbytes for one in state.values())
        # Old parts are seen too, as they are looked at. New ones take their place: what is above the larger is extra.
        extra = live.most - max(before_bytes, after_bytes)
        figures = [passed.rx_bytes - before.rx_bytes, extra, int(equal), round(1e6 * seconds)]
        gathered = torch.stack(transport.all_gather(torch.tensor(figures), "figures")).tolist()
        found[name] = {
            "received": [one[0] for one in gathered],
            "extra_bytes": max(one[1] for one in gathered),
            "equal": all(one[2] for one in gathered),
            "seconds": max(one[3] for one in gathered) / 1e6,
        }
    return found


def small(job: dict[str, Any], transport: Transport) -> dict[str, Any]:
    """Microseconds of repeated calls that send nothing; seconds of many small tensors, in one plan and in one each."""
    line, square = (
        init_device_mesh("cpu", (transport.world_size,)),
        init_device_mesh("cpu", (1, transport.world_size)),
    )
    one = distribute_tensor(torch.ones(64), line, [Shard(0)], src_data_rank=None)
    for _ in range(50):
        redistribute_across(one, square, [Replicate(), Shard(0)])
    calls = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(100):
            redistribute_across(one, square, [Replicate(), Shard(0)])
        calls.append((time.perf_counter() - start) / 100)
    found = timed(job, transport)
    found["overhead_s"] = transport.slowest(statistics.median(calls)).tolist()
    return found


def main(folder: Path) -> None:
    prepare_process()
    job = json.loads((folder / "job.json").read_text())
    with join_job(60.0) as transport:
        found = {"timed": timed, "model": model, "small": small}[job["what"]](job, transport)
        if transport.rank == 0:
            (folder / "result.json").write_text(json.dumps(found))
    end_process()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
