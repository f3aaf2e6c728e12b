"""Rank candidates, and recommend the best that pays, or no change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wirewise.advice.records import FAMILIES, LEAST_GAIN, Advice, Candidate
from wirewise.report.figures import seconds, signed

__all__ = ["Answers", "advice_of", "is_worthwhile", "merge_candidates"]

_RANKED = ("candidates", "not_applicable", "advice", "lines")
"""Fields of an advice that follow from the candidates."""

Answers = Mapping[str, list[Candidate] | str]
"""Candidates of each family, or the reason why it has none."""


def advice_of(answers: Answers, *, step_s: float, **rest: Any) -> Advice:
    """Rank candidates, those that paid in a trial first, then by time per sample, and write the recommendation.

    Untried changes rank with the first if their whole predicted interval saves more than any trial did.

    Args:
        answers: Candidates, or the reason for none, for each of FAMILIES.
        step_s: Measured step time of the baseline, in seconds.
        rest: Further fields of the advice.
    """
    known = [one for answer in answers.values() if not isinstance(answer, str) for one in answer]
    paid = [one for one in known if one.measured_step_s is not None and is_worthwhile(one, step_s)]
    first = list(paid)
    if paid:
        most = max(one.gain(step_s) for one in paid)
        first += [one for one in known if one not in paid and one.lines and _least_gain(one, step_s) > most]
    candidates = sorted(known, key=lambda one: (one not in first, -one.gain(step_s)))
    reasons = {family: answers[family] for family in FAMILIES if isinstance(answers[family], str)}
    best = _best_of([one for one in candidates if is_worthwhile(one, step_s)], step_s)
    return Advice(
        step_s=step_s,
        candidates=tuple(candidates),
        not_applicable={family: str(reason) for family, reason in reasons.items()},
        advice=" ".join(_sentences(best, step_s)),
        lines=best.lines,
        **rest,
    )


def merge_candidates(
    advice: Advice, added: Sequence[Candidate], reasons: Mapping[str, str], **changes: Any
) -> Advice:
    """Add later candidates to the advice and rank them again.

    Args:
        advice: Advice so far.
        added: New candidates; each replaces the one of the same family and name.
        reasons: Reasons of families without a candidate; they replace earlier ones.
        changes: Fields of the advice to change.
    """
    named = {(one.family, one.planner): one for one in (*advice.candidates, *added)}
    known = {**advice.not_applicable, **reasons}
    answers = {
        family: [one for one in named.values() if one.family == family] or known[family]
        for family in FAMILIES
    }
    fields = {
        name: getattr(advice, name) for name in advice.__struct_fields__ if name not in _RANKED
    } | changes
    return advice_of(answers, **fields)


def is_worthwhile(candidate: Candidate, step_s: float) -> bool:
    """Whether a change saves at least LEAST_GAIN, and its whole interval, if known, is below the baseline step."""
    high = None if candidate.ci95 is None else candidate.ci95[1] / candidate.work
    return candidate.gain(step_s) >= LEAST_GAIN and (
        high is None or high < candidate.baseline_step_time_s(step_s)
    )


def _least_gain(one: Candidate, step_s: float) -> float:
    """Gain at the end of the interval; the gain where there is none."""
    if one.ci95 is None or one.failure:
        return one.gain(step_s)
    return 1.0 - one.ci95[1] / one.work / one.baseline_step_time_s(step_s)


class _Best(NamedTuple):
    """The changes that an answer names; None where there is none of the kind."""

    first: Candidate | None
    """The one that saves most and leaves what the model learns as it is, among the measured ones if one paid."""
    untried: Candidate | None
    """One that is predicted to save more than a measured first one, without a risk."""
    in_script: Candidate | None
    """The one of these that saves most by lines of the script."""
    at_risk: Candidate | None
    """One that saves LEAST_GAIN more than the one by lines of the script and may change what the model learns."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines to write; what is at a risk and was not tried is for the user to weigh first."""
        tried = self.at_risk if self.at_risk and self.at_risk.measured_step_s is not None else None
        return next((one.lines for one in (self.in_script, tried) if one), ())


def _best_of(worth: Sequence[Candidate], step_s: float) -> _Best:
    free = [one for one in worth if not one.risk]
    first = next(iter(free), None)
    untried = next((one for one in free[1:] if one.gain(step_s) > free[0].gain(step_s)), None)
    in_script = next((one for one in free if one.lines), None)
    # A risk has to save as much beyond the change without one as any change has to save.
    least = 0.0 if in_script is None else 1.0 - (1.0 - in_script.gain(step_s)) * (1.0 - LEAST_GAIN)
    at_risk = next((one for one in worth if one.risk and one.gain(step_s) > least), None)
    return _Best(first, untried, in_script, at_risk)


def _sentences(best: _Best, step_s: float) -> Iterator[str]:
    if best.first is None:
        free = " without a risk" if best.at_risk else ""
        yield f"Leave it as it is: no change{free} saves {LEAST_GAIN:.0%} of its {seconds(step_s)}."
    else:
        yield _sentence("Do first", best.first, step_s)
    if best.untried is not None:
        yield _sentence("Larger, and only predicted", best.untried, step_s)
    if best.in_script is not None and best.in_script not in (best.first, best.untried):
        yield _sentence("In the script", best.in_script, step_s)
    if best.at_risk is not None:
        yield _sentence("At a risk", best.at_risk, step_s)


def _sentence(lead: str, one: Candidate, step_s: float) -> str:
    source = "predicted" if one.measured_step_s is None else "measured"
    after = seconds(None if one.step_s is None else one.step_s / one.work)
    a_sample = "a step" if one.work == 1 else "for as many samples"
    risk = f"; {one.risk}" if one.risk else ""
    return (
        f"{lead}: {one.family}, {one.planner}: {after} {a_sample} instead of "
        f"{seconds(one.baseline_step_time_s(step_s))} "
        f"({signed(-one.gain(step_s))}, {source}){risk}."
    )
