"""Bit widths of messages during training: traces values, calls the planner, and distributes the plan to both ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wirewise import rng
from wirewise.codec import BITS
from wirewise.cost import ExchangeCosts, Links, PairCosts, PairEstimator
from wirewise.planners import bitwidth
from wirewise.planners.bitwidth import BitWidthProblem, ChannelProblem, ExchangeProblem
from wirewise.plans import BitWidthPlan, ChannelBits
from wirewise.runtime.full_graph.exchange import HaloExchange
from wirewise.runtime.full_graph.lane import Lane, check_tables
from wirewise.runtime.full_graph.measure import hosts_of, measure_codec, measure_links, measure_loaded

if TYPE_CHECKING:
    from wirewise.runtime.full_graph.local import PartTensors

__all__ = ["BitController"]

_FIRST_PLAN = 2
"""Epochs traced at 8 bits before the first plan."""
_AS_FAST = 1.02
"""Times that differ by less than this factor count as equal."""


class BitController:
    """Controller of the bit widths of the training lanes of one exchange.

    Args:
        exchange: Exchange that the lanes belong to.
        tensors: Part tensors, for the scores of its messages.
        replan_every: Number of epochs between two decisions.
        plan: Fixed bit widths, in place of decisions.
    """

    def __init__(
        self,
        exchange: HaloExchange,
        tensors: PartTensors,
        *,
        replan_every: int,
        plan: BitWidthPlan | None = None,
    ) -> None:
        self.exchange, self.tensors = exchange, tensors
        self.replan_every, self.plan = replan_every, plan
        self.decision: bitwidth.AutoDecision | None = None
        """Last decision of the automatic planner, with its predictions."""
        self.costs: ExchangeCosts | None = None
        self._scores: dict[int, np.ndarray] | None = None
        self._online: PairEstimator | None = None
        self._usual: dict[tuple[str, int], float] = {}
        """Arrival of each channel over what the planner predicted for its load, when first seen."""
        exchange.new_lane = self._first_bits

    def _first_bits(self, lane: Lane) -> None:
        if self.plan is not None:
            self._apply(lane, self.plan)
        elif self.exchange.mode.bits == "random":
            self._tell(lane, self._drawn(lane))
        else:
            lane.set_static_bits()

    def before_epoch(self, epoch: int) -> None:
        """Decide again if due; a collective call."""
        bits, every = self.exchange.mode.bits, self.replan_every
        if self.plan is not None or isinstance(bits, int) or self.exchange.transport.world_size == 1:
            return
        lanes = self.exchange.training_lanes()
        if bits == "random":
            if epoch and epoch % every == 0:
                for lane in lanes.values():
                    self._tell(lane, self._drawn(lane))
            return
        chosen: dict[str, dict[int, np.ndarray]] = {}
        if self.exchange.mode.planner == "paper":
            if epoch % every == 1 and epoch > 1:
                chosen = self._paper(lanes, epoch // every)
        elif epoch == _FIRST_PLAN or (epoch > _FIRST_PLAN and epoch % every == 0):
            chosen = self._automatic(lanes)
        for name, tables in chosen.items():
            self._tell(lanes[name], tables)

    def _drawn(self, lane: Lane) -> dict[int, np.ndarray]:
        """Every message uniformly from 2, 4 and 8 bits."""
        drawn, rank = {}, self.exchange.transport.rank
        for peer, ids in lane.route.send_ids.items():
            key = rng.stream_key(lane.seed, self.exchange.epoch, lane.number, rank, peer, 0xB1)
            drawn[peer] = np.array([2, 4, 8], np.uint8)[rng.uniform16(key, ids, 1)[:, 0] % 3]
        return drawn

    def _automatic(self, lanes: Mapping[str, Lane]) -> dict[str, dict[int, np.ndarray]]:
        """Least exposed time at no more noise than four bits everywhere; every rank decides its own messages.

        At most 8 bits, unless fp32 would be as fast as anything else: more would only fill time that computing hides,
        and load the network for no accuracy that training could show.
        """
        problem = self._problem(lanes)
        self.costs = self._measure(lanes)
        self.decision = self._decide(problem, self.costs, (1, 2, 4, 8))
        static = self.decision.static_exposed_s
        if static[32] <= _AS_FAST * min(static.values()):
            self.decision = self._decide(problem, self.costs, BITS)
        chosen: dict[str, dict[int, np.ndarray]] = {name: {} for name in lanes}
        for (name, peer), table in self.decision.bits.items():
            chosen[name][peer] = table
        return chosen

    def _decide(
        self, problem: BitWidthProblem, costs: ExchangeCosts, bits: tuple[int, ...]
    ) -> bitwidth.AutoDecision:
        rank = self.exchange.transport.rank
        return bitwidth.plan_channels(problem, costs, rank=rank, allgather=self._all_gather, bits=bits)

    def _paper(self, lanes: Mapping[str, Lane], cycle: int) -> dict[str, dict[int, np.ndarray]]:
        """The published assigner: one program over the weights of all ranks, solved alike by every rank."""
        own = self._problem(lanes)
        gathered = [self._gathered(e) for e in own.exchanges]
        if self.costs is None:
            self.costs = self._measure({})
        plan = bitwidth.paper(replace(own, exchanges=gathered, costs=self.costs), cycle=cycle)
        assert isinstance(plan, BitWidthPlan)
        rank = self.exchange.transport.rank
        chosen: dict[str, dict[int, np.ndarray]] = {name: {} for name in lanes}
        for channel in plan.channels:
            if channel.sender == rank:
                chosen[channel.exchange][channel.receiver] = channel.array.copy()
        return chosen

    def _problem(self, lanes: Mapping[str, Lane]) -> BitWidthProblem:
        """Traced weights of this rank's messages; the traces start anew."""
        rank = self.exchange.transport.rank
        exchanges = []
        for name, lane in lanes.items():
            epochs = max(lane.traced_epochs, 1)
            channels = [
                ChannelProblem(sender=rank, receiver=p, weights=self._score(lane, p) * v / epochs)
                for p, v in sorted(lane.variance.items())
            ]
            exchanges.append(ExchangeProblem(name=name, width=lane.width, channels=channels))
            lane.forget_trace()
        return BitWidthProblem(
            exchanges=exchanges,
            world_size=self.exchange.transport.world_size,
            param_bytes=self.exchange.mode.param_bytes,
        )

    def _score(self, lane: Lane, peer: int) -> np.ndarray | float:
        """How strongly noise counts: by the edges that use a row; a returned gradient is used once."""
        if not lane.route.owner_sends:
            return 1.0
        if self._scores is None:
            paper = self.exchange.mode.planner == "paper"
            self._scores = self.tensors.main_neighbourhood().message_scores(self.exchange, squared_sum=paper)
        return self._scores[peer]

    def _measure(self, lanes: Mapping[str, Lane]) -> ExchangeCosts:
        """Costs that all ranks agree on.

        Time that computing hides is not counted on: it varies from epoch to epoch and from rank to rank, and bytes
        that fit into it still load the network and the processor.
        """
        rank = self.exchange.transport.rank
        if self.costs is None:
            return self._first_costs(max((lane.width for lane in lanes.values()), default=128))
        costs = ExchangeCosts(links=self._refitted(self.costs.links, lanes), codec=self.costs.codec)
        return costs.share(rank, self._all_gather)

    def _first_costs(self, width: int) -> ExchangeCosts:
        transport = self.exchange.transport
        rank = transport.rank
        costs = ExchangeCosts(
            links=measure_links(transport, hosts_of(transport)),
            codec=measure_codec(width, device=self.exchange.device),
        ).share(rank, self._all_gather)
        links = measure_loaded(transport, costs.links)
        self._online = PairEstimator({(p, rank): links.pair(p, rank) for p in transport.peers})
        return replace(costs, links=links)

    def _refitted(self, links: Links, lanes: Mapping[str, Lane]) -> Links:
        """The links as the exchanges since the last decision showed them.

        The fastest arrival of each message counts: the others also hold the time that the sender was late. Messages
        that share an interface land one after the other, so an arrival alone does not tell the interface's rate; its
        change against the first arrivals of the same channel does.
        """
        rank = self.exchange.transport.rank
        for name, lane in lanes.items():
            arrivals = lane.take_arrivals()
            if self._online is None or self.decision is None or name not in self.decision.size_bytes:
                continue
            load = links.load(self.decision.size_bytes[name])
            seconds = {}
            for p, arrived in arrivals.items():
                expected = links.pair(p, rank).seconds(load[p, rank])
                usual = self._usual.setdefault((name, p), arrived / max(expected, 1e-9))
                seconds[p, rank] = arrived / usual
            self._online.observe_round({channel: float(load[channel]) for channel in seconds}, seconds)
        if self._online is None:
            return links
        latency, slope = links.pairs.latency_s.copy(), links.pairs.s_per_byte.copy()
        for (sender, receiver), cost in self._online.costs().items():
            latency[sender, receiver], slope[sender, receiver] = cost.latency_s, cost.s_per_byte
        return links.with_pairs(PairCosts(latency, slope))

    def _all_gather(self, vector: np.ndarray) -> list[np.ndarray]:
        own = torch.from_numpy(np.ascontiguousarray(vector, dtype=np.float64))
        return [t.numpy() for t in self.exchange.transport.all_gather(own, "planning")]

    def _gathered(self, own: ExchangeProblem) -> ExchangeProblem:
        """Exchange with the channels of all ranks."""
        found = self._of_all_ranks({c.receiver: c.weights for c in own.channels})
        channels = [ChannelProblem(sender=s, receiver=r, weights=values) for s, r, values in found]
        return ExchangeProblem(name=own.name, width=own.width, channels=channels)

    def _of_all_ranks(self, own: Mapping[int, np.ndarray]) -> list[tuple[int, int, np.ndarray]]:
        """Sender, receiver and a value for each message of every channel, from those of this rank by receiver."""
        ranks = range(self.exchange.transport.world_size)
        rows = [np.asarray(own.get(r, ()), dtype=np.float64) for r in ranks]
        counts = [row.astype(int) for row in self._all_gather(np.array([len(row) for row in rows]))]
        packed = np.zeros(max(count.sum() for count in counts))
        flat = np.concatenate(rows)
        packed[: len(flat)] = flat
        found = []
        for sender, (count, values) in enumerate(zip(counts, self._all_gather(packed), strict=True)):
            parts = np.split(values[: count.sum()], np.cumsum(count)[:-1])
            found += [(sender, r, part) for r, part in enumerate(parts) if r != sender]
        return found

    def _tell(self, lane: Lane, tables: Mapping[int, np.ndarray]) -> None:
        """Send every receiver the bit table of its channel, one byte a message, and lay the buffers out anew."""
        sends = {p: torch.from_numpy(np.ascontiguousarray(b)) for p, b in tables.items()}
        receives = {p: torch.empty(n, dtype=torch.uint8) for p, n in lane.route.receive_counts.items()}
        self.exchange.transport.exchange(f"bit table of {lane.name}", 2 * lane.number + 1, sends, receives)
        lane.set_bits(dict(tables), {p: t.numpy() for p, t in receives.items()})

    def _apply(self, lane: Lane, plan: BitWidthPlan) -> None:
        rank = self.exchange.transport.rank
        of = {(c.sender, c.receiver): c.array for c in plan.of(lane.name)}
        none = np.empty(0, np.uint8)
        lane.set_bits(
            {p: of.get((rank, p), none) for p in lane.route.send_rows},
            {p: of.get((p, rank), none) for p in lane.route.receive_counts},
        )
        check_tables({lane.name: lane}, self.exchange.transport)

    def current_plan(self) -> BitWidthPlan:
        """Current bit widths of all ranks, as a plan; a collective call."""
        channels = []
        for name, lane in self.exchange.training_lanes().items():
            for sender, receiver, values in self._of_all_ranks(lane.send_bits):
                bits = values.astype(np.uint8).tobytes()
                channels.append(
                    ChannelBits(exchange=name, sender=sender, receiver=receiver, width=lane.width, bits=bits)
                )
        return BitWidthPlan(
            world_size=self.exchange.transport.world_size,
            planner=self.exchange.mode.planner,
            seed=self.exchange.seed,
            epoch=self.exchange.epoch,
            channels=tuple(channels),
            param_bytes=self.exchange.mode.param_bytes,
            predicted_s=dict(self.decision.exposed_s) if self.decision else {},
            weight_sigma=dict(self.decision.weight_sigma) if self.decision else {},
        )

    def counts(self) -> dict[str, dict[int, int]]:
        """Messages of this rank by bit width for each exchange."""
        found: dict[str, dict[int, int]] = {}
        for name, lane in self.exchange.training_lanes().items():
            table = np.concatenate([np.empty(0, np.uint8), *lane.send_bits.values()])
            found[name] = {b: int((table == b).sum()) for b in BITS}
        return found

    def gather_counts(self, epochs: list[dict[str, dict[int, int]]]) -> list[dict[str, dict[int, int]]]:
        """Counts summed over ranks; a collective call."""
        names = sorted({name for epoch in epochs for name in epoch})
        rows = [[[epoch.get(n, {}).get(b, 0) for b in BITS] for n in names] for epoch in epochs]
        table = torch.tensor(rows, dtype=torch.int64)
        self.exchange.transport.all_reduce(table, "bit counts")
        return [
            {
                n: {b: int(c) for b, c in zip(BITS, row, strict=True) if c}
                for n, row in zip(names, of, strict=True)
            }
            for of in table.tolist()
        ]

    def state_dict(self) -> dict[str, Any]:
        """State for the next decision; the lanes keep bits, traces and arrivals."""
        return {"costs": self.costs, "decision": self.decision, "online": self._online, "usual": self._usual}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.costs, self.decision = state["costs"], state["decision"]
        self._online, self._usual = state["online"], state["usual"]
