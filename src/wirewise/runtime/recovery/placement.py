"""The device of a rank and the backend of its group, of which a spare knows the first once it has a role."""

from __future__ import annotations

import os
from typing import NamedTuple, Self

import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.recovery.state import TrainingState

__all__ = ["Placement"]


class Placement(NamedTuple):
    """Where a rank trains."""

    model: nn.Module
    device: str
    """Type of the device, such as "cuda"."""
    backend: str

    @classmethod
    def of(
        cls,
        model: nn.Module,
        device: str | None,
        backend: str | None,
        state: TrainingState,
        remembers: bool,
        sharded: bool,
    ) -> Self:
        """Placement of a model.

        Args:
            model: Model of the training.
            device: Type of device that the user asks for. None means that of the model.
            backend: Backend that the user asks for. None means that of the device.
            state: State of the training.
            remembers: Whether codecs have a memory, which lies where the model does.
            sharded: Whether FSDP2 shards the model.

        Raises:
            InputError: Devices that do not fit each other, or cannot be recovered.
        """
        found = {parameter.device.type for parameter in model.parameters()}
        if len(found) > 1 or (device is not None and torch.device(device).index is not None):
            raise InputError(
                f"got parameters on {', '.join(sorted(found))} and device={device!r}; expected one type of device, "
                'without a number, such as "cuda": each rank of a host gets one of its own'
            )
        kind = device or next(iter(found), "cpu")
        if kind == "cuda" and not torch.cuda.is_available():
            raise InputError(
                'got device="cuda", and torch sees no GPU; expected "cpu", or look at nvidia-smi'
            )
        backend = backend or ("nccl" if kind == "cuda" else "gloo")
        if kind != "cpu" and (remembers or sharded):
            what = "a plan with codecs" if remembers else "shard"
            raise InputError(
                f'got {what} on "{kind}"; expected "cpu", on which alone their state is recovered'
            )
        return cls(model, kind, backend)

    def occupy(self, local_rank: int) -> None:
        """Move the model to the device of this rank; optimizers keep their parameters.

        Raises:
            InputError: The host has too few devices.
        """
        if self.backend == "nccl":
            # The agents abort what is under way; torch's watchdog would end the process.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        if self.device != "cuda":
            return
        if local_rank >= torch.cuda.device_count():
            raise InputError(
                f"rank {local_rank} of this host has no GPU of its own, torch sees {torch.cuda.device_count()}; "
                "expected one for each rank of a host: start fewer ranks, or spares on hosts that have GPUs free"
            )
        torch.cuda.set_device(local_rank)
        self.model.to(torch.device("cuda", local_rank))

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()
