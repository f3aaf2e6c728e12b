"""Error-feedback state by parameter: it outlives groups, checkpoints and changes of the world size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from wirewise.errors import InputError

__all__ = ["Residuals", "resize"]

State = dict[str, Tensor]


class Residuals:
    """Error-feedback state as one flat float32 buffer in the order in which gradients get ready; a group is a slice.

    Groups may change at any time: only the slice boundaries move. The same class keeps Signum's momentum, and more
    than one buffer for codecs with several `memories`.

    Args:
        sizes: Elements of each parameter by name, in the order of back-propagation.
        device: Device that the buffer lies on.
        buffers: Number of buffers, one for each of a codec's `memories`; more than one adds a leading dimension.

    Raises:
        InputError: No parameters.
    """

    def __init__(
        self, sizes: Mapping[str, int], *, device: torch.device | str = "cpu", buffers: int = 1
    ) -> None:
        if not sizes:
            raise InputError("residuals of no parameters; expected the size of at least one")
        self._sizes = {name: int(size) for name, size in sizes.items()}
        total = sum(self._sizes.values())
        self._flat = torch.zeros(total if buffers == 1 else (buffers, total), device=device)
        self._starts, self._places = {}, {}
        start = 0
        for place, (name, size) in enumerate(self._sizes.items()):
            self._starts[name], self._places[name] = start, place
            start += size

    @property
    def flat(self) -> Float[Tensor, "*buffers d"]:
        """The whole buffer, float32."""
        return self._flat

    def group(self, names: Sequence[str]) -> Float[Tensor, "*buffers g"]:
        """View of consecutive parameters, float32.

        Raises:
            InputError: A name is unknown, there are none, or they are not consecutive.
        """
        if unknown := [name for name in names if name not in self._starts]:
            raise InputError(
                f"no parameter {unknown[0]!r}; expected some of {', '.join(list(self._starts)[:8])}"
            )
        places = [self._places[name] for name in names]
        if not places or places != list(range(places[0], places[0] + len(places))):
            raise InputError(
                f"{list(names)} do not follow each other; expected a run of the order of the pool"
            )
        start = self._starts[names[0]]
        return self._flat[..., start : self._starts[names[-1]] + self._sizes[names[-1]]]

    def state_dict(self) -> State:
        """Copies by parameter name, for a checkpoint of this rank."""
        return {name: self.group([name]).clone() for name in self._sizes}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a checkpoint, in any order of parameters.

        Raises:
            InputError: Names or sizes differ; nothing is changed then.
        """
        rows = self._flat.numel() // self._flat.shape[-1]
        found = {name: value.numel() // rows for name, value in state.items()}
        if found != self._sizes:
            wrong = sorted(n for n in {*found, *self._sizes} if found.get(n) != self._sizes.get(n))
            sizes = f"{found.get(wrong[0])} elements for {wrong[0]!r}, the pool {self._sizes.get(wrong[0])}"
            raise InputError(
                f"the checkpoint has {sizes}; {len(wrong)} parameters differ: load it into a pool of the same model"
            )
        for name, value in state.items():
            mine = self.group([name])
            mine.copy_(value.reshape(mine.shape))


def resize(states: Sequence[Mapping[str, Tensor]], ranks: int, *, reduction: str = "mean") -> State:
    """Convert the residuals of all old ranks to those of each rank of a new world, losing nothing unsent.

    The optimizer still has to receive the mean (or the sum) of the residuals of all old ranks. Each new rank
    therefore takes the mean of the old ranks or, if gradients are summed, an equal part of their sum.

    Args:
        states: `Residuals.state_dict()` of every old rank.
        ranks: Size of the new world.
        reduction: "mean" or "sum": how training reduces gradients.

    Raises:
        InputError: No states, no ranks, states of different parameters, or an unknown reduction.
    """
    if not states or ranks < 1 or reduction not in ("mean", "sum"):
        raise InputError(
            f"{len(states)} states for {ranks} ranks by {reduction!r}; expected one state of each old rank, at least "
            "one new rank, and 'mean' or 'sum'"
        )
    if any(state.keys() != states[0].keys() for state in states):
        raise InputError("the states hold different parameters; expected those of one model")
    share = 1.0 / (len(states) if reduction == "mean" else ranks)
    return {
        name: (torch.stack([state[name].double() for state in states]).sum(dim=0) * share).float()
        for name in states[0]
    }
