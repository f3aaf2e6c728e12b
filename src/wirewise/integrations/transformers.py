"""Advice on training with Hugging Face's Trainer.

trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[AdviceCallback("runs/advice")])
"""

from __future__ import annotations

from typing import Any

from wirewise.extras import import_extra
from wirewise.integrations.advice import FirstSteps

import_extra("transformers", "transformers", "wirewise.integrations.transformers")

from transformers import TrainerCallback  # noqa: E402

__all__ = ["AdviceCallback"]


class AdviceCallback(FirstSteps, TrainerCallback):  # type: ignore[misc]
    """Callback that records the first steps of each rank, and advises when training ends.

    Its arguments are those of `wirewise.integrations.advice.FirstSteps`.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Start recording."""
        self.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Close the recording and advise on rank 0."""
        self.end()
