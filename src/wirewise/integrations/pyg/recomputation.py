"""Halo rows for gradient checkpointing, whose recomputation runs inside the back-propagation.

Ranks would have to exchange rows again in the middle of exchanging gradients, and `torch.utils.checkpoint` may stop
its recomputation at another point on each rank. Halo rows received by a checkpointed convolution are therefore kept
and read by its recomputation; only gradients are exchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wirewise.errors import InputError
from wirewise.integrations.pyg.replicas import bits_of

__all__ = ["KeptRows", "in_back_propagation", "is_checkpointed"]

_MOST = 64
"""Calls of one convolution whose rows are kept while no back-propagation has used them."""


def in_back_propagation() -> bool:
    """Whether this thread is running a back-propagation."""
    return torch._C._current_graph_task_id() >= 0


def is_checkpointed(outside: bool) -> bool:
    """Whether `torch.utils.checkpoint` may recompute the current code.

    Args:
        outside: Whether gradients were enabled when the model was called.
    """
    if not outside:
        return False
    # With use_reentrant=True gradients are off inside, without it hooks save tensors.
    return (
        not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    )


class KeptRows:
    """Halo rows of the calls of one convolution, looked up by the bits of its input."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._used: set[int] = set()

    def keep(self, x: Tensor, halo: Tensor) -> None:
        """Store the rows received by a call, and drop those of back-propagated calls."""
        for key in self._used:
            self._rows.pop(key, None)
        self._used.clear()
        while len(self._rows) >= _MOST:
            self._rows.pop(next(iter(self._rows)))
        self._rows[bits_of(x)] = halo.detach()

    def find(self, x: Tensor, name: str) -> Tensor:
        """Look up the rows of the call with this input.

        Raises:
            InputError: No call had this input.
        """
        key = bits_of(x)
        if key not in self._rows:
            raise InputError(
                f"gradient checkpointing called {name} again with rows that differ from those of the forward pass; "
                "expected the same numbers: preserve_rng_state=True, no in-place changes of inputs, and checkpoints "
                "inside the model that job.distribute gets"
            )
        self._used.add(key)
        return self._rows[key]
