"""Synthetic Chinese dialogues by a grammar of templates, with labels that follow a planted rule.

The principle and the strategy of a therapist's turn are functions of the emotion of the elder's turn before and of
the group that the topic belongs to (`planted_rule`), so that a classifier can learn them. All labels together are as
frequent as `SHARES` says. Every third word of an emotion is rare: training dialogues never have it, only the last
fifth of a file does, so that what it means has to come from the lexicon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from csd.schema import EMOTIONS, PRINCIPLES, STRATEGIES, Dialogue, Lexicon, Turn, read_lexicon
from wirewise.errors import InputError

__all__ = ["GROUPS", "LEXICON", "SHARES", "generate", "planted_rule"]

_HERE = Path(__file__).parent
_BANK = json.loads((_HERE / "phrases.json").read_text(encoding="utf-8"))
LEXICON: Lexicon = read_lexicon(_HERE / "lexicon.tsv")
"""Emotion words that come with the example; values are made up."""
GROUPS: dict[str, list[str]] = _BANK["topics"]
"""Four groups of ten topics each."""

_COUNTS = {
    "principle": dict(zip(PRINCIPLES, (5296, 4156, 2134, 464, 2651, 1862, 281), strict=True)),
    "emotion": dict(zip(EMOTIONS, (12060, 273, 629, 62, 355, 1317, 1954, 193), strict=True)),
    "strategy": dict(zip(STRATEGIES, (7060, 4195, 293, 3022, 262, 819, 1190), strict=True)),
}
SHARES = {
    field: {label: count / sum(counts.values()) for label, count in counts.items()}
    for field, counts in _COUNTS.items()
}
"""Share of each label in all turns, by the counts reported of the paper's data."""

_THERAPIST = {
    "principle": dict(zip(PRINCIPLES, (0.09, 0.31, 0.25, 0.055, 0.12, 0.143, 0.032), strict=True)),
    "strategy": dict(zip(STRATEGIES, (0.22, 0.43, 0.033, 0.13, 0.03, 0.072, 0.085), strict=True)),
}
"""About the shares in a therapist's turns; the elder's turns have what is left of `SHARES`."""
_BAD, _GOOD = ("Disgust", "Sadness", "Fear", "Anger"), ("Like", "Happiness", "Surprise")
_FITTING = {
    "principle": {
        **dict.fromkeys(_BAD, ("Comfort", "Respect", "Inquiry", "Expression")),
        **dict.fromkeys(_GOOD, ("Enjoyment", "Reminiscence", "Expression", "Inquiry", "Respect")),
        "None": ("Inquiry", "Respect", "Expression", "None"),
    },
    "strategy": {
        **dict.fromkeys(_BAD, ("Reflection of feelings", "Providing suggestions", "Question", "None")),
        **dict.fromkeys(_GOOD, ("Question", "Self-disclosure", "Information", "Others")),
        "None": ("None", "Question", "Information", "Self-disclosure"),
    },
}


def _elder_emotions() -> dict[str, float]:
    """Shares of emotions in the elder's turns; a therapist shows none."""
    shares = {label: 2 * share for label, share in SHARES["emotion"].items() if label != "None"}
    return {"None": 1 - sum(shares.values()), **shares}


def planted_rule() -> dict[str, dict[tuple[str, str], str]]:
    """Principle and strategy by emotion of the turn before and group of the topic.

    The most frequent pairs of both come first, and take the fitting label that lacks most, without more of it than all
    turns together have.
    """
    emotions = _elder_emotions()
    rule: dict[str, dict[tuple[str, str], str]] = {}
    for field, wanted in _THERAPIST.items():
        lacking, rule[field] = dict(wanted), {}
        room = {label: 2 * share for label, share in SHARES[field].items()}
        for emotion in sorted(emotions, key=lambda name: -emotions[name]):
            for group in GROUPS:
                share = emotions[emotion] / len(GROUPS)
                fitting = [label for label in _FITTING[field][emotion] if room[label] >= share]
                label = max(fitting, key=lambda name: lacking[name])
                rule[field][emotion, group] = label
                lacking[label] -= share
                room[label] -= share
    return rule


def _elder_labels(rule: Mapping[str, Mapping[tuple[str, str], str]]) -> dict[str, dict[str, float]]:
    """Shares in the elder's turns, such that all turns together have `SHARES`."""
    emotions, found = _elder_emotions(), {}
    for field, of_pairs in rule.items():
        left = {label: 2 * share for label, share in SHARES[field].items()}
        for (emotion, _), label in of_pairs.items():
            left[label] -= emotions[emotion] / len(GROUPS)
        assert min(left.values()) >= 0, left
        found[field] = left
    return found


def generate(count: int, seed: int = 0) -> list[Dialogue]:
    """Dialogues of 8 to 14 turns, equal for equal seeds everywhere.

    Args:
        count: Number of dialogues; each 40 in a row have all topics.
        seed: Seed of all that is drawn.

    Raises:
        InputError: Fewer than one dialogue.
    """
    if count < 1:
        raise InputError(f"got {count} dialogues; expected at least one")
    rule = planted_rule()
    left = _elder_labels(rule)
    topics = [(topic, group) for group, own in GROUPS.items() for topic in own]
    order: list[int] = []
    shuffled = np.random.default_rng([seed, 0])
    while len(order) < count:
        order += shuffled.permutation(len(topics)).tolist()
    return [
        _dialogue(f"{seed}-{number}", *topics[order[number]], rule, left, number >= count * 0.8,
                  np.random.default_rng([seed, 1, number]))
        for number in range(count)
    ]  # fmt: skip


def _dialogue(
    name: str,
    topic: str,
    group: str,
    rule: Mapping[str, Mapping[tuple[str, str], str]],
    left: Mapping[str, Mapping[str, float]],
    rare: bool,
    generator: np.random.Generator,
) -> Dialogue:
    turns = []
    emotions = _elder_emotions()
    for number in range(int(generator.integers(4, 8))):
        emotion, principle, strategy = (
            _drawn(shares, generator) for shares in (emotions, left["principle"], left["strategy"])
        )
        own = _BANK["words"].get(emotion, [""])
        word = _pick([one for place, one in enumerate(own) if rare or place % 3 < 2], generator)
        kind = "plain" if emotion == "None" else "moved"
        opening = [text for text in _BANK["elder"][kind] if number or "{t}" in text]
        text = _pick(_BANK["times"], generator) + _pick(opening, generator)
        turns.append(_turn("elder", text, topic, word, principle, emotion, strategy))
        principle, strategy = (rule[field][emotion, group] for field in ("principle", "strategy"))
        text = _pick(_BANK["strategy"][strategy], generator) + _pick(_BANK["principle"][principle], generator)
        turns.append(_turn("therapist", text, topic, word or "平静", principle, "None", strategy))
    return Dialogue(name, topic, tuple(turns))


def _turn(
    speaker: str, text: str, topic: str, word: str, principle: str, emotion: str, strategy: str
) -> Turn:
    return Turn(
        speaker,
        text.format(t=topic, w=word),
        principle,
        emotion,
        strategy,
        (topic,) if "{t}" in text else (),
        (word,) if "{w}" in text and word in LEXICON else (),
    )


def _drawn(shares: Mapping[str, float], generator: np.random.Generator) -> str:
    # A sum of shares differs from 1 by rounding.
    edges = np.cumsum(list(shares.values()))
    return list(shares)[min(int(np.searchsorted(edges, generator.random(), "right")), len(edges) - 1)]


def _pick(texts: list[str], generator: np.random.Generator) -> str:
    return texts[int(generator.integers(len(texts)))]
