"""Rollback of parameters that a script changes itself after the block, such as by clamping.

Steps do not copy all parameters. Those that the script was detected to change are copied at the end of each later
block: detection uses torch's version counters and, in the first steps, values, as changes through `p.data` are not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from wirewise.errors import InputError

__all__ = ["TouchedParameters"]

_LOOKS = 2
"""Steps whose parameters are all kept and compared; a script that changes some does so from the first step on."""


class TouchedParameters:
    """Parameters changed by the script between two blocks.

    Args:
        parameters: Function that returns the parameters by name, this rank's shards.

    Attributes:
        names: Parameters that the script has changed so far.
    """

    def __init__(self, parameters: Callable[[], Mapping[str, Tensor]]) -> None:
        self._parameters = parameters
        self.names: set[str] = set()
        self._looks = _LOOKS
        self._kept: dict[str, Tensor] = {}
        self._held: Mapping[str, Tensor] = {}
        self._versions: dict[str, int] = {}

    def keep(self, *, whole: bool = False) -> None:
        """Copy the parameters as they are at the end of a block.

        Args:
            whole: Copy all parameters to host memory, as after a failure.
        """
        self._held = parameters = self._parameters()
        self._versions = {name: one._version for name, one in parameters.items()}
        wanted = parameters if whole or self._looks else self.names
        self._kept = {name: parameters[name].detach().to("cpu", copy=True) for name in wanted}

    def detect_changes(self) -> None:
        """Detect, at the top of the loop, which parameters the script has changed."""
        # Walking through the modules takes longer than all else here.
        parameters = self._held
        self.names |= self._changed(parameters)
        if self._looks and self._versions:
            self._looks -= 1
            self.names |= {
                name
                for name, kept in self._kept.items()
                if not torch.equal(kept, parameters[name].detach().cpu())
            }
        self._kept, self._versions = {}, {}

    def restore(self) -> None:
        """Undo the script's changes since `keep`.

        Raises:
            InputError: The script has changed a parameter for the first time, of which there is no copy.
        """
        parameters = self._parameters()
        if lost := self._changed(parameters) - self._kept.keys():
            raise InputError(
                f"the script has changed the parameter {min(lost)!r} after the block for the first time, and a rank "
                "was lost in a collective behind that, so the change cannot be undone; expected it in each step, or "
                "within Training.on_commit"
            )
        with torch.no_grad():
            for name, kept in self._kept.items():
                parameters[name].copy_(kept)
        # Copying counts as a change, which is not the script's.
        self._kept, self._versions = {}, {}

    def _changed(self, parameters: Mapping[str, Tensor]) -> set[str]:
        return {name for name, version in self._versions.items() if parameters[name]._version != version}
