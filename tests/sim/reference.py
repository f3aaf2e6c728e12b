"""A slow simulator in plain Python, written apart from the compiled one, and random graphs for both."""

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from wirewise.sim.engine import Ops
from wirewise.sim.sharing import InterfaceUse


@dataclass
class Node:
    """An op; `uses` maps interfaces to bytes, `work` is its largest flow where an interface carries several."""

    duration: float = 0.0
    after: tuple[int, ...] = ()
    resource: int = -1
    priority: int = 0
    gap: float = 0.0
    release: float = 0.0
    uses: dict[int, float] = field(default_factory=dict)
    work: float = 0.0

    @property
    def largest(self) -> float:
        return self.work or max(self.uses.values(), default=0.0)


def arrays(nodes: list[Node], slots: list[int], capacity: list[float]) -> tuple[Ops, InterfaceUse]:
    n = len(nodes)
    edges = sorted((before, op) for op, node in enumerate(nodes) for before in node.after)
    rows = [sorted(node.uses.items()) for node in nodes]
    work = [node.largest for node in nodes]
    counts = np.bincount([a for a, _ in edges], minlength=n) if edges else np.zeros(n, np.int64)
    ops = Ops(
        duration=np.array([x.duration for x in nodes], float),
        gap=np.array([x.gap for x in nodes], float),
        release=np.array([x.release for x in nodes], float),
        work=np.array(work, float),
        resource=np.array([x.resource for x in nodes], np.int64),
        priority=np.array([x.priority for x in nodes], np.int64),
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        successors=np.array([b for _, b in edges], np.int64),
        slots=np.array(slots, np.int64),
    )
    uses = InterfaceUse(
        indptr=np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64),
        interface=np.array([k for row in rows for k, _ in row], np.int64),
        weight=np.array([b / work[op] for op, row in enumerate(rows) for _, b in row], float),
        owner=np.array([op for op, row in enumerate(rows) for _ in row], np.int64),
        capacity=np.array(capacity, float),
    )
    return ops, uses


def max_min(uses: dict[int, dict[int, float]], capacity: list[float]) -> dict[int, float]:
    """Speeds of transfers whose uses are weights: raise all alike, hold those on a full interface."""
    speed, left, growing = {}, list(capacity), set(uses)
    while growing:
        load = {}
        for op in growing:
            for k, w in uses[op].items():
                load[k] = load.get(k, 0.0) + w
        level = min(left[k] / w for k, w in load.items())
        full = {k for k, w in load.items() if left[k] <= level * w * (1 + 1e-12)}
        held = {op for op in growing if full & set(uses[op])}
        for op in held:
            speed[op] = level
            for k, w in uses[op].items():
                left[k] -= w * level
        growing -= held
    return speed


def simulate(nodes: list[Node], slots: list[int], capacity: list[float]):
    """Start and end of every node, and the largest load seen on each interface."""
    n = len(nodes)
    start, end = [math.nan] * n, [math.nan] * n
    free = [[-math.inf] * s for s in slots]
    held = {}
    beginning, remaining = {}, {}
    busiest, now, left = [0.0] * len(capacity), -math.inf, set(range(n))

    def finish(op, at):
        end[op] = at
        if op in held:
            free[nodes[op].resource][held[op]] = at + nodes[op].gap

    while left or beginning or remaining:
        weights = {op: {k: b / nodes[op].largest for k, b in nodes[op].uses.items()} for op in remaining}
        speed = max_min(weights, capacity)
        for k in range(len(capacity)):
            busiest[k] = max(busiest[k], sum(weights[op].get(k, 0.0) * speed[op] for op in remaining))
        ready = {
            op: max([nodes[op].release] + [end[b] for b in nodes[op].after])
            for op in left
            if not any(math.isnan(end[b]) for b in nodes[op].after)
        }
        best = (math.inf, 0, 0.0, -1)
        for op, at in ready.items():
            r = nodes[op].resource
            feasible = at if r < 0 else max(at, min(free[r]))
            best = min(best, (feasible, nodes[op].priority, at, op))
        flow_ends = {op: now + remaining[op] / speed[op] for op in remaining}
        event = min([*beginning.values(), *flow_ends.values(), math.inf])
        time = min(event, best[0])
        if math.isinf(time):
            break
        if remaining and time > now:
            for op in remaining:
                remaining[op] -= speed[op] * (time - now)
        now = time
        if event <= best[0]:
            for op in [op for op, at in beginning.items() if at == event]:
                del beginning[op]
                remaining[op] = nodes[op].largest
            for op in [op for op, at in flow_ends.items() if at == event]:
                del remaining[op]
                finish(op, event)
            continue
        op = best[3]
        left.remove(op)
        start[op] = now
        r = nodes[op].resource
        if r >= 0:
            held[op] = min(range(slots[r]), key=lambda s: free[r][s])
            free[r][held[op]] = math.inf
        if nodes[op].uses:
            beginning[op] = now + nodes[op].duration
        else:
            finish(op, now + nodes[op].duration)
    return np.array(start), np.array(end), busiest


@st.composite
def graphs(draw, *, flows: bool):
    """Whole numbers without flows, so that many ops tie exactly; uneven ones with them."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, resources, interfaces = draw(st.integers(1, 40)), draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def seconds():
        return float(random.random() * 5) if flows else float(random.integers(0, 4))

    nodes = []
    for op in range(n):
        before = tuple(int(b) for b in np.flatnonzero(random.random(op) < 2.0 / (op + 1)))
        node = Node(seconds(), before, int(random.integers(-1, resources)), int(random.integers(0, 4)))
        node.gap = seconds() if random.random() < 0.3 else 0.0
        node.release = seconds() if random.random() < 0.3 else 0.0
        if flows and random.random() < 0.6:
            used = random.choice(interfaces, random.integers(1, interfaces + 1), replace=False)
            node.uses = {int(k): float(random.random() * 20 + 0.1) for k in used}
        nodes.append(node)
    slots = [int(s) for s in random.integers(1, 4, resources)]
    return nodes, slots, [float(c) for c in random.random(interfaces) * 9 + 1]
