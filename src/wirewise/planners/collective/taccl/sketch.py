"""Input files of TACCL: the profile of a machine's links, and the sketch of an algorithm.

Both read the JSON files of the published implementation (Shah et al., NSDI 2023), so that its sketches work here.
"""

from __future__ import annotations

import os
from typing import Literal, TypeVar

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.files import read_file

__all__ = [
    "Hyperparameters",
    "Internode",
    "Intranode",
    "Profile",
    "Sketch",
    "load_profile",
    "load_sketch",
    "loads_profile",
    "loads_sketch",
]

Matrix = tuple[tuple[float, ...], ...]
"""Matrix indexed [target][source]."""
_Record = TypeVar("_Record", bound=msgspec.Struct)

# Class of the link between two GPUs of an NDv2, that is a DGX-1 with V100: 1 two NVLinks, 2 one NVLink, 0 none.
_CUBE_MESH = (
    (0, 1, 2, 2, 1, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (2, 2, 0, 1, 0, 0, 1, 0),
    (2, 1, 1, 0, 0, 0, 0, 2),
    (1, 0, 0, 0, 0, 1, 2, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 2, 2, 0, 1),
    (0, 0, 0, 2, 2, 1, 1, 0),
)


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost of one chunk on links: latency (alpha), transmission (beta) and their sum (invbw).

    All times have one unit, usually microseconds; a common factor is harmless, as times are truncated to integers.
    Either lists with a value for each class of links, or three matrices.

    Raises:
        InputError: The costs are neither lists nor matrices, or have the wrong shape.
    """

    name: str
    gpus_per_node: int
    alpha: float
    nics_per_node: int = 0
    node_betas_list: tuple[float, ...] = ()
    node_invbws_list: tuple[float, ...] = ()
    links: Matrix = ()
    betas: Matrix = ()
    invbws: Matrix = ()
    remote_alpha: float = 0.0
    remote_beta: float = 0.0
    remote_invbw: float = 0.0

    def __post_init__(self) -> None:
        lists = (len(self.node_betas_list), len(self.node_invbws_list))
        given = [m for m in (self.links, self.betas, self.invbws) if m]
        if self.gpus_per_node < 1 or lists[0] != lists[1] or (lists[0] > 0) == bool(given):
            raise InputError(
                f"profile {self.name!r}: got {self.gpus_per_node} GPUs, lists of {lists[0]} betas and {lists[1]} "
                f"invbws and {len(given)} matrices; expected GPUs, and either two lists of a length or three matrices"
            )
        square = all(len(m) == self.gpus_per_node == len(row) for m in given for row in m)
        if given and (len(given) < 3 or not square):
            raise InputError(
                f"profile {self.name!r}: expected links, betas and invbws of {self.gpus_per_node} rows and columns"
            )
        if not given and not (lists[0] == 1 or (lists[0] == 2 and self.gpus_per_node == len(_CUBE_MESH))):
            raise InputError(
                f"profile {self.name!r}: got {lists[0]} classes of links for {self.gpus_per_node} GPUs; expected one "
                "class (all pairs alike), two for the 8 GPUs of an NDv2, or the matrices links, betas and invbws"
            )

    def matrices(self) -> tuple[Matrix, Matrix, Matrix]:
        """Parallel links, betas and invbws by target and source."""
        if self.links:
            return self.links, self.betas, self.invbws
        classes = self._classes()
        betas, invbws = (0.0, *self.node_betas_list), (0.0, *(float(int(v)) for v in self.node_invbws_list))
        return (
            tuple(tuple(float(k > 0) for k in row) for row in classes),
            tuple(tuple(betas[k] for k in row) for row in classes),
            tuple(tuple(invbws[k] for k in row) for row in classes),
        )

    def _classes(self) -> tuple[tuple[int, ...], ...]:
        if len(self.node_betas_list) == 2:
            return _CUBE_MESH
        gpus = range(self.gpus_per_node)
        return tuple(tuple(int(s != t) for s in gpus) for t in gpus)


class Intranode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links within a host, in a sketch."""

    strategy: Literal["switch", "minmax", "maxmin", "none"]
    """Whether GPUs share switches, and how the use of links is balanced: minmax and maxmin reduce or raise it; none
    leaves it."""
    switches: tuple[tuple[int, ...], ...] = ()
    switch_hyperedge_strategy: tuple[Literal["uc-min", "uc-max", "free"], ...] = ()
    """Preference for connections through each switch: few (large sizes), many (small sizes), or none."""


class Internode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links between hosts, in a sketch."""

    strategy: Literal["relay"]
    internode_conn: dict[int, tuple[int, ...]] | Literal["fully-connected", "direct-map"]
    """GPUs that send to other hosts, each with the GPUs there that receive from it."""
    gpus_to_sender_rev_map: dict[int, tuple[int, ...]] = {}
    """GPUs whose chunks each sender sends. None if any sender may send any chunk."""
    enforce_ordering: bool = False
    """Whether a sender sends its own chunks before those of others."""


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hyperparameters of a sketch."""

    input_chunkup: int = 1
    """Chunks in each block."""


class Sketch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of an algorithm: hosts, relays between them, switches and symmetries.

    Raises:
        InputError: Hosts have no relays, switches overlap, or an option is invalid.
    """

    nnodes: int
    intranode_sketch: Intranode
    internode_sketch: Internode | None = None
    symmetry_offsets: tuple[tuple[int, int], ...] = ()
    """Pairs (offset, size): rank r may be exchanged for (r + offset) mod size within its group of that size."""
    hyperparameters: Hyperparameters = Hyperparameters()

    def __post_init__(self) -> None:
        inside = self.intranode_sketch
        if self.nnodes < 1 or self.chunkup < 1:
            raise InputError(
                f"sketch: got {self.nnodes} nodes and chunkup {self.chunkup}; expected at least 1"
            )
        if self.nnodes > 1 and self.internode_sketch is None:
            raise InputError(
                f"sketch: {self.nnodes} nodes need an internode_sketch that says which GPUs relay"
            )
        if (inside.strategy == "switch") != bool(inside.switches):
            raise InputError('sketch: expected switches where the strategy is "switch", and only there')
        if len(inside.switches) != len(inside.switch_hyperedge_strategy):
            raise InputError(
                f"sketch: got {len(inside.switches)} switches and {len(inside.switch_hyperedge_strategy)} strategies; "
                "expected one for each"
            )
        for a in inside.switches:
            for b in inside.switches:
                if set(a) & set(b) and set(a) != set(b):
                    raise InputError(
                        f"sketch: switches {a} and {b} overlap; expected equal or disjoint groups"
                    )

    @property
    def chunkup(self) -> int:
        """Number of chunks per block."""
        return self.hyperparameters.input_chunkup

    def mirrored(self) -> Sketch:
        """Sketch of the reversed collective: senders to other hosts become receivers.

        A receiver with one sender also takes over the GPUs whose chunks that sender sends.
        """
        between = self.internode_sketch
        if between is None or isinstance(between.internode_conn, str):
            return self
        turned: dict[int, tuple[int, ...]] = {}
        for sender, receivers in between.internode_conn.items():
            for receiver in receivers:
                turned[receiver] = (*turned.get(receiver, ()), sender)
        served = {senders[0]: receiver for receiver, senders in turned.items() if len(senders) == 1}
        owners = {served.get(sender, sender): gpus for sender, gpus in between.gpus_to_sender_rev_map.items()}
        return msgspec.structs.replace(
            self,
            internode_sketch=msgspec.structs.replace(
                between, internode_conn=turned, gpus_to_sender_rev_map=owners
            ),
        )

    def connections(self, gpus: int) -> dict[int, tuple[int, ...]]:
        """Receivers on other hosts by sender, by index within the host.

        Raises:
            InputError: A host lacks a GPU, or senders have different numbers of receivers.
        """
        if self.internode_sketch is None or self.nnodes == 1:
            return {}
        found = self.internode_sketch.internode_conn
        if found == "fully-connected":
            return {s: tuple(range(gpus)) for s in range(gpus)}
        if found == "direct-map":
            return {s: (s,) for s in range(gpus)}
        named = {g for s, targets in found.items() for g in (s, *targets)}
        if not found or not named <= set(range(gpus)) or len({len(set(t)) for t in found.values()}) != 1:
            raise InputError(
                f"sketch: got internode_conn {found}; expected GPUs from 0 to {gpus - 1}, and as many receivers for "
                "each sender"
            )
        return found

    def senders(self, gpus: int) -> tuple[tuple[int, ...], ...]:
        """GPUs that may send a GPU's chunks to other hosts, by GPU of the host.

        Raises:
            InputError: The chunks of a GPU have no sender.
        """
        all_ = tuple(self.connections(gpus))
        given = self.internode_sketch.gpus_to_sender_rev_map if self.internode_sketch else {}
        if not given:
            return (all_,) * gpus
        found = tuple(tuple(s for s in all_ if g in given.get(s, ())) for g in range(gpus))
        if not all(found) and all_:
            raise InputError(
                f"sketch: no sender sends the chunks of GPU {found.index(())}; add it to gpus_to_sender_rev_map"
            )
        return found


def loads_sketch(text: str | bytes) -> Sketch:
    """Parse a sketch from JSON.

    Raises:
        InputError: The text is not JSON, or a field is missing, unknown or out of range; the message names the path.
    """
    return _decode(text, Sketch, "sketch")


def loads_profile(text: str | bytes) -> Profile:
    """Parse a profile from JSON.

    Raises:
        InputError: Raised by `loads_sketch`.
    """
    return _decode(text, Profile, "profile")


def load_sketch(path: str | os.PathLike[str]) -> Sketch:
    """Read a sketch file.

    Raises:
        InputError: Raised by `loads_sketch`, or the file is unreadable; the message names the file.
    """
    return read_file(path, "sketch file", loads_sketch)


def load_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a profile file.

    Raises:
        InputError: Raised by `load_sketch`.
    """
    return read_file(path, "profile file", loads_profile)


def _decode(text: str | bytes, kind: type[_Record], what: str) -> _Record:
    try:
        return decode_json(text, kind)
    except msgspec.DecodeError as error:
        raise InputError(f"cannot read a {what}: {error}; expected the JSON format of TACCL") from error
