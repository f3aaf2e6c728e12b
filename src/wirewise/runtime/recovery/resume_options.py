"""Changes of a job that its checkpoints may outlive, as an option of commands."""

from __future__ import annotations

import os
from typing import Annotated

from wirewise import options as opt

__all__ = ["ACCEPTED", "ResumeOptions", "accepted_names"]

ACCEPTED = "WIREWISE_ACCEPT_CHANGES"
"""Environment variable with the names that a job accepts, with commas between them."""


class ResumeOptions(opt.Options, frozen=True, kw_only=True):
    """How a job that is started again takes its checkpoints."""

    accept_changes: Annotated[
        str,
        opt.about(
            "Properties of the job, with commas between them, that may differ from those of its checkpoints: lr,steps. "
            "They are named where a resumption is refused."
        ),
    ] = ""

    def environment(self) -> dict[str, str]:
        """Variables of the ranks' environment."""
        return {ACCEPTED: self.accept_changes} if self.accept_changes else {}


def accepted_names() -> set[str]:
    """Names that the environment of this process accepts."""
    return {name.strip() for name in os.environ.get(ACCEPTED, "").split(",") if name.strip()}
