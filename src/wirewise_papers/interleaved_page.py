"""Default comparison of an interleaved experiment."""

from __future__ import annotations

from wirewise.report.comparison_page import best_of, fastest
from wirewise.report.figures import factor, seconds, signed, size
from wirewise.results import Comparison, Variant
from wirewise_papers.interleaved import InterleavedRun, VariantRecord

__all__ = ["interleaved_comparison"]


def interleaved_comparison(run: InterleavedRun, kind: str, unit: str) -> Comparison:
    """Compare step time, speed, prediction and bytes of the variants with the first one.

    Args:
        run: Measured variants of the run.
        kind: Command that made the run.
        unit: Name of a step, such as "update".
    """
    reference, best = next(iter(run.variants)), run.variants[run.fastest]
    sentence = fastest(
        run.fastest, len(run.variants), "variant", f"{seconds(best.step_s)} a {unit}, measured"
    )
    if run.fastest != reference:
        sentence += f", {factor(run.speedup)} as fast as {reference}"
    return Comparison(
        kind=kind,
        sentence=f"{sentence}.",
        cards=((f"Shortest {unit}", seconds(best.step_s), f"{run.fastest}, median"),),
        title=f"Time of a {unit}",
        lead="Medians on the slowest rank; variants are interleaved. Error: predicted over measured.",
        what="variant",
        variants={
            name: Variant(
                length=one.step_s,
                words=seconds(one.step_s),
                colour=best_of(name, run.fastest, reference),
                cells=_cells(one, run.variants[reference], unit),
            )
            for name, one in run.variants.items()
        },
    )


def _cells(one: VariantRecord, reference: VariantRecord, unit: str) -> dict[str, str]:
    predicted = one.predicted_step_s
    return {
        unit: seconds(one.step_s),
        "speed": factor(reference.step_s / one.step_s),
        "predicted": "-" if predicted is None else seconds(predicted),
        "error": "-" if predicted is None else signed(predicted / one.step_s - 1),
        "sent": "-" if one.bytes_sent is None else size(one.bytes_sent),
        "last loss": f"{one.losses[-1]:.3f}",
    }
