"""Error-feedback state between steps, by parameter name: it outlives plans, DDP's buckets and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wirewise.codec import gradients
from wirewise.codec.gradients import Residuals
from wirewise.errors import InputError
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.members import Members, ParameterSlice

if TYPE_CHECKING:
    from wirewise.codec.gradients import GradientCodec

__all__ = ["Pools", "WithPools", "resize"]

KINDS = ("residual", "owner", "momentum", "factor")
"""Kinds of unsent values: of a rank's own gradients, or of sums of which it owns a shard (scheme "divisible"); other
names are those of codecs (`GradientCodec.memories`)."""

Names = tuple[str, ...]


class Pools:
    """Residuals and momentum of this rank; those of a group lie in one flat buffer, allocated on first use.

    A rank's residual and its remainder as the owner of a shard both enter the mean with weight 1 / ranks, so one can
    be added to the other when shards change.

    Args:
        sizes: Elements of each parameter by name; the order numbers the parameters for random draws, so it is the same
            on all ranks and under all plans.
        compression: Whether to use error feedback.
        device: Device of the buffers.
        shapes: Shapes of parameters by name, for codecs of matrices.

    Attributes:
        step: Number of steps so far, on which random numbers depend.
        world_size: Number of ranks; 0 if not known yet.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        compression: Compression | None = None,
        device: torch.device | str = "cpu",
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._members = Members(sizes, shapes or {})
        self.sizes = self._members.sizes
        self.compression = compression or Compression()
        self.device = torch.device(device)
        self.step = self.world_size = 0
        self._held: dict[str, dict[str, _Held]] = {kind: {} for kind in KINDS}
        self._saved: dict[tuple[str, str], Tensor | None] = {}

    def add(self, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        """Add new parameters, with the next numbers."""
        self._members.add(sizes, shapes or {})

    def to(self, device: torch.device | str) -> None:
        """Move all buffers."""
        if torch.device(device) != self.device:
            state, self.device = self.state_dict(), torch.device(device)
            self.load_state_dict(state)

    def member(self, name: str) -> ParameterSlice:
        """Look up a group member by the name of a parameter or a piece."""
        return self._members[name]

    def members_of(self, name: str) -> list[str]:
        """Names of a parameter's pieces, or its own name if it is whole."""
        return self._members.of(name)

    def split(self, splits: Mapping[str, int]) -> None:
        """Split these parameters into pieces of the given number of elements (`plans.splits`); others are whole.

        Unsent remainders stay with their elements. Low-rank factors, which pieces do not have, are dropped.
        """
        for name in {**self._members.splits, **splits}:
            if self._members.splits.get(name) != splits.get(name):
                self._cut(name, splits.get(name))

    def _cut(self, name: str, size: int | None) -> None:
        # Shares of other groups have other owners.
        for member in self.members_of(name):
            if (owed := self.take("owner", (member,))) is not None:
                self.group("residual", (member,)).add_(owed)
        before = {kind: self._whole(kind, name) for kind in ("residual", "momentum")}
        for member in self.members_of(name):
            for held in self._held.values():
                held.pop(member, None)
        self._members.cut(name, size)
        for kind, whole in before.items():
            if whole is not None:
                self._put(kind, name, whole)

    def _whole(self, kind: str, name: str) -> Tensor | None:
        """Copy of what is remembered of a parameter, [elements]; nothing if None."""
        held, members = self._held[kind], self.members_of(name)
        if not any(member in held for member in members):
            return None
        nothing = torch.zeros(self._members[members[0]].size, device=self.device)
        parts = [held[m].of(m) if m in held else nothing[: self.member(m).size] for m in members]
        return torch.cat(parts)

    def _put(self, kind: str, name: str, whole: Tensor) -> None:
        """Remember that of a parameter, [elements]."""
        for one in self.members_of(name):
            member = self.member(one)
            self.group(kind, (one,)).copy_(whole[member.begin : member.begin + member.size])

    def memory(self, codec: GradientCodec, names: Names) -> list[Tensor] | None:
        """State that `codec.encode` updates for a group, float32 [elements] each. None if the codec keeps none."""
        if not codec.memories or (codec.memory == "residual" and not self.compression.feedback):
            return None
        return [self.group(kind, names) for kind in codec.memories]

    def group(self, kind: str, names: Names) -> Tensor:
        """Buffer of a group, float32 [elements]; contents follow their names when groups change."""
        held = self._held[kind]
        present = held.get(names[0])
        if present is None or not self.is_group(kind, names):
            present = _Held(names, Residuals({n: self.member(n).size for n in names}, device=self.device))
            for name in names:
                if (before := held.get(name)) is not None:
                    present.of(name).copy_(before.of(name))
                held[name] = present
        return present.pool.flat

    def is_group(self, kind: str, names: Names) -> bool:
        """Whether the group has a buffer."""
        held = self._held[kind]
        present = held.get(names[0])
        return present is not None and present.names == names and all(held.get(n) is present for n in names)

    def take(self, kind: str, names: Names) -> Tensor | None:
        """Remove and return the state of a group, [elements]. None if there is none."""
        held = self._held[kind]
        if not any(name in held for name in names):
            return None
        taken = self.group(kind, names)
        for name in names:
            del held[name]
        return taken

    def rescale(self, factor: float) -> None:
        """Multiply unsent remainders by a factor, when the loss scale changes.

        With `torch.amp.GradScaler`, the factor is the scale after `update()` over that before.
        """
        for kind in ("residual", "owner", "momentum"):
            for held in set(self._held[kind].values()):
                held.pool.flat.mul_(factor)

    def save(self, names: Names) -> None:
        """Save a copy of a group's state, in case the step fails."""
        for kind in KINDS:
            for name in names:
                held = self._held[kind].get(name)
                self._saved.setdefault((kind, name), held.of(name).clone() if held is not None else None)

    def end_step(self, failed: bool = False) -> None:
        """End a step; if it failed, restore the saved state."""
        if failed:
            for (kind, name), saved in self._saved.items():
                if saved is not None or name in self._held[kind]:
                    flat = self._own(kind, name)
                    flat.zero_() if saved is None else flat.copy_(saved)
        self._saved.clear()
        self.step += 1

    def _own(self, kind: str, name: str) -> Tensor:
        held = self._held[kind].get(name)
        return held.of(name) if held is not None else self.group(kind, (name,))

    def state_dict(self) -> dict[str, Any]:
        """Copies by kind and parameter name, for a checkpoint of this rank."""
        pools = {
            kind: {n: whole for n in self.sizes if (whole := self._whole(kind, n)) is not None}
            for kind in KINDS
        }
        return {"step": self.step, "world_size": self.world_size, "sizes": dict(self.sizes), **pools}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the checkpoint of this rank.

        Raises:
            InputError: The state is of another world size or another model; nothing is changed then.
        """
        self._check(state)
        self.add(state["sizes"])
        self.step = int(state["step"])
        for kind in KINDS:
            self._held[kind].clear()
            for name, value in state[kind].items():
                self._put(kind, name, value.flatten())

    def _check(self, state: Mapping[str, Any]) -> None:
        if missing := [key for key in ("step", "world_size", "sizes", *KINDS) if key not in state]:
            raise InputError(f"the state has no {missing[0]!r}; expected what state_dict() gave")
        if self.world_size and state["world_size"] not in (0, self.world_size):
            raise InputError(
                f"the state is that of one of {state['world_size']} ranks, there are {self.world_size}; give the "
                "states of all ranks to `resize` first"
            )
        if self.sizes and state["sizes"] != self.sizes:
            wrong = sorted(
                n for n in {*state["sizes"], *self.sizes} if state["sizes"].get(n) != self.sizes.get(n)
            )
            raise InputError(
                f"the state has {state['sizes'].get(wrong[0])} elements for {wrong[0]!r}, the model "
                f"{self.sizes.get(wrong[0])}; {len(wrong)} parameters differ: load it into the same model"
            )


class _Held:
    """Buffer of a group."""

    def __init__(self, names: Names, pool: Residuals) -> None:
        self.names, self.pool = names, pool

    def of(self, name: str) -> Tensor:
        """View of a parameter."""
        return self.pool.group([name])


class WithPools:
    """Base class of gradient exchanges with error-feedback state."""

    pools: Pools

    def state_dict(self) -> dict[str, Any]:
        """Error-feedback state on this rank, by parameter name; each rank keeps its own (`Pools.state_dict`)."""
        return self.pools.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of this rank, between two steps; convert another world size by `pools.resize` first.

        Raises:
            InputError: The state is of another world size or model.
        """
        self.pools.load_state_dict(state)


def resize(states: Sequence[Mapping[str, Any]], ranks: int) -> dict[str, Any]:
    """Convert the states of all old ranks to that of each rank of a new world, losing nothing unsent.

    Every rank gets the mean over the old ranks of their residuals and of their remainders as owners.

    Args:
        states: `Pools.state_dict()` of every old rank.
        ranks: Size of the new world.

    Raises:
        InputError: There are no states or no ranks, a rank's state is missing, or states are of different steps.
    """
    if not states or len({state["step"] for state in states}) > 1 or ranks < 1:
        steps = sorted({int(state["step"]) for state in states})
        raise InputError(
            f"{len(states)} states of steps {steps} for {ranks} ranks; expected those of one step"
        )
    if states[0]["world_size"] not in (0, len(states)):
        raise InputError(f"{len(states)} states; expected one of each of {states[0]['world_size']} ranks")
    waiting = _filled([_added(state["residual"], state["owner"]) for state in states])
    return {
        "step": states[0]["step"],
        "world_size": ranks,
        "sizes": states[0]["sizes"],
        "residual": gradients.resize(waiting, ranks),
        "owner": {},
        **{kind: gradients.resize(_filled([state[kind] for state in states]), ranks) for kind in KINDS[2:]},
    }


def _added(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    both = dict(one)
    for name, value in other.items():
        both[name] = both[name] + value if name in both else value
    return both


def _filled(states: Iterable[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """States with the parameters of all of them; zeros where one has none."""
    listed = list(states)
    known = {name: value for state in listed for name, value in state.items()}
    return [
        {name: state.get(name, torch.zeros_like(value)) for name, value in known.items()} for state in listed
    ]
