"""The network that a profile describes: ranks, switches and shared NICs with its latencies and rates."""

from __future__ import annotations

from wirewise.collective import Edge, Network
from wirewise.planners.collective.taccl import LoadedProfile, Profile


def machine_network(measured: LoadedProfile, nodes: int, *, switched: bool | None = None) -> Network:
    """Hosts with the links of a profile, each NIC shared by the same number of GPUs, hosts fully joined.

    Args:
        measured: The profile with the size of its chunk and its unit of time.
        nodes: Number of hosts.
        switched: Whether GPUs have one port each to a switch; None: where the profile has one class of links.
    """
    profile = measured.profile
    if switched is None:
        switched = len(profile.node_betas_list) == 1
    made = _Builder(measured, profile.gpus_per_node * nodes)
    for node in range(nodes):
        made.host(node, switched)
    if nodes > 1:
        made.join(nodes)
    return Network(
        name=f"{profile.name}x{nodes}",
        ranks=made.ranks,
        vertices=tuple(made.vertices),
        edges=tuple(made.edges),
    )


class _Builder:
    def __init__(self, measured: LoadedProfile, ranks: int) -> None:
        self._measured, self.ranks = measured, ranks
        self.vertices = [f"gpu{r}" for r in range(ranks)]
        self.edges: list[Edge] = []

    @property
    def _profile(self) -> Profile:
        return self._measured.profile

    def _rate(self, beta: float) -> float:
        return self._measured.chunk_bytes / (beta * self._measured.unit_s)

    def _edge(self, source: int, target: int, beta: float, alpha: float = 0.0) -> None:
        self.edges.append(Edge(source, target, self._rate(beta), alpha * self._measured.unit_s))

    def _vertex(self, name: str) -> int:
        self.vertices.append(name)
        return len(self.vertices) - 1

    def host(self, node: int, switched: bool) -> None:
        profile, first = self._profile, node * self._profile.gpus_per_node
        links, betas, _ = profile.matrices()
        if switched:
            switch = self._vertex(f"switch{node}")
            for gpu in range(profile.gpus_per_node):
                beta = max(row[gpu] for row in betas)
                self._edge(first + gpu, switch, beta, profile.alpha / 2)
                self._edge(switch, first + gpu, beta, profile.alpha / 2)
            return
        for t, row in enumerate(links):
            for s, count in enumerate(row):
                if count:
                    self._edge(first + s, first + t, betas[t][s] / count, profile.alpha)

    def join(self, nodes: int) -> None:
        """Each NIC is an edge out and an edge in; what leaves a host does not come back to it."""
        profile, nics = self._profile, self._profile.nics_per_node
        alpha, beta = profile.remote_alpha, profile.remote_beta
        out, into = list[list[int]](), list[list[int]]()
        for node in range(nodes):
            out.append([])
            into.append([])
            for nic in range(nics):
                name = f"host{node}.nic{nic}"
                ends = [self._vertex(f"{name}.{part}") for part in ("send", "sent", "arrive", "arrived")]
                self._edge(ends[0], ends[1], beta)
                self._edge(ends[2], ends[3], beta)
                out[node].append(ends[1])
                into[node].append(ends[2])
                for gpu in range(
                    nic * profile.gpus_per_node // nics, (nic + 1) * profile.gpus_per_node // nics
                ):
                    rank = node * profile.gpus_per_node + gpu
                    self._edge(rank, ends[0], beta, alpha)
                    self._edge(ends[3], rank, beta)
        for a in range(nodes):
            for b in range(nodes):
                for source in out[a] if a != b else ():
                    for target in into[b]:
                        self._edge(source, target, beta)
