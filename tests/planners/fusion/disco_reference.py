"""DisCo's step and its whole space of decisions, written as plainly as possible."""

from __future__ import annotations

from itertools import product

FUSED = ("pointwise", "view", "reduction")


def partitions(items):
    """All ways to put the items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(rest):
        yield [[first], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [first, *group], *groups[i + 1 :]]


class Reference:
    """Regions are (operators at home, copies), both frozensets."""

    def __init__(self, graph, costs, all_reduce, overlap_rate=1.0):
        self.operators, self.costs, self.all_reduce = graph.operators, costs, all_reduce
        self.overlap_rate = overlap_rate
        self.readers = [
            [j for j, one in enumerate(graph.operators) if i in one.inputs]
            for i in range(len(self.operators))
        ]
        self.gradients = [i for i, one in enumerate(graph.operators) if one.gradient]

    def legal(self, members):
        kinds = [self.operators[i].category for i in members]
        if len(members) == 1:
            return True
        matmuls = [i for i in members if self.operators[i].category == "matmul"]
        epilogue = all(i not in members for m in matmuls for i in self.operators[m].inputs)
        return all(k in (*FUSED, "matmul") for k in kinds) and len(matmuls) <= 1 and epilogue

    def connected(self, members):
        found, ahead = set(), [min(members)]
        while ahead:
            one = ahead.pop()
            if one not in found:
                found.add(one)
                ahead += [i for i in (*self.operators[one].inputs, *self.readers[one]) if i in members]
        return found == set(members)

    def outputs(self, regions, number):
        """What leaves a region: read elsewhere, a gradient, or an end."""
        home = regions[number][0]
        found = set()
        for one in home:
            if self.operators[one].gradient or not self.readers[one]:
                found.add(one)
            for other, (own, copies) in enumerate(regions):
                if other != number and one not in copies and set(self.readers[one]) & (own | copies):
                    found.add(one)
        return found

    def order(self, regions):
        """First ready first, by number among those ready at the same time; None: a cycle."""
        home = {one: r for r, (own, _) in enumerate(regions) for one in own}
        needs = [
            {home[i] for one in own for i in self.operators[one].inputs if i not in own | copies}
            | {home[c] for c in copies}
            for own, copies in regions
        ]
        queue, found = [], []
        while True:
            ready = [r for r in range(len(regions)) if r not in queue + found and needs[r] <= set(found)]
            queue += sorted(ready, key=lambda r: min(regions[r][0]))
            if not queue:
                return found if len(found) == len(regions) else None
            found.append(queue.pop(0))

    def computed(self, regions):
        """Seconds of each region."""
        return [
            self.costs(tuple(sorted(own | copies)), tuple(sorted(self.outputs(regions, r))))
            for r, (own, copies) in enumerate(regions)
        ]

    def step_s(self, regions, buckets):
        """Seconds of the step, buckets as lists of operators; None: a cycle."""
        order, seconds = self.order(regions), self.computed(regions)
        if order is None:
            return None
        now, ready = 0.0, {}
        for r in order:
            now += seconds[r]
            ready |= dict.fromkeys(regions[r][0], now)
        busy = self.busy(ready, buckets)
        return max([self.computed_at(now, busy), *(end for _, end in busy)])

    def busy(self, ready, buckets):
        """When the channel is in use, as (start, end)."""
        found, latency, per_byte = [], self.all_reduce.latency_s, self.all_reduce.s_per_byte
        for issued, size in sorted(
            (max(ready[i] for i in b), sum(self.operators[i].output_bytes for i in b)) for b in buckets
        ):
            start = max([self.computed_at(issued, found), *(end for _, end in found)])
            found.append((start, start + latency + per_byte * size))
        return found

    def computed_at(self, seconds, busy):
        """When so many seconds of computing are done."""
        now = 0.0
        for start, end in busy:
            if seconds <= start - now:
                break
            seconds -= start - now
            if seconds <= self.overlap_rate * (end - start):
                return start + seconds / self.overlap_rate
            seconds -= self.overlap_rate * (end - start)
            now = end
        return now + seconds

    def best_s(self, known_s):
        """The least step of all legal states without regions that fall apart; a step that is known saves some."""
        groups, best = list(partitions(self.gradients)), known_s
        for regions in self.states():
            # No step is shorter than its computing.
            if sum(self.computed(regions)) < best:
                steps = [self.step_s(regions, b) for b in groups]
                best = min([best, *(step for step in steps if step is not None)])
        return best

    def states(self):
        for groups in partitions(list(range(len(self.operators)))):
            homes = [frozenset(group) for group in groups]
            if not all(self.legal(own) and self.connected(own) for own in homes):
                continue
            if self.order([(own, frozenset()) for own in homes]) is None:
                continue
            yield from (
                [*state] for state in product(*([(own, c) for c in self.copies(own)] for own in homes))
            )

    def copies(self, own):
        """Sets of operators that the region may hold copies of, each read in it."""
        known, ahead = {frozenset()}, [frozenset()]
        while ahead:
            held = ahead.pop()
            near = {i for one in own | held for i in self.operators[one].inputs} - own - held
            for more in near:
                larger = held | {more}
                if larger not in known and self.legal(own | larger):
                    known.add(larger)
                    ahead.append(larger)
        return known
