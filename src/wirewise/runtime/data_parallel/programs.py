"""All-reduces executed by point-to-point messages, so that every hop is observable, unlike in a library's."""

from __future__ import annotations

from torch import Tensor

from wirewise.collective import Program, build
from wirewise.errors import InputError
from wirewise.runtime.collective.memory import Blocks
from wirewise.runtime.collective.over_torch import Observer, Steps
from wirewise.runtime.transport import Transport

__all__ = ["AllReduce", "Observer"]


class AllReduce:
    """All-reduce of a flat tensor in place, by the messages of a program.

    All ranks get bit-identical sums if the program reduces each chunk on one rank, as each element is then summed
    once in a fixed order. A message of a rank is sent once those of the previous step have arrived. All-reduces of
    one transport must run in sequence and in the same order on all ranks, as `Reducer(collective=all_reduce)`
    ensures.

    Args:
        transport: Transport between the ranks.
        program: All-reduce over all these ranks, as made by `collective.named_program`. Defaults to a ring.
        observer: Called for every message that this rank sends or receives.

    Raises:
        InputError: The program is for another collective, or other ranks.
    """

    def __init__(
        self, transport: Transport, program: Program | None = None, *, observer: Observer | None = None
    ) -> None:
        self.transport = transport
        self.program = program or build("all_reduce", "ring", transport.world_size)
        collective, ranks = self.program.collective, self.program.group
        if collective != "all_reduce" or ranks != tuple(range(transport.world_size)):
            raise InputError(
                f"program {self.program.name!r} is an {collective} of {len(ranks)} ranks; expected an all_reduce, one "
                f"for each of {transport.world_size} ranks"
            )
        self._steps = Steps(self.program, transport, observer)

    def __call__(self, flat: Tensor) -> None:
        """Sum `flat`, 1-D and contiguous, over the ranks.

        Raises:
            InputError: Another shape, or not contiguous.
            PeerError: A peer is gone.
        """
        if flat.dim() != 1 or not flat.is_contiguous():
            raise InputError(f"got shape {tuple(flat.shape)}; expected one dimension, contiguous")
        self._steps.execute(Blocks(flat.dtype, {0: flat.numel()}, {0: flat}))
