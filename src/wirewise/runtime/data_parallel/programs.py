"""All-reduces carried out by messages between two ranks each: every hop can be seen, as no library's can."""

from __future__ import annotations

from torch import Tensor

from wirewise.collective import Program, build
from wirewise.errors import InputError
from wirewise.runtime.collective.memory import Blocks
from wirewise.runtime.collective.over_torch import Observer, Steps
from wirewise.runtime.transport import Transport

__all__ = ["AllReduce", "Observer"]


class AllReduce:
    """Sums a flat tensor over all ranks in place, by the messages of a program.

    All ranks get the same sum bit by bit, since each element is added up in one place and in a fixed order, if
    the program adds up each chunk in one place. A message of a rank is sent once those of the step before have
    come. All-reduces of one transport run one after the other and in the same order on all ranks;
    `Reducer(collective=all_reduce)` sees to that.

    Args:
        transport: Transport between the ranks.
        program: An all-reduce of all these ranks, such as `collective.named_program` makes; none: a ring.
        observer: Is told of every message that this rank sends or gets.

    Raises:
        InputError: A program of another collective, or of other ranks.
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
        self._steps.carry_out(Blocks(flat.dtype, {0: flat.numel()}, {0: flat}))
