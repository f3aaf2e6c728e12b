"""Networks for the tests of planners of collectives."""

from __future__ import annotations

from wirewise.collective import Edge, Network

GB = 1e9


def of_pairs(name, ranks, rates, latency_s=1e-6):
    """Direct edges; `rates` by (source, target)."""
    return Network(
        name=name,
        ranks=ranks,
        vertices=tuple(f"r{r}" for r in range(ranks)),
        edges=tuple(Edge(s, t, rate, latency_s) for (s, t), rate in sorted(rates.items())),
    )


def ring(ranks, both=True, rate=GB):
    ends = [(r, (r + 1) % ranks) for r in range(ranks)]
    ends += [(t, s) for s, t in ends] if both else []
    return of_pairs("ring", ranks, dict.fromkeys(ends, rate))


def torus(rows, columns, rate=GB, latency_s=1e-6):
    rates = {}
    for x in range(rows):
        for y in range(columns):
            for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                rates[x * columns + y, (x + dx) % rows * columns + (y + dy) % columns] = rate
    return of_pairs("torus", rows * columns, rates, latency_s)


def mesh(ranks, rates, other, latency_s=1e-4):
    """All pairs, both ways; `rates` of some pairs."""
    every = {(s, t): rates.get((min(s, t), max(s, t)), other) for s in range(ranks) for t in range(ranks)}
    return of_pairs(
        "mesh", ranks, {pair: rate for pair, rate in every.items() if pair[0] != pair[1]}, latency_s
    )


def four_unequal():
    """Four hosts: pairs 0-1 and 2-3 at 1600 Mbit/s, 0-2 at 400, the others at 100."""
    return mesh(4, {(0, 1): 200e6, (2, 3): 200e6, (0, 2): 50e6}, 12.5e6)


def switch(ranks, rate=GB, latency_s=1e-6):
    """Ranks around one switch; each way over it has `latency_s` twice."""
    return groups([ranks], rate, rate, latency_s, latency_s)


def groups(sizes, inside, between, inside_s=1e-6, between_s=1e-5):
    """Ranks around the switch of their group; the switches hang on one more switch."""
    ranks = sum(sizes)
    own = [group for group, size in enumerate(sizes) for _ in range(size)]
    edges = []
    for rank, group in enumerate(own):
        edges += [Edge(rank, ranks + group, inside, inside_s), Edge(ranks + group, rank, inside, inside_s)]
    core = ranks + len(sizes)
    for group in range(len(sizes)) if len(sizes) > 1 else ():
        edges += [
            Edge(ranks + group, core, between, between_s),
            Edge(core, ranks + group, between, between_s),
        ]
    names = [f"r{r}" for r in range(ranks)] + [f"switch{g}" for g in range(len(sizes))]
    return Network(
        name="groups",
        ranks=ranks,
        vertices=(*names, *(["core"] if len(sizes) > 1 else [])),
        edges=tuple(edges),
    )


def pcie_hosts(hosts=4):
    """Hosts of four GPUs behind two joined PCIe switches (16 GB/s), with one card of 12.5 GB/s at the first."""
    ranks, edges = 4 * hosts, []
    net = ranks + 2 * hosts
    for host in range(hosts):
        left, right = ranks + 2 * host, ranks + 2 * host + 1
        ends = [(4 * host + gpu, left if gpu < 2 else right, 16 * GB) for gpu in range(4)]
        for a, b, rate in [*ends, (left, right, 16 * GB), (left, net, 12.5 * GB)]:
            edges += [Edge(a, b, rate, 1e-6), Edge(b, a, rate, 1e-6)]
    names = [f"v{v}" for v in range(net + 1)]
    return Network(
        name="pcie",
        ranks=ranks,
        vertices=tuple(names),
        edges=tuple(edges),
        host_of_rank=tuple(rank // 4 for rank in range(ranks)),
    )
