"""Script loops left before the last step: the step counts as the last one, or the job ends with an error."""

from __future__ import annotations

from typing import NamedTuple

from wirewise.errors import InputError

__all__ = ["EarlyStop", "check_loops"]

_GUARD = (
    "expected that the loop is left only where the step is committed: `if training.position > step and ...: break`, "
    "with `step = training.position` before the block"
)


class EarlyStop(NamedTuple):
    """Step after which the script has left its loop."""

    step: int
    digest: str
    """Digest of parameters and averages at that point; "" if a failure had undone the attempt in which the loop was
    left."""

    def check_whole(self) -> None:
        """Raise if a rank was lost in the attempt in which the loop was left, which would have to be repeated.

        Raises:
            InputError: A rank was lost in that attempt.
        """
        if not self.digest:
            raise InputError(
                f"the script left its loop after step {self.step} in an attempt that has to be repeated, as a rank was "
                f"lost in it; {_GUARD}"
            )

    def check_unchanged(self, digest: str) -> None:
        """Raise if the script has changed parameters since, which a replacement of a lost rank would copy.

        Raises:
            InputError: The parameters were changed.
        """
        if digest != self.digest:
            raise InputError(
                "a rank was lost after the loop was left, and this rank has changed parameters since; expected changes "
                "of parameters within the loop"
            )

    def check_repeated(self, passes: bool, step: int) -> None:
        """Raise if a recovery needs the last batch again.

        Raises:
            InputError: A recovery needs the batch.
        """
        if passes or step != self.step:
            raise InputError(
                f"a rank was lost in the code after the block of step {self.step}, which all ranks would run again, "
                f"and this rank has left its loop; {_GUARD}"
            )


def check_loops(own: int, maximum: int) -> None:
    """Raise in a replacement of a lost rank that cannot know the position of its script.

    Args:
        own: Number of training loops begun by the script of this process.
        maximum: Maximum number of training loops begun by any rank's script.

    Raises:
        InputError: Other ranks have left a loop and started another one.
    """
    if own == 0 and maximum > 1:
        raise InputError(
            f"a rank was lost in loop {maximum} over the training, and the process that replaces it would begin with "
            "the first one; expected one loop over `training`, with what is done between loops inside it: `if "
            "training.position % n == 0: ...`"
        )
