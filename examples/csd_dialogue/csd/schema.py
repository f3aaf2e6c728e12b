"""Dialogues as lines of JSON, and the lexicon of emotion words."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from wirewise.errors import InputError

__all__ = ["EMOTIONS", "PRINCIPLES", "STRATEGIES", "Dialogue", "Feeling", "Lexicon", "Turn", "read_dialogues",
           "read_lexicon", "write_dialogues"]  # fmt: skip

Principle = Literal["None", "Inquiry", "Respect", "Reminiscence", "Expression", "Enjoyment", "Comfort"]
Emotion = Literal["None", "Disgust", "Sadness", "Fear", "Surprise", "Like", "Happiness", "Anger"]
Strategy = Literal["None", "Question", "Reflection of feelings", "Self-disclosure", "Providing suggestions",
                   "Information", "Others"]  # fmt: skip
PRINCIPLES, EMOTIONS, STRATEGIES = Principle.__args__, Emotion.__args__, Strategy.__args__


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one of both says."""

    speaker: Literal["elder", "therapist"]
    text: str
    principle: Principle = "None"
    emotion: Emotion = "None"
    strategy: Strategy = "None"
    keywords: tuple[str, ...] = ()
    emo_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for word in (*self.keywords, *self.emo_words):
            if not word or word not in self.text:
                raise ValueError(f"the word {word!r} is not in the text {self.text!r}")


class Dialogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a file."""

    id: str
    topic: str
    turns: tuple[Turn, ...]


class Feeling(NamedTuple):
    """Valence and arousal of a word, 1 to 9."""

    valence: float
    arousal: float


Lexicon = dict[str, Feeling]


def read_dialogues(path: str | os.PathLike[str]) -> list[Dialogue]:
    """Read a file of dialogues.

    Raises:
        InputError: No such file, a line that is no dialogue, or none at all; the message names the line.
    """
    found = []
    for number, line in enumerate(_lines(path), 1):
        try:
            found.append(msgspec.json.decode(line, type=Dialogue))
        except msgspec.MsgspecError as error:
            raise InputError(
                f"{path}, line {number}: {error}; expected a dialogue as the README says"
            ) from error
    if not found:
        raise InputError(f"{path}: is empty; expected a dialogue on each line")
    return found


def write_dialogues(dialogues: Iterable[Dialogue], path: str | os.PathLike[str]) -> None:
    """Write what `read_dialogues` reads."""
    Path(path).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in dialogues))


def read_lexicon(path: str | os.PathLike[str]) -> Lexicon:
    """Read lines of word, valence and arousal, separated by tabs; lines that start with # are comments.

    Raises:
        InputError: No such file, a line of another form, or a word twice; the message names the line.
    """
    found: Lexicon = {}
    for number, line in enumerate(_lines(path), 1):
        if not line or line.startswith("#"):
            continue
        try:
            word, valence, arousal = line.split("\t")
            feeling = Feeling(float(valence), float(arousal))
        except ValueError:
            feeling, word = Feeling(0, 0), ""
        if not word or word in found or not all(1 <= value <= 9 for value in feeling):
            raise InputError(
                f"{path}, line {number}: {line!r}; expected a new word, valence and arousal of 1 to 9, between tabs"
            )
        found[word] = feeling
    return found


def _lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}; expected a file of text in UTF-8") from error
