"""Batches made of dialogues: characters, feelings of words, progressive masks, an order that needs no memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from csd.schema import EMOTIONS, PRINCIPLES, STRATEGIES, Dialogue, Lexicon
from wirewise.errors import InputError

__all__ = ["Batch", "Sample", "Samples", "Settings", "Vocabulary", "samples_of", "split"]

PAD, UNKNOWN, CLS, BEGIN, END, ELDER, THERAPIST = range(7)
_SPECIAL = 7
NO_WORD, KEYWORD, EMOTION_WORD = range(3)


class Settings(NamedTuple):
    """What a training is told about its data."""

    history: int = 64
    """Most characters of what was said before."""
    answer: int = 40
    """Most characters of an answer."""
    turns: int = 2
    """Most turns of what was said before."""
    mask_rates: tuple[float, ...] = (0.0, 0.15, 0.3, 0.45)
    """Shares of knowledge words that the stages of the progressive mask hide."""


class Vocabulary:
    """Characters of training dialogues; whatever else comes is unknown, as a hidden character is.

    Args:
        dialogues: Dialogues of the training part.
    """

    def __init__(self, dialogues: Sequence[Dialogue]) -> None:
        self.characters = sorted({c for one in dialogues for turn in one.turns for c in turn.text})
        self._numbers = {c: number for number, c in enumerate(self.characters, _SPECIAL)}

    def __len__(self) -> int:
        return _SPECIAL + len(self.characters)

    def encode(self, text: str) -> list[int]:
        """Numbers of characters."""
        return [self._numbers.get(c, UNKNOWN) for c in text]

    def decode(self, numbers: Sequence[int]) -> str:
        """Characters of numbers up to the end of an answer."""
        text = ""
        for number in numbers:
            if number == END:
                break
            text += self.characters[number - _SPECIAL] if number >= _SPECIAL else "□"
        return text


class Sample(NamedTuple):
    """A therapist's turn with what was said before it."""

    tokens: NDArray[np.int64]
    """Characters of the history after `CLS`, with a sign of the speaker before each turn, [L]."""
    turn: NDArray[np.int64]
    """Turns from the character to the answer; 0 for `CLS`, [L]."""
    feeling: NDArray[np.float32]
    """Valence and arousal of the word that a character is in, 0 to 1, [L, 2]."""
    word: NDArray[np.int64]
    """Whether a character is in an emotion word, a keyword or neither, [L]."""
    answer: NDArray[np.int64]
    """Characters of the answer between `BEGIN` and `END`, [R]."""
    labels: tuple[int, int, int]
    """Principle of the answer, emotion of the turn before, strategy of the answer."""
    said: tuple[str, str]
    """The turn before, and the answer, for people to read."""


class Batch(NamedTuple):
    """Samples side by side, filled up with `PAD`."""

    history: Tensor
    """Character, turn, kind of word, valence and arousal, [B, L, 5]."""
    answer: Tensor
    """Characters of answers, [B, R]."""
    labels: Tensor
    """Principle, emotion and strategy, [B, 3]."""
    told: Tensor
    """Labels that the decoder is told, -1 where it takes its own predictions, [B, 3]."""
    joint: bool
    """Whether the decoder is trained too."""


def split(dialogues: Sequence[Dialogue]) -> tuple[list[Dialogue], list[Dialogue]]:
    """Training dialogues, four of five, and those that the metrics are of; a tenth in between is for choices.

    Raises:
        InputError: Fewer than ten dialogues.
    """
    if len(dialogues) < 10:
        raise InputError(f"got {len(dialogues)} dialogues; expected ten at least, of which one is tested on")
    return list(dialogues[: len(dialogues) * 8 // 10]), list(dialogues[len(dialogues) * 9 // 10 :])


def samples_of(
    dialogues: Sequence[Dialogue], vocabulary: Vocabulary, lexicon: Lexicon, settings: Settings
) -> list[Sample]:
    """One sample for each therapist's turn that follows a turn of the elder."""
    return [
        _sample(dialogue, place, vocabulary, lexicon, settings)
        for dialogue in dialogues
        for place, turn in enumerate(dialogue.turns)
        if place and (turn.speaker, dialogue.turns[place - 1].speaker) == ("therapist", "elder")
    ]


def _sample(
    dialogue: Dialogue, place: int, vocabulary: Vocabulary, lexicon: Lexicon, settings: Settings
) -> Sample:
    tokens, turns, feelings, words = [], [], [], []
    for back in range(min(settings.turns, place), 0, -1):
        said = dialogue.turns[place - back]
        feeling, word = _words(said.text, said.keywords, said.emo_words, lexicon)
        tokens += [ELDER if said.speaker == "elder" else THERAPIST, *vocabulary.encode(said.text)]
        turns += [back] * (1 + len(said.text))
        feelings += [(0.0, 0.0), *feeling]
        words += [NO_WORD, *word]
    kept = settings.history - 1
    answer, before = dialogue.turns[place], dialogue.turns[place - 1]
    return Sample(
        np.array([CLS, *tokens[-kept:]]),
        np.array([0, *turns[-kept:]]),
        np.array([(0.0, 0.0), *feelings[-kept:]], np.float32),
        np.array([NO_WORD, *words[-kept:]]),
        np.array([BEGIN, *vocabulary.encode(answer.text)[: settings.answer - 2], END]),
        (
            PRINCIPLES.index(answer.principle),
            EMOTIONS.index(before.emotion),
            STRATEGIES.index(answer.strategy),
        ),
        (before.text, answer.text),
    )


def _words(
    text: str, keywords: Sequence[str], emotion_words: Sequence[str], lexicon: Lexicon
) -> tuple[list[tuple[float, float]], list[int]]:
    """Feelings and kinds of the characters of a turn."""
    feelings, kinds = [(0.0, 0.0)] * len(text), [NO_WORD] * len(text)
    for kind, words in ((KEYWORD, keywords), (EMOTION_WORD, emotion_words)):
        for one in words:
            start = text.find(one)
            while start >= 0:
                known = lexicon.get(one)
                for at in range(start, start + len(one)):
                    kinds[at] = kind
                    if known is not None:
                        feelings[at] = (known.valence / 9, known.arousal / 9)
                start = text.find(one, start + len(one))
    return feelings, kinds


class Samples:
    """Batches of samples by step and share: the order of a pass and all masks are functions of seed, step and sample.

    Args:
        samples: Samples of the training part.
        settings: Lengths and mask rates.
        batch: Samples of a global batch.
        encoder_steps: Steps in which the encoders alone are trained.
        steps: Steps in all.
        seed: Seed of order, masks and of which labels the decoder is told.
        fixed: Whether all batches are as long as the settings allow.

    Attributes:
        shares: Equal shares of a global batch, one for each rank at the start.

    Raises:
        InputError: Fewer samples than a batch.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        settings: Settings,
        *,
        batch: int,
        encoder_steps: int,
        steps: int,
        seed: int = 0,
        fixed: bool = False,
    ) -> None:
        if not 1 <= batch <= len(samples):
            raise InputError(
                f"got {len(samples)} samples and batches of {batch}; expected at least one batch"
            )
        self._samples, self._settings, self._fixed = samples, settings, fixed
        self._batch, self.shares, self._seed = batch, 1, seed
        self._encoder_steps, self._steps = encoder_steps, steps
        self._each = len(samples) // batch
        self._order = lru_cache(2)(self._drawn_order)

    def __call__(self, step: int, share: int) -> Batch:
        """The batch of one share of a step.

        Raises:
            InputError: The shares of a batch are not equal.
        """
        if self._batch % self.shares:
            raise InputError(
                f"got batches of {self._batch} for {self.shares} ranks; expected a multiple of them"
            )
        epoch, place = divmod(step, self._each)
        own = self._order(epoch)[place][share :: self.shares].tolist()
        joint = step >= self._encoder_steps
        rates = self._settings.mask_rates
        stage = len(rates) * step // max(self._encoder_steps, 1)
        ramp = (step - self._encoder_steps) / max(self._steps - self._encoder_steps, 1)
        return self.collate(own, step, 0.0 if joint else rates[stage], joint, 1 - ramp)

    def collate(self, own: Sequence[int], step: int, rate: float, joint: bool, told: float) -> Batch:
        """Samples side by side.

        Args:
            own: Numbers of the samples.
            step: Number that masks are drawn with.
            rate: Share of knowledge words that are hidden.
            joint: Whether the decoder is trained too.
            told: Probability with which the decoder is told the labels of a sample.
        """
        found = [self._samples[number] for number in own]
        length = self._settings.history if self._fixed else max(len(one.tokens) for one in found)
        rows = self._settings.answer if self._fixed else max(len(one.answer) for one in found)
        history = np.zeros((len(own), length, 5), np.float32)
        answer = np.zeros((len(own), rows), np.int64)
        labels = np.array([one.labels for one in found], np.int64)
        given = labels.copy()
        for row, (number, one) in enumerate(zip(own, found, strict=True)):
            generator = np.random.default_rng([self._seed, step, number])
            history[row, : len(one.tokens), 0] = _hidden(one, rate, generator)
            history[row, : len(one.tokens), 1] = one.turn
            history[row, : len(one.tokens), 2] = one.word
            history[row, : len(one.tokens), 3:] = one.feeling
            answer[row, : len(one.answer)] = one.answer
            if generator.random() >= told:
                given[row] = -1
        return Batch(*map(torch.from_numpy, (history, answer, labels, given)), joint)

    def _drawn_order(self, epoch: int) -> NDArray[np.int64]:
        """Samples of each batch of a pass, [batches, batch]: samples of similar length together, batches shuffled."""
        generator = np.random.default_rng([self._seed, epoch])
        order = generator.permutation(len(self._samples))[: self._each * self._batch]
        lengths = np.array([len(self._samples[number].tokens) for number in order])
        order = order[np.argsort(lengths // 16, kind="stable")]
        return generator.permutation(order.reshape(self._each, self._batch))


def _hidden(sample: Sample, rate: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Characters of a history in which a share of the knowledge words is hidden, emotion words first."""
    words = _spans(sample.word)
    if not words or not rate:
        return sample.tokens
    order = sorted(generator.permutation(len(words)).tolist(), key=lambda one: -words[one][0])
    tokens = sample.tokens.copy()
    # A fraction of a word is hidden as often.
    for one in order[: int(rate * len(words) + generator.random())]:
        _, start, end = words[one]
        tokens[start:end] = UNKNOWN
    return tokens


def _spans(kinds: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Kind, start and end of each knowledge word."""
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    return [(int(kinds[a]), a, b) for a, b in pairwise(edges) if kinds[a] != NO_WORD]
