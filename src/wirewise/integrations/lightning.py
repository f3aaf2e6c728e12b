"""Compressed gradients and advice for Lightning.

trainer = lightning.Trainer(strategy=CompressedDDPStrategy(codec="efsign"), devices=2, accelerator="cpu")
trainer = lightning.Trainer(callbacks=[AdviceCallback("runs/advice")])
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wirewise.extras import import_extra
from wirewise.integrations.advice import FirstSteps
from wirewise.plans import FusionPlan
from wirewise.runtime.data_parallel import Compression, HookState, hook
from wirewise.runtime.data_parallel.pools import resize

import_extra("lightning", "lightning", "wirewise.integrations.lightning")

from lightning.pytorch import Callback  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402

__all__ = ["AdviceCallback", "CompressedDDPStrategy"]

_KEY = "wirewise"


class CompressedDDPStrategy(DDPStrategy):
    """DistributedDataParallel strategy whose gradients are exchanged under a plan or with a codec, on CPUs too.

    Checkpoints include the error-feedback state of all ranks; they load with any number of ranks, and into other
    strategies.

    Args:
        plan: Plan from a planner; or pass a codec.
        codec: Name of a gradient codec for all gradients.
        compression: Options of the codecs' use.
        options: Options of Lightning's `DDPStrategy`.

    Raises:
        InputError: Neither or both of plan and codec.
        PlanError: The plan cannot be executed.
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
        """Wrap the model, register the hook, and restore its state from a checkpoint."""
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
        """Gather error-feedback state on rank 0, which writes the checkpoint."""
        if self.compressed is not None:
            states: list[Any] | None = [None] * self.world_size if self.is_global_zero else None
            dist.gather_object(self.compressed.state_dict(), states)
            checkpoint = {**checkpoint, _KEY: states}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint, and restore error-feedback state once the hook is registered."""
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


class AdviceCallback(FirstSteps, Callback):  # type: ignore[misc]
    """Callback that records the first steps of each rank, and advises when training ends.

    Its arguments are those of `wirewise.integrations.advice.FirstSteps`.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording."""
        self.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the recording and advise on rank 0."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the recording of this rank alone."""
        self.abandon()
