"""Compressed gradients for Lightning.

trainer = lightning.Trainer(strategy=CompressedDDPStrategy(codec="efsign"), devices=2, accelerator="cpu")
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wirewise.errors import InputError
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Compression, HookState, hook
from wirewise.runtime.data_parallel.pools import resize

try:
    from lightning.pytorch.strategies import DDPStrategy
except ImportError as cause:
    raise InputError(
        "lightning is not installed; install it with: pip install 'wirewise[lightning]'"
    ) from cause

__all__ = ["CompressedDDPStrategy"]

_KEY = "wirewise"


class CompressedDDPStrategy(DDPStrategy):
    """DistributedDataParallel whose gradients travel as a plan or a codec says, on CPUs too.

    Checkpoints hold what the codecs of all ranks remember; they load with any number of ranks, and into other
    strategies.

    Args:
        plan: Plan of a planner; or give a codec.
        codec: Name of a gradient codec for all gradients.
        compression: How codecs are used.
        options: Options of Lightning's `DDPStrategy`.

    Raises:
        InputError: Neither or both of plan and codec.
        PlanError: The plan cannot be carried out.
    """

    def __init__(
        self,
        plan: FusionPlan | None = None,
        *,
        codec: str | None = None,
        compression: Compression | None = None,
        **options: Any,
    ) -> None:
        # Wrong arguments are told here, and not in the middle of `fit`.
        hook(plan, codec=codec, compression=compression)
        super().__init__(**options)
        self._plan, self._codec, self._compression = plan, codec, compression
        self._restored: list[dict[str, Any]] | None = None
        self.compressed: HookState | None = None
        """State of the hook, with `bytes_sent`; None before `fit`."""

    def configure_ddp(self) -> None:
        """Wrap the model, register the hook and give it what a checkpoint held."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        state, carry = hook(
            self._plan,
            self.model.process_group,
            codec=self._codec,
            compression=self._compression,
            model=self.model.module,
        )
        self.model.register_comm_hook(state, carry)
        self.compressed = state
        self._restore()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Gather what codecs remember on rank 0, which writes the checkpoint."""
        if self.compressed is not None:
            states: list[Any] | None = [None] * self.world_size if self.is_global_zero else None
            dist.gather_object(self.compressed.state_dict(), states)
            checkpoint = {**checkpoint, _KEY: states}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint, and give codecs what they remembered, as soon as the hook is there."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only=weights_only)
        self._restored = checkpoint.get(_KEY)
        self._restore()
        return checkpoint

    def _restore(self) -> None:
        if self._restored is not None and self.compressed is not None:
            same = len(self._restored) == self.world_size
            own = self._restored[self.global_rank] if same else resize(self._restored, self.world_size)
            self.compressed.load_state_dict(own)
            self._restored = None
