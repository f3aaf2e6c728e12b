"""Search for one point per channel, so that an exchange exposes the least time within a noise budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wirewise.cost import Links
from wirewise.cost.wire import wire_kernel
from wirewise.jit import njit
from wirewise.planners.arrays import Ints, Vector

__all__ = ["Arena", "PointChoice"]


_BISECTIONS = 12
_PRICE_STEPS = 14
_PRICE_RANGE = 45.0
"""Natural logarithm of the largest over the smallest price of a byte: weights span about twenty decades."""


@dataclass(frozen=True)
class PointChoice:
    """Chosen point of each channel, with its time and noise."""

    points: Ints
    exposed_s: float
    noise: float
    bit_sum: float
    feasible: bool
    """Whether it respects the noise budget and the limits on bits."""


class _Facts(NamedTuple):
    """Arrays that the compiled functions read: of channels [C] or [C, points], of ranks [P] or [P, P]."""

    sender: Ints
    receiver: Ints
    size: Vector
    noise: Vector
    pack: Vector
    unpack: Vector
    bit_sum: Vector
    latency: Vector
    slope: Vector
    nic_out: Vector
    nic_in: Vector
    host: Ints
    ring: bool
    hidden: Vector


@dataclass(frozen=True)
class Arena:
    """Inputs of the search over one exchange; equal on all ranks, so that all find the same result."""

    sender: Ints
    receiver: Ints
    size: Vector
    """Bytes, [channels, points]."""
    noise: Vector
    pack_s: Vector
    unpack_s: Vector
    bit_sum: Vector
    """Sum of the bit widths of the messages."""
    links: Links
    hidden_s: Vector
    """Computing that overlaps the exchange, in seconds, [P]."""

    def evaluate(self, points: Ints) -> PointChoice:
        """Compute the time and noise of one choice."""
        rows = np.arange(len(points))
        exposed = float(_exposed(points, self._facts()))
        noise, bit_sum = self.noise[rows, points].sum(), self.bit_sum[rows, points].sum()
        return PointChoice(points, exposed, float(noise), float(bit_sum), True)

    def _facts(self) -> _Facts:
        return _Facts(
            self.sender,
            self.receiver,
            self.size,
            self.noise,
            self.pack_s,
            self.unpack_s,
            self.bit_sum,
            *self.links.channels,
            self.hidden_s,
        )

    def search(
        self,
        noise_budget: float,
        *,
        bit_floor: float = 0.0,
        bit_limit: float = np.inf,
        slack: float = 0.02,
    ) -> PointChoice:
        """Find the least noise among choices within `slack` of the least exposed time that respect the limits.

        Uniform points are tried first, so the result is never slower than the best static choice within the limits.
        Then the exposed time is bisected: for a trial time all channels start at their cheapest point and take
        upgrades, those with the largest variance drop per second of wire time first, within the time. Complexity:
        bisections * channels * points * P^2.
        """
        rounding = 1e-6
        points, feasible = _search(
            self._facts(), noise_budget * (1 + 1e-9), bit_floor - rounding, bit_limit + rounding, slack
        )
        found = self.evaluate(points)
        return PointChoice(points, found.exposed_s, found.noise, found.bit_sum, bool(feasible))


@njit()
def _exposed(points: Ints, f: _Facts) -> float:
    ranks = len(f.host)
    matrix = np.zeros((ranks, ranks))
    codec = np.zeros(ranks)
    wire = np.zeros(ranks)
    for c in range(len(points)):
        matrix[f.sender[c], f.receiver[c]] = f.size[c, points[c]]
        codec[f.sender[c]] += f.pack[c, points[c]]
        codec[f.receiver[c]] += f.unpack[c, points[c]]
    wire_kernel(matrix, f.latency, f.slope, f.nic_out, f.nic_in, f.host, f.ring, wire)
    worst = 0.0
    for r in range(ranks):
        worst = max(worst, codec[r] + max(wire[r] - f.hidden[r], 0.0))
    return worst


@njit()
def _paths(size: Vector, noise: Vector) -> tuple[Ints, Ints]:
    """Points of each channel on the lower convex hull of (bytes, noise), bytes ascending; their number."""
    channels, points = size.shape
    path = np.zeros((channels, points), dtype=np.int64)
    length = np.zeros(channels, dtype=np.int64)
    for c in range(channels):
        n = 0
        for i in np.argsort(size[c], kind="mergesort"):
            if n and noise[c, i] >= noise[c, path[c, n - 1]]:
                continue
            if n and size[c, i] == size[c, path[c, n - 1]]:
                n -= 1
            # A point on or above the line between its neighbours is the next to take at no price of a byte.
            while n > 1:
                a, b = path[c, n - 2], path[c, n - 1]
                left = (noise[c, a] - noise[c, b]) * (size[c, i] - size[c, b])
                right = (noise[c, b] - noise[c, i]) * (size[c, b] - size[c, a])
                if left > right:
                    break
                n -= 1
            path[c, n] = i
            n += 1
        length[c] = n
    return path, length


@njit()
def _next_gain(c: int, at: Ints, here: int, path: Ints, length: Ints, f: _Facts) -> float:
    """Move `at[c]` to the next better point of the path; its variance drop a wire second, 0 at the end."""
    while at[c] < length[c]:
        i = path[c, at[c]]
        # A base may lie off the path: only a point that is better than it at more bytes is an upgrade.
        if f.size[c, i] > f.size[c, here] and f.noise[c, i] < f.noise[c, here]:
            seconds = (f.size[c, i] - f.size[c, here]) * max(f.slope[f.sender[c], f.receiver[c]], 1e-15)
            return float((f.noise[c, here] - f.noise[c, i]) / seconds)
        at[c] += 1
    return 0.0


@njit()
def _at_price(base: Ints, price: float, path: Ints, length: Ints, f: _Facts) -> tuple[Ints, Ints, Vector]:
    """All upgrades from `base` that gain at least `price`; the place on each path and the next gain."""
    points = base.copy()
    at = np.zeros(len(base), dtype=np.int64)
    gain = np.zeros(len(base))
    for c in range(len(base)):
        gain[c] = _next_gain(c, at, points[c], path, length, f)
        while gain[c] > 0.0 and gain[c] >= price:
            points[c] = path[c, at[c]]
            gain[c] = _next_gain(c, at, points[c], path, length, f)
    return points, at, gain


@njit()
def _fill(base: Ints, limit_s: float, bit_limit: float, path: Ints, length: Ints, f: _Facts) -> Ints:
    """Upgrade from `base`, best variance drop a wire second first, while time and bits stay within limits."""
    points, at, gain = _at_price(base, np.inf, path, length, f)
    if gain.max() > 0.0:
        # Bisect the price that all channels can pay together, then go on upgrade by upgrade.
        high, low = np.log(gain.max()) + 1.0, np.log(gain.max()) - _PRICE_RANGE
        for _ in range(_PRICE_STEPS):
            middle = 0.5 * (low + high)
            trial, _, _ = _at_price(base, np.exp(middle), path, length, f)
            if _totals(trial, f)[1] <= bit_limit and _exposed(trial, f) <= limit_s:
                high = middle
            else:
                low = middle
        points, at, gain = _at_price(base, np.exp(high), path, length, f)
    bits = _totals(points, f)[1]
    while True:
        c = int(np.argmax(gain))
        if gain[c] <= 0.0:
            return points
        before = points[c]
        points[c] = path[c, at[c]]
        more = bits + f.bit_sum[c, points[c]] - f.bit_sum[c, before]
        if more > bit_limit or _exposed(points, f) > limit_s:
            # The channel stops here: each is refused once, so that the loop ends.
            points[c] = before
            gain[c] = 0.0
        else:
            bits = more
            gain[c] = _next_gain(c, at, points[c], path, length, f)


@njit()
def _totals(points: Ints, f: _Facts) -> tuple[float, float]:
    noise, bits = 0.0, 0.0
    for c in range(len(points)):
        noise += f.noise[c, points[c]]
        bits += f.bit_sum[c, points[c]]
    return noise, bits


@njit()
def _keeps(points: Ints, budget: float, floor: float, limit: float, f: _Facts) -> bool:
    noise, bits = _totals(points, f)
    return noise <= budget and floor <= bits <= limit


@njit()
def _starts(f: _Facts) -> Ints:
    """Every point for all channels alike; then two bases: fewest bytes, and cheapest channel by channel."""
    channels, count = f.size.shape
    starts = np.zeros((count + 2, channels), dtype=np.int64)
    for j in range(count):
        starts[j] = j
    for c in range(channels):
        s, r = f.sender[c], f.receiver[c]
        # A byte costs time on the channel and on both interfaces, an encoded row costs codec time.
        price = f.slope[s, r] + f.nic_out[s] + f.nic_in[r]
        starts[count, c] = np.argmin(f.size[c])
        starts[count + 1, c] = np.argmin(f.pack[c] + f.unpack[c] + price * f.size[c])
    return starts


@njit()
def _search(f: _Facts, budget: float, floor: float, limit: float, slack: float) -> tuple[Ints, bool]:
    count = f.size.shape[1]
    path, length = _paths(f.size, f.noise)
    starts = _starts(f)
    times = np.array([_exposed(starts[j], f) for j in range(count + 2)])
    result, feasible = starts[count].copy(), False
    # Above all times, so that any start that keeps the limits counts; bisection only ever lowers it.
    reached = 2.0 * times.max() + 1e-9
    for j in range(count + 2):
        if times[j] < reached and _keeps(starts[j], budget, floor, limit, f):
            result, feasible, reached = starts[j].copy(), True, times[j]
    for base in range(count, count + 2):
        low, high = times[base], reached
        for _ in range(_BISECTIONS):
            if high - low <= 0.2 * slack * high:
                break
            middle = 0.5 * (low + high)
            trial = _fill(starts[base], middle, limit, path, length, f)
            # `_fill` spends the time on less noise: where the budget is missed still, the time counts as too short.
            if _keeps(trial, budget, floor, limit, f):
                result, feasible, high = trial, True, middle
            else:
                low = middle
        reached = high
    if feasible:
        late = (1.0 + slack) * _exposed(result, f)
        result = _quietest(result, starts, times, late, budget, floor, limit, path, length, f)
    return result, feasible


@njit()
def _quietest(
    found: Ints,
    starts: Ints,
    times: Vector,
    limit_s: float,
    budget: float,
    floor: float,
    limit: float,
    path: Ints,
    length: Ints,
    f: _Facts,
) -> Ints:
    """Least noise within the time: accuracy that costs nothing is not left on the table."""
    count = f.size.shape[1]
    best = _fill(found, limit_s, limit, path, length, f)
    for j in range(count + 2):
        if times[j] > limit_s:
            continue
        trial = _fill(starts[j], limit_s, limit, path, length, f) if j >= count else starts[j]
        if _keeps(trial, budget, floor, limit, f) and _totals(trial, f)[0] < _totals(best, f)[0]:
            best = trial.copy()
    return best
