"""One rank that exchanges halo rows under plans of bits: `exchanges_worker.py CASE.json`.

The ranks measure links and codec, rank 0 plans and predicts, and every plan's epochs take turns. Rank 0 writes
`epochs.json` next to the case.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from wirewise import graph
from wirewise.cost import ExchangeCosts
from wirewise.planners import PLANNERS
from wirewise.planners.bitwidth import BitWidthProblem, ChannelProblem, ExchangeProblem
from wirewise.plans import BitWidthPlan
from wirewise.profile.ending import end_process
from wirewise.runtime import full_graph
from wirewise.runtime.full_graph.bits import BitController
from wirewise.runtime.full_graph.lane import Lane
from wirewise.runtime.full_graph.measure import hosts_of, measure_codec, measure_links, measure_loaded
from wirewise.sim import ExchangeTimes, predict
from wirewise.trials.rank import join_job, prepare_process

PLANS = {"fp32": ("uniform", 32), "8 bits": ("uniform", 8), "2 bits": ("uniform", 2), "auto": ("auto", None)}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    layers: int = 2
    width: int = 64
    central_s: float = 0.008
    """Slept while rows are on the wire, in every exchange."""
    marginal_s: float = 0.004
    """Slept once rows are there."""
    epochs: int = 8
    """Epochs of each plan, after one that does not count."""
    plans: dict[str, tuple[str, int | None]] = msgspec.field(default_factory=PLANS.copy)
    """Planner and bits of each plan, by name."""


class Epochs(msgspec.Struct, kw_only=True):
    """Predicted and measured epochs, by plan."""

    predicted_s: dict[str, float]
    seconds: dict[str, list[float]]
    """Seconds of each epoch on the slowest rank."""


def measured_costs(transport, width: int) -> ExchangeCosts:
    """Links and codec, the same on all ranks."""

    def all_gather(vector):
        own = torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float64))
        return [one.numpy() for one in transport.all_gather(own, "costs")]

    costs = ExchangeCosts(
        links=measure_links(transport, hosts_of(transport)),
        codec=measure_codec(width, device=torch.device("cpu")),
    ).share(transport.rank, all_gather)
    return replace(costs, links=measure_loaded(transport, costs.links))


def problem_of(case: Case, folder: Path, costs: ExchangeCosts) -> BitWidthProblem:
    """Messages of all ranks, whose noise counts by weights that are drawn."""
    parts = [graph.load_part(folder, rank, costs.links.world_size) for rank in range(costs.links.world_size)]
    random = np.random.default_rng(0)
    exchanges = []
    for direction in ("forward", "backward"):
        for layer in range(1, case.layers + 1):
            channels = []
            for part in parts:
                for peer in range(part.num_parts):
                    # Gradients of halo rows go back to the owners.
                    offsets = part.send_offsets if direction == "forward" else part.halo_offsets
                    count = int(offsets[peer + 1] - offsets[peer])
                    if count:
                        weights = random.lognormal(sigma=1.5, size=count)
                        channels.append(ChannelProblem(sender=part.rank, receiver=peer, weights=weights))
            exchanges.append(ExchangeProblem(name=f"{direction}{layer}", width=case.width, channels=channels))
    return BitWidthProblem(exchanges=exchanges, world_size=costs.links.world_size, costs=costs)


def lanes_of(plan: BitWidthPlan, part, transport, member: int, width: int) -> dict[str, Lane]:
    """The exchanges of an epoch, in their order, with the plan's bits."""
    exchange = full_graph.HaloExchange(part, transport, full_graph.mode("uniform-8"), member=member)
    BitController(exchange, full_graph.PartTensors(part), replan_every=1, plan=plan)
    return {
        name: exchange.lane(name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz")), width)
        for name in plan.exchanges
    }


def epoch_s(case: Case, lanes: Mapping[str, Lane], rows: Mapping[bool, torch.Tensor], number: int) -> float:
    """Seconds of one epoch on this rank, all ranks starting together."""
    transport = next(iter(lanes.values())).transport
    out = torch.empty_like(rows[True] if len(rows[True]) > len(rows[False]) else rows[False])
    transport.all_reduce(torch.zeros(1), "the start of an epoch")
    start_s = time.perf_counter()
    for lane in lanes.values():
        lane.post(rows[lane.route.owner_sends], number, trace=False)
        time.sleep(case.central_s)
        for received in lane.collect():
            received.write(out[: lane.route.receive_counts[received.peer]])
        time.sleep(case.marginal_s)
    seconds = time.perf_counter() - start_s
    for lane in lanes.values():
        lane.drain()
    return seconds


def work(case: Case, folder: Path, transport) -> Epochs:
    part = graph.load_part(folder / "parts", transport.rank, transport.world_size)
    costs = measured_costs(transport, case.width)
    made: list[dict[str, BitWidthPlan]] = [{}]
    predicted = {}
    if transport.rank == 0:
        problem = problem_of(case, folder / "parts", costs)
        for name, (planner, bits) in case.plans.items():
            made[0][name] = PLANNERS["bitwidth"][planner](problem, **({"bits": bits} if bits else {}))
        plan = next(iter(made[0].values()))
        ones = np.ones(transport.world_size)
        times = ExchangeTimes(
            central_s=dict.fromkeys(plan.exchanges, case.central_s * ones),
            marginal_s=dict.fromkeys(plan.exchanges, case.marginal_s * ones),
        )
        predicted = {
            name: predict(plan, times, costs.links, costs=costs.codec).step_s
            for name, plan in made[0].items()
        }
    dist.broadcast_object_list(made)
    rows = {True: torch.randn(part.num_own, case.width), False: torch.randn(part.num_halo, case.width)}
    lanes = {
        name: lanes_of(plan, part, transport, number, case.width)
        for number, (name, plan) in enumerate(made[0].items())
    }
    seconds: dict[str, list[float]] = {name: [] for name in lanes}
    for number in range(case.epochs + 1):
        for name in list(lanes)[:: 1 if number % 2 else -1]:
            own = torch.tensor([epoch_s(case, lanes[name], rows, number)], dtype=torch.float64)
            slowest = float(torch.stack(transport.all_gather(own, "seconds")).max())
            if number:
                seconds[name].append(slowest)
    return Epochs(predicted_s=predicted, seconds=seconds)


def main(path: str) -> None:
    folder = Path(path).parent
    case = msgspec.json.decode(Path(path).read_bytes(), type=Case)
    prepare_process()
    with join_job() as transport:
        found = work(case, folder, transport)
        if transport.rank == 0:
            (folder / "epochs.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(sys.argv[1])
    end_process()
