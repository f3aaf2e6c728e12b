"""Figures of a mode, alone and compared with the reference mode."""

from __future__ import annotations

from dataclasses import dataclass

from wirewise.report.figures import finite, ratio
from wirewise_papers.adaqp.records import ModeResult, RunResult

__all__ = ["ModePair", "accuracy_of", "focus_name", "reference_name"]


def accuracy_of(mode: ModeResult) -> float | None:
    """Test accuracy as a fraction, or None if no epoch was evaluated or the graph has no test nodes."""
    return finite(mode.accuracy) if any("test" in record.accuracy for record in mode.epochs) else None


@dataclass(frozen=True)
class ModePair:
    """One mode compared with the reference mode; undefined figures are None."""

    reference: ModeResult
    mode: ModeResult

    @property
    def speedup_epoch(self) -> float | None:
        """Epoch rate relative to the reference."""
        return ratio(self.reference.epoch_s, self.mode.epoch_s)

    @property
    def speedup_run(self) -> float | None:
        """Training time of the reference relative to the mode, over the whole run."""
        return ratio(self.reference.run_s, self.mode.run_s)

    @property
    def speedup_time_to_loss(self) -> float | None:
        """Time to the reference's final loss, of the reference relative to the mode."""
        return ratio(self.reference.time_to_reference_loss_s, self.mode.time_to_reference_loss_s)

    @property
    def bytes_ratio(self) -> float | None:
        """Payload bytes of the reference relative to the mode."""
        return ratio(self.reference.bytes_sent, self.mode.bytes_sent)

    @property
    def interface_bytes_ratio(self) -> float | None:
        """Interface bytes of the reference relative to the mode; None if the kernel did not count them."""
        return ratio(self.reference.kernel_bytes_sent, self.mode.kernel_bytes_sent)

    @property
    def accuracy_delta_points(self) -> float | None:
        """Test accuracy minus the reference's, in percentage points."""
        mine, other = accuracy_of(self.mode), accuracy_of(self.reference)
        return None if mine is None or other is None else 100 * (mine - other)

    @classmethod
    def of(cls, result: RunResult, name: str) -> ModePair:
        """Compare the mode `name` with the reference."""
        return cls(reference=result.modes[reference_name(result)], mode=result.modes[name])


def reference_name(result: RunResult) -> str:
    """Name of the reference mode; the first one if the given one was not trained."""
    return result.reference if result.reference in result.modes else next(iter(result.modes), "")


def focus_name(result: RunResult) -> str | None:
    """Mode of headlines: adaqp if trained, else the first that is not the reference."""
    others = [name for name in result.modes if name != reference_name(result)]
    return "adaqp" if "adaqp" in others else next(iter(others), None)
