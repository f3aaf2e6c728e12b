"""Metrics of answers and of labels, over characters as is usual for Chinese."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import torch

from csd.model import LABELS, DialogueModel, answer_losses, scores_of
from csd.samples import Samples, Vocabulary

__all__ = ["Answered", "Metrics", "accuracy", "bleu", "distinct", "evaluate", "macro_f1"]


class Metrics(NamedTuple):
    """What a trained model comes to on dialogues that it has not seen."""

    perplexity: float
    bleu2: float
    bleu4: float
    distinct1: float
    distinct2: float
    embedding_average: float
    """Mean cosine between the mean embeddings of answers and of references, by the model's own characters."""
    accuracy: dict[str, float]
    macro_f1: dict[str, float]


class Answered(NamedTuple):
    """An answer beside the one of the data."""

    before: str
    answer: str
    reference: str


def ngrams(text: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """Pieces of n characters, and how often each is there."""
    return Counter(tuple(text[at : at + n]) for at in range(len(text) - n + 1))


def bleu(answers: Sequence[str], references: Sequence[str], n: int) -> float:
    """BLEU of a whole corpus up to pieces of n characters, one reference each, without smoothing."""
    hits, counts = [0] * n, [0] * n
    for answer, reference in zip(answers, references, strict=True):
        for size in range(1, n + 1):
            own = ngrams(answer, size)
            hits[size - 1] += sum((own & ngrams(reference, size)).values())
            counts[size - 1] += sum(own.values())
    if not all(hits):
        return 0.0
    length, wanted = sum(map(len, answers)), sum(map(len, references))
    brevity = min(0.0, 1 - wanted / length)
    return exp(brevity + sum(log(hit / count) for hit, count in zip(hits, counts, strict=True)) / n)


def distinct(answers: Sequence[str], n: int) -> float:
    """Different pieces of n characters over all of them; 0 without any."""
    found: Counter[tuple[str, ...]] = Counter()
    for answer in answers:
        found += ngrams(answer, n)
    return len(found) / max(sum(found.values()), 1)


def accuracy(guessed: Sequence[int], labels: Sequence[int]) -> float:
    """Share of labels that were guessed."""
    return sum(a == b for a, b in zip(guessed, labels, strict=True)) / len(labels)


def macro_f1(guessed: Sequence[int], labels: Sequence[int]) -> float:
    """Mean F1 over the classes that occur among the labels."""
    scores = []
    for label in set(labels):
        hit = sum(a == b == label for a, b in zip(guessed, labels, strict=True))
        scores.append(2 * hit / (sum(a == label for a in guessed) + sum(b == label for b in labels)))
    return sum(scores) / len(scores)


@torch.no_grad()
def evaluate(
    model: DialogueModel,
    samples: Samples,
    count: int,
    vocabulary: Vocabulary,
    said: Sequence[tuple[str, str]],
) -> tuple[Metrics, list[Answered]]:
    """Metrics of a model on its own predictions of labels, and its answers.

    Args:
        model: Model to judge.
        samples: Samples that it has not seen.
        count: Number of them.
        vocabulary: Characters that are known.
        said: The turn before and the reference of each sample; none: no answers are made, their metrics are 0.
    """
    training = model.training
    model.eval()
    guessed: dict[str, list[int]] = {name: [] for name in LABELS}
    true: dict[str, list[int]] = {name: [] for name in LABELS}
    answers, losses, cosines = [], [], []
    embed = model.lower.characters.weight
    for first in range(0, count, 64):
        batch = samples.collate(range(first, min(first + 64, count)), 0, 0.0, True, 0.0)
        states = model.encoders(batch.history)
        x = model.lower(batch.history, states, batch.answer[:, :-1], batch.told)
        losses.append(answer_losses(model.upper(batch.history, states, x), batch.answer))
        for number, (name, scores) in enumerate(zip(LABELS, scores_of(states), strict=True)):
            guessed[name] += scores.argmax(-1).tolist()
            true[name] += batch.labels[:, number].tolist()
        if not said:
            continue
        found, _ = model.answer(batch)
        answers += [vocabulary.decode(row) for row in found.tolist()]
        own, wanted = (embed[rows].mean(1) for rows in (found, batch.answer[:, 1:]))
        cosines.append(torch.cosine_similarity(own, wanted, -1))
    model.train(training)
    references = [reference for _, reference in said]
    metrics = Metrics(
        exp(torch.cat(losses).mean().item()),
        bleu(answers, references, 2),
        bleu(answers, references, 4),
        distinct(answers, 1),
        distinct(answers, 2),
        torch.cat(cosines).mean().item() if cosines else 0.0,
        {name: accuracy(guessed[name], true[name]) for name in LABELS},
        {name: macro_f1(guessed[name], true[name]) for name in LABELS},
    )
    return metrics, [
        Answered(before, answer, reference) for (before, reference), answer in zip(said, answers, strict=True)
    ]
