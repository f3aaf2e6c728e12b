"""Accepted changes of a resumed job, as a command option."""

from __future__ import annotations

import os
from typing import Annotated

from wirewise import options as opt

__all__ = ["ACCEPTED", "ResumeOptions", "accepted_names"]

ACCEPTED = "WIREWISE_ACCEPT_CHANGES"
"""Environment variable with the names of accepted changes, comma-separated."""


class ResumeOptions(opt.Options, frozen=True, kw_only=True):
    """Options for resuming a restarted job from its checkpoints."""

    accept_changes: Annotated[
        str,
        opt.about(
            "Properties of the job that may differ from those of its checkpoints, separated by "
            "commas: lr,steps. A refused resumption names them."
        ),
    ] = ""

    def environment(self) -> dict[str, str]:
        """Environment variables of the ranks."""
        return {ACCEPTED: self.accept_changes} if self.accept_changes else {}


def accepted_names() -> set[str]:
    """Names accepted by the environment of this process."""
    return {name.strip() for name in os.environ.get(ACCEPTED, "").split(",") if name.strip()}
