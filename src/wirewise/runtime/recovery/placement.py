"""Device of a rank and backend of its group; a spare learns its device with its role."""

from __future__ import annotations

import os
from typing import NamedTuple, Self

import torch
from torch import nn

from wirewise.errors import InputError
from wirewise.runtime.recovery.state import TrainingState

__all__ = ["Placement"]


class Placement(NamedTuple):
    """Device and backend of a rank."""

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
            device: Type of the requested device. Defaults to that of the model.
            backend: Requested backend. Defaults to that of the device.
            state: State of the training.
            remembers: Whether codecs have error-feedback state, which is on the model's device.
            sharded: Whether FSDP2 shards the model.

        Raises:
            InputError: Devices are inconsistent, or cannot be recovered.
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
        """Wait until the device has completed all its work."""
        if self.device == "cuda":
            torch.cuda.synchronize()
