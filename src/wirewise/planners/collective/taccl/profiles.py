"""Published profiles and sketches, by name."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from wirewise.planners.collective.taccl.sketch import (
    Hyperparameters,
    Internode,
    Intranode,
    Profile,
    Sketch,
)

__all__ = ["PROFILES", "SKETCHES", "LoadedProfile"]

_LEAST_UNITS = 100


class LoadedProfile(NamedTuple):
    """Profile and its units."""

    profile: Profile
    chunk_bytes: int
    """Chunk size of the costs, in bytes."""
    unit_s: float
    """Seconds in a unit of time: profiles of small chunks count in parts of a microsecond."""

    def at(self, chunk_bytes: float) -> LoadedProfile:
        """Scale links to another chunk size: transmission time is proportional to it, latency is constant.

        The unit is changed so that the fastest link takes at least a hundred units, as times are rounded to integers.
        """
        links, betas, _ = self.profile.matrices()
        grow = chunk_bytes / self.chunk_bytes
        quickest = min(
            self.profile.alpha + grow * betas[t][s]
            for t, row in enumerate(links)
            for s, count in enumerate(row)
            if count
        )
        fine = max(1.0, _LEAST_UNITS / quickest)
        alpha, remote_alpha = fine * self.profile.alpha, fine * self.profile.remote_alpha
        grown = tuple(tuple(fine * grow * beta for beta in row) for row in betas)
        remote_beta = fine * grow * self.profile.remote_beta
        changed = msgspec.structs.replace(
            self.profile,
            alpha=alpha,
            node_betas_list=(),
            node_invbws_list=(),
            links=links,
            betas=grown,
            invbws=tuple(tuple(b and alpha + b for b in row) for row in grown),
            remote_alpha=remote_alpha,
            remote_beta=remote_beta,
            remote_invbw=remote_alpha + remote_beta,
        )
        return LoadedProfile(changed, round(chunk_bytes), self.unit_s / fine)


def _profile(
    name: str,
    gpus: int,
    nics: int,
    alpha: float,
    betas: tuple[float, ...],
    invbws: tuple[float, ...],
    *remote: float,
) -> Profile:
    return Profile(
        name=name,
        gpus_per_node=gpus,
        nics_per_node=nics,
        alpha=alpha,
        node_betas_list=betas,
        node_invbws_list=invbws,
        remote_alpha=remote[0],
        remote_beta=remote[1],
        remote_invbw=remote[2],
    )


_MIB, _KIB, _US = 1 << 20, 1 << 10, 1e-6
PROFILES: dict[str, LoadedProfile] = {
    "dgx2-1MB": LoadedProfile(_profile("DGX2_1MB", 16, 8, 0.3, (8,), (8,), 2.6, 105, 107), _MIB, _US),
    "dgx2-1KB": LoadedProfile(_profile("DGX2_1KB", 16, 8, 30, (1,), (31,), 260, 10.25, 270), _KIB, _US / 100),
    "ndv2-1MB": LoadedProfile(_profile("NDv2_1MB", 8, 1, 0.3, (23, 46), (23, 46), 2.6, 105, 107), _MIB, _US),
    "ndv2-32KB": LoadedProfile(
        _profile("NDv2_32KB", 8, 1, 3, (7.18, 14.38), (10.18, 17.38), 26, 32.8, 59), 32 * _KIB, _US / 10
    ),
    "ndv2-1KB": LoadedProfile(
        _profile("NDv2_1KB", 8, 1, 30, (2.24, 4.5), (32.25, 34.5), 260, 10.25, 270.25), _KIB, _US / 100
    ),
}
"""Profiles of two machines on Azure: 16 GPUs around switches with 8 NICs (DGX-2), 8 in a cube mesh with one (NDv2)."""


def _switch(
    nodes: int, connections: Literal["uc-min", "uc-max"], chunkup: int, between: Internode | None
) -> Sketch:
    return Sketch(
        nnodes=nodes,
        intranode_sketch=Intranode(
            strategy="switch", switches=(tuple(range(16)),), switch_hyperedge_strategy=(connections,)
        ),
        internode_sketch=between,
        symmetry_offsets=((2, 16), (16, 16 * nodes)) if nodes > 1 else ((2, 16),),
        hyperparameters=Hyperparameters(input_chunkup=chunkup),
    )


def _mesh(nodes: int, between: Internode | None, chunkup: int = 1) -> Sketch:
    return Sketch(
        nnodes=nodes,
        intranode_sketch=Intranode(strategy="none"),
        internode_sketch=between,
        symmetry_offsets=((8, 8 * nodes),) if nodes > 1 else (),
        hyperparameters=Hyperparameters(input_chunkup=chunkup),
    )


_PAIRS = Internode(
    strategy="relay",
    internode_conn={odd: (odd - 1,) for odd in range(1, 16, 2)},
    gpus_to_sender_rev_map={odd: (odd - 1, odd) for odd in range(1, 16, 2)},
    enforce_ordering=True,
)
_EACH = Internode(
    strategy="relay", internode_conn="direct-map", gpus_to_sender_rev_map={g: (g,) for g in range(16)}
)
_ONE = Internode(strategy="relay", internode_conn={0: (1,)})
_ALL = Internode(strategy="relay", internode_conn="fully-connected")
_SAME = Internode(strategy="relay", internode_conn="direct-map")

SKETCHES: dict[str, Sketch] = {
    "dgx2-n1": _switch(1, "uc-min", 2, None),
    "dgx2-sk-1": _switch(2, "uc-min", 2, _PAIRS),
    "dgx2-sk-2": _switch(2, "uc-max", 1, _EACH),
    "ndv2-n1": _mesh(1, None),
    "ndv2-sk-1": _mesh(2, _ONE),
    "ndv2-sk-2": _mesh(2, _ALL),
    "ndv2-sk-3": _mesh(2, _SAME),
    "ndv2-sk-1-n4": _mesh(4, _ONE),
    "ndv2-sk-2-n4": _mesh(4, _ALL),
}
"""Sketches of TACCL's evaluation (NSDI 2023, section 7), on one, two and four hosts."""
