"""Bit widths with the least exposed time at no more noise than a static width, decided by all ranks without a master.

Objective: least exposed seconds of an exchange, codec time included (`cost.exposed_s`), subject to

- accuracy: the weighted variance of an exchange is at most that of uniform `accuracy_bits`;
- direction: in a layer, the mean forward bits are at least the mean backward bits, because forward noise passes
  nonlinearities and turns into bias while backward noise does not.

Among the choices within `slack` of the least time, the one with the least noise is taken. Wire time hidden by compute
is free, so it is spent on accuracy; on a fast network float32 or bfloat16 win because encoding costs more than it
saves; on a slow one the fewest bytes within the noise budget win. Static widths are among the candidates, so the
predicted time exceeds that of the best static width within the budget by at most `slack`.

Each rank condenses its own channels to menus of about sixty points (`CandidatePoints`), one all-gather shares them,
and every rank runs the same search on the same numbers. Weights never leave their rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from wirewise.cost import ExchangeCosts
from wirewise.errors import PlanError
from wirewise.planners.arrays import Vector
from wirewise.planners.bitwidth.balance import Arena, PointChoice
from wirewise.planners.bitwidth.frontier import CandidatePoints, menu_points
from wirewise.planners.bitwidth.problem import (
    BitWidthProblem,
    ExchangeProblem,
    Key,
    make_plan,
    noise_factor,
    own_channels,
    sigma_of,
)
from wirewise.plans import BITS, BitWidthPlan

__all__ = ["AutoDecision", "auto", "plan_channels"]

AllGather = Callable[[Vector], Sequence[Vector]]
"""All-gather of a float64 vector, equally long on all ranks; returns the vectors of all ranks, in rank order."""


@dataclass(frozen=True, kw_only=True)
class AutoDecision:
    """Bit widths of one rank's messages, and the predictions that all ranks share."""

    bits: dict[tuple[str, int], NDArray[np.uint8]]
    """Bits of each message of this rank by (exchange, receiver), uint8 [n]."""
    size_bytes: dict[str, NDArray[np.int64]]
    """Bytes of every channel of the job, [sender, receiver] by exchange; input of `Links.load`."""
    exposed_s: dict[str, float]
    """Predicted exposed seconds of each exchange, codec included, on the slowest rank."""
    static_exposed_s: dict[int, float]
    """Exposed seconds over all exchanges for every static width, including widths whose noise exceeds the budget."""
    noise_share: dict[str, float]
    """Weighted variance as a fraction of the budget, over all ranks."""
    mean_bits: dict[str, float]
    weight_sigma: dict[str, float]
    """Log standard deviation of the weights; below about 1.2 adaptive bits gain little."""


def plan_channels(
    problem: BitWidthProblem,
    costs: ExchangeCosts,
    *,
    rank: int,
    allgather: AllGather,
    accuracy_bits: int = 4,
    bits: Sequence[int] = BITS,
    slack: float = 0.02,
) -> AutoDecision:
    """Choose the bit width of every message that this rank sends; a collective call.

    All ranks call it together, with the same exchanges in the same order and the same costs
    (`ExchangeCosts.share`).

    Args:
        problem: This rank's channels only.
        costs: Links, codec and hidden seconds, equal on all ranks.
        rank: Index of this rank.
        allgather: All-gather of equal-sized vectors; one call.
        accuracy_bits: Static width whose noise is the budget.
        bits: Allowed bit widths.
        slack: Fraction of the time that may be given up for less noise.

    Raises:
        PlanError: A channel belongs to another rank, weights or options are invalid, or costs are of another world
            size.
    """
    problem.validate()
    if not bits or not set(bits) <= set(BITS) or accuracy_bits not in BITS or max(bits) < accuracy_bits:
        raise PlanError(
            f"bits are {tuple(bits)}, accuracy_bits is {accuracy_bits}; expected widths of {BITS}, the "
            "largest at least accuracy_bits"
        )
    if costs.links.world_size != problem.world_size:
        raise PlanError(
            f"costs are those of {costs.links.world_size} ranks, the problem has {problem.world_size}; "
            "measure the links of this job"
        )
    problem.check_sender(rank)
    allowed = tuple(sorted(set(bits)))
    table, menus = _condense(problem, allowed)
    gathered = [np.asarray(t, dtype=np.float64) for t in allgather(table)]
    if any(len(t) != len(table) for t in gathered):
        raise PlanError(
            f"ranks shared menus of {sorted({len(t) for t in gathered})} numbers; all ranks must plan the "
            "same exchanges with the same widths and the same allowed bits"
        )
    shared = _Shared(problem, allowed, gathered, costs, accuracy_bits)
    chosen = shared.decide(slack)
    own = {
        (name, receiver): menu.message_bits(shared.point(chosen, name, rank, receiver))
        for (name, receiver), menu in menus.items()
    }
    return shared.report(own, chosen)


def _condense(
    problem: BitWidthProblem, bits: tuple[int, ...]
) -> tuple[Vector, dict[tuple[str, int], CandidatePoints]]:
    """This rank's menus, and all of them as one vector: moments, then counts and noise by receiver."""
    parts, menus = [], {}
    for e in problem.exchanges:
        size = e.sizes(bits, problem.param_bytes)
        block = np.zeros((problem.world_size, menu_points(size, bits), len(bits) + 1))
        for c in e.channels:
            menu = menus[e.name, c.receiver] = CandidatePoints.of(c, size, bits)
            block[c.receiver, :, :-1], block[c.receiver, :, -1] = menu.counts, menu.noise
        parts += [e.weight_moments(), block.ravel()]
    return np.concatenate(parts) if parts else np.zeros(0), menus


class _Shared:
    """Knowledge of all ranks after the all-gather, and the decision that follows from it."""

    def __init__(
        self,
        problem: BitWidthProblem,
        bits: tuple[int, ...],
        gathered: Sequence[Vector],
        costs: ExchangeCosts,
        accuracy_bits: int,
    ) -> None:
        self.bits, self.names = bits, [e.name for e in problem.exchanges]
        self.param_bytes, self.costs, self.accuracy_bits = problem.param_bytes, costs, accuracy_bits
        self.arenas: dict[str, Arena] = {}
        self.static: dict[str, Arena] = {}
        """One point a width, the same for all messages."""
        self.budgets: dict[str, float] = {}
        self.messages: dict[str, int] = {}
        self.sigma: dict[str, float] = {}
        self.channels: dict[str, list[tuple[int, int]]] = {}
        start = 0
        for e in problem.exchanges:
            size = e.sizes(bits, problem.param_bytes)
            shape = (problem.world_size, menu_points(size, bits), len(bits) + 1)
            stop = start + 4 + int(np.prod(shape))
            moments = np.sum([t[start : start + 4] for t in gathered], axis=0)
            blocks = np.stack([t[start + 4 : stop].reshape(shape) for t in gathered])
            self._add(e, moments, blocks)
            start = stop

    def _add(self, exchange: ExchangeProblem, moments: Vector, blocks: Vector) -> None:
        name = exchange.name
        sender, receiver = np.nonzero(blocks[:, :, 0, :-1].sum(axis=-1))
        counts, noise = blocks[sender, receiver, :, :-1], blocks[sender, receiver, :, -1]
        if moments[0] == 0:
            # Nothing was traced: all messages are taken as equal, or one bit would look lossless.
            noise = counts @ np.array([noise_factor(b) for b in self.bits])
        priced = partial(_arena, exchange, self.costs, sender, receiver, param_bytes=self.param_bytes)
        messages = counts[:, :1].sum(axis=-1)
        self.arenas[name] = priced(self.bits, counts, noise)
        self.static[name] = priced(
            BITS, messages[:, :, None] * np.eye(len(BITS)), messages * [noise_factor(b) for b in BITS]
        )
        at = self.bits.index(self.accuracy_bits) if self.accuracy_bits in self.bits else None
        weight = moments[3] if moments[0] else counts[:, 0].sum()
        unseen = weight * noise_factor(self.accuracy_bits)
        self.budgets[name] = float(unseen if at is None else noise[:, at].sum())
        self.messages[name] = int(counts[:, 0].sum())
        self.sigma[name] = sigma_of(moments)
        self.channels[name] = list(zip(sender.tolist(), receiver.tolist(), strict=True))

    def point(self, chosen: Mapping[str, PointChoice], name: str, sender: int, receiver: int) -> int:
        """Point of one channel; a channel without messages has no choice."""
        if (sender, receiver) not in self.channels[name]:
            return 0
        return int(chosen[name].points[self.channels[name].index((sender, receiver))])

    def decide(self, slack: float) -> dict[str, PointChoice]:
        """A choice for every exchange; the two directions of a layer together."""
        chosen = {name: self._search(name, slack) for name in self.names}
        for backward in self.names:
            forward = backward.replace("backward", "forward")
            if forward != backward and forward in chosen:
                chosen[forward], chosen[backward] = self._order(forward, backward, chosen, slack)
        return chosen

    def _search(self, name: str, slack: float, floor: float = 0.0, limit: float = np.inf) -> PointChoice:
        """Search with the mean bits between `floor` and `limit`."""
        count = self.messages[name]
        if not count:
            return PointChoice(np.zeros(0, np.int64), 0.0, 0.0, 0.0, True)
        arena = self.arenas[name]
        found = arena.search(
            self.budgets[name], bit_floor=floor * count, bit_limit=limit * count, slack=slack
        )
        if found.feasible or floor > 0 or limit < np.inf:
            return found
        # Bfloat16 alone can miss the budget of a quantized width; then the most bits have to do.
        return arena.evaluate(np.full(len(arena.sender), len(self.bits) - 1, dtype=np.int64))

    def _mean(self, name: str, choice: PointChoice) -> float:
        return choice.bit_sum / max(self.messages[name], 1)

    def _order(
        self, forward: str, backward: str, chosen: Mapping[str, PointChoice], slack: float
    ) -> tuple[PointChoice, PointChoice]:
        """Make forward bits cover backward bits: lower the backward, raise the forward, or meet at a width.

        Whatever static width is best for the pair, one of the options contains it, so the law costs no more
        than the best static width does.
        """
        f, b = chosen[forward], chosen[backward]
        high, low = self._mean(backward, b), self._mean(forward, f)
        if low >= high or not self.messages[forward] or not self.messages[backward]:
            return f, b
        options = [
            (f, self._search(backward, slack, limit=low)),
            (self._search(forward, slack, floor=high), b),
        ]
        for width in self.bits:
            if low < width < high:
                pair = self._search(forward, slack, floor=width), self._search(backward, slack, limit=width)
                options.append(pair)
        usable = [o for o in options if o[0].feasible and o[1].feasible]
        fastest = min(o[0].exposed_s + o[1].exposed_s for o in usable)
        near = [o for o in usable if o[0].exposed_s + o[1].exposed_s <= fastest * (1 + slack)]
        budgets = self.budgets[forward] or 1.0, self.budgets[backward] or 1.0
        return min(near, key=lambda o: o[0].noise / budgets[0] + o[1].noise / budgets[1])

    def _size_bytes(self, name: str, choice: PointChoice) -> NDArray[np.int64]:
        arena = self.arenas[name]
        size = np.zeros((arena.links.world_size, arena.links.world_size), dtype=np.int64)
        size[arena.sender, arena.receiver] = arena.size[np.arange(len(arena.sender)), choice.points]
        return size

    def report(
        self, own: dict[tuple[str, int], NDArray[np.uint8]], chosen: Mapping[str, PointChoice]
    ) -> AutoDecision:
        """The decision with its predictions."""
        static = {
            b: sum(
                a.evaluate(np.full(len(a.sender), i, np.int64)).exposed_s
                for a in self.static.values()
                if len(a.sender)
            )
            for i, b in enumerate(BITS)
        }
        return AutoDecision(
            bits=own,
            size_bytes={n: self._size_bytes(n, c) for n, c in chosen.items()},
            exposed_s={n: c.exposed_s for n, c in chosen.items()},
            static_exposed_s=static,
            noise_share={n: c.noise / (self.budgets[n] or 1.0) for n, c in chosen.items()},
            mean_bits={n: self._mean(n, c) for n, c in chosen.items()},
            weight_sigma=self.sigma,
        )


def _arena(
    exchange: ExchangeProblem,
    costs: ExchangeCosts,
    sender: NDArray[np.int64],
    receiver: NDArray[np.int64],
    bits: Sequence[int],
    counts: Vector,
    noise: Vector,
    *,
    param_bytes: int,
) -> Arena:
    """Price points of channels: `counts` [channels, points, bits] are messages, `noise` [channels, points]."""
    pack, unpack = (
        np.array([seconds({b: 1}, exchange.width) for b in bits])
        for seconds in (costs.codec.pack_s, costs.codec.unpack_s)
    )
    return Arena(
        sender=sender.astype(np.int64),
        receiver=receiver.astype(np.int64),
        size=counts @ exchange.sizes(bits, param_bytes).astype(np.float64),
        noise=np.ascontiguousarray(noise),
        pack_s=counts @ pack,
        unpack_s=counts @ unpack,
        bit_sum=counts @ np.array(bits, dtype=np.float64),
        links=costs.links,
        hidden_s=costs.hidden(exchange.name),
    )


def auto(
    problem: BitWidthProblem,
    *,
    accuracy_bits: int = 4,
    bits: Sequence[int] = BITS,
    slack: float = 0.02,
    seed: int = 0,
) -> BitWidthPlan:
    """Choose bit widths as all ranks would together, from the whole problem in one process.

    Args:
        problem: Messages, weights and costs.
        accuracy_bits: Static width whose noise is the budget.
        bits: Allowed bit widths.
        slack: Fraction of the time that may be given up for less noise.
        seed: Recorded in the plan.

    Raises:
        PlanError: A weight or an option is invalid, costs are missing, or costs are of another world size.
    """
    costs = problem.priced
    problem.validate()
    allowed = tuple(sorted(set(bits)))
    parts = [own_channels(problem, rank) for rank in range(problem.world_size)]
    tables = [_condense(part, allowed)[0] for part in parts]
    found: dict[Key, NDArray[np.uint8]] = {}
    for rank, part in enumerate(parts):
        decision = plan_channels(
            part,
            costs,
            rank=rank,
            allgather=lambda _: tables,
            accuracy_bits=accuracy_bits,
            bits=bits,
            slack=slack,
        )
        found.update({(name, rank, receiver): b for (name, receiver), b in decision.bits.items()})
    return make_plan(problem, found, planner="auto", seed=seed, forward_covers_backward=True)
