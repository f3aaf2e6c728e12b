"""A dialogue model of several sources: encoders that classify, and a decoder that attends to each of them.

Inspired by J. Jiang et al.: A Cognitive Stimulation Dialogue System with Multi-source Knowledge Fusion for Elders with
Cognitive Impairment, ACL 2023; details are a reading of its abstract and introduction, and no reproduction.

The model is three modules, each of which returns one tensor, so that they can be stages of a pipeline: `Encoders`,
`LowerDecoder` and `UpperDecoder`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from csd.samples import BEGIN, CLS, END, PAD, Batch
from csd.schema import EMOTIONS, PRINCIPLES, STRATEGIES
from wirewise.errors import InputError

__all__ = ["SOURCES", "DialogueModel", "Encoders", "LowerDecoder", "Sizes", "UpperDecoder", "scores_of"]

LABELS = {"principle": len(PRINCIPLES), "emotion": len(EMOTIONS), "strategy": len(STRATEGIES)}
SOURCES = ("mask", "knowledge", "principle", "strategy")
"""What an ablation may leave out."""


class Sizes(NamedTuple):
    """Sizes of the model."""

    vocabulary: int
    history: int = 64
    answer: int = 40
    turns: int = 2
    width: int = 64
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 4
    dropout: float = 0.1


class _Embedding(nn.Module):
    """Characters of a history with the kinds of their words and what the lexicon says, [B, L, 5] to [B, L, d]."""

    def __init__(self, sizes: Sizes, knowledge: bool) -> None:
        super().__init__()
        self.characters = nn.Embedding(sizes.vocabulary, sizes.width, padding_idx=PAD)
        self.turns = nn.Embedding(sizes.turns + 1, sizes.width)
        self.places = nn.Embedding(sizes.history, sizes.width)
        self.words = nn.Embedding(3, sizes.width)
        self.feelings = nn.Linear(2, sizes.width) if knowledge else None

    def forward(self, history: Tensor) -> Tensor:
        tokens = history[..., 0].long()
        embedded = self.characters(tokens) + self.turns(history[..., 1].long())
        embedded = embedded + self.places.weight[: tokens.shape[1]] + self.words(history[..., 2].long())
        if self.feelings is None:
            return embedded
        embedded = embedded + self.feelings(history[..., 3:])
        # The weight of a word is the mean of its valence and arousal; the knowledge vector goes to CLS.
        weight = history[..., 3:].mean(-1)
        weight = weight / weight.amax(1, keepdim=True).clamp(min=1e-6)
        share = torch.softmax(weight.masked_fill(tokens == PAD, -1e9), 1)
        vector = (share[..., None] * embedded).sum(1)
        return embedded + vector[:, None] * (tokens == CLS)[..., None]


class Encoders(nn.Module):
    """Encoders of the history, and of principle, emotion and strategy, which classify together.

    Returns, [B, 1 + L, 4 d]: scores of all labels in the first row, then the states side by side.
    """

    def __init__(self, sizes: Sizes, knowledge: bool = True) -> None:
        super().__init__()
        d = sizes.width
        self.embedding = _Embedding(sizes, knowledge)
        self.of = nn.ModuleDict({name: _encoder(sizes) for name in ("history", *LABELS)})
        # A label hangs on what the encoders of the others find too.
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(3 * d, d), nn.GELU(), nn.Linear(d, count))
                for name, count in LABELS.items()
            }
        )

    def scores(self, history: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Scores of all labels, [B, 22], and the states of the encoders that classify."""
        embedded, hidden = self.embedding(history), history[..., 0] == PAD
        states = [self.of[name](embedded, src_key_padding_mask=hidden) for name in LABELS]
        first = torch.cat([one[:, 0] for one in states], -1)
        return torch.cat([head(first) for head in self.heads.values()], -1), states

    def forward(self, history: Tensor) -> Tensor:
        scores, states = self.scores(history)
        embedded, hidden = self.embedding(history), history[..., 0] == PAD
        joined = torch.cat([self.of["history"](embedded, src_key_padding_mask=hidden), *states], -1)
        row = nn.functional.pad(scores, (0, joined.shape[-1] - scores.shape[-1]))
        return torch.cat([row[:, None], joined], 1)


def _encoder(sizes: Sizes) -> nn.TransformerEncoder:
    d = sizes.width
    layer = nn.TransformerEncoderLayer(
        d, sizes.heads, 2 * d, sizes.dropout, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, sizes.encoder_layers, nn.LayerNorm(d), enable_nested_tensor=False)


def scores_of(states: Tensor) -> list[Tensor]:
    """Scores of principle, emotion and strategy in what `Encoders` return."""
    return list(states[:, 0, : sum(LABELS.values())].split(list(LABELS.values()), -1))


class _Block(nn.Module):
    """A layer of the decoder: attention to itself, then to each source through a gate of its own."""

    def __init__(self, sizes: Sizes, sources: Collection[int]) -> None:
        super().__init__()
        d = sizes.width
        self.sources = sorted(sources)
        self.own = nn.MultiheadAttention(d, sizes.heads, sizes.dropout, batch_first=True)
        self.across = nn.ModuleList(
            nn.MultiheadAttention(d, sizes.heads, sizes.dropout, batch_first=True) for _ in self.sources
        )
        self.gates = nn.ModuleList(nn.Linear(2 * d, 1) for _ in self.sources)
        self.mix = nn.Linear(d * len(self.sources), d)
        self.forth = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.drop = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, states: Tensor, hidden: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = self.norms[0](x)
        x = x + self.drop(self.own(y, y, y, attn_mask=later, need_weights=False)[0])
        y = self.norms[1](x)
        parts = states[:, 1:].chunk(4, -1)
        seen = []
        for source, across, gate in zip(self.sources, self.across, self.gates, strict=True):
            keys = parts[source]
            found = across(y, keys, keys, key_padding_mask=hidden, need_weights=False)[0]
            seen.append(torch.sigmoid(gate(torch.cat([y, found], -1))) * found)
        x = x + self.drop(self.mix(torch.cat(seen, -1)))
        return x + self.drop(self.forth(self.norms[2](x)))


class LowerDecoder(nn.Module):
    """Embedding of the answer and of the labels, and the lower layers, to [B, R, d]."""

    def __init__(self, sizes: Sizes, sources: Collection[int]) -> None:
        super().__init__()
        self.characters = nn.Embedding(sizes.vocabulary, sizes.width, padding_idx=PAD)
        self.places = nn.Embedding(sizes.answer, sizes.width)
        # The sources after the history are in the order of labels.
        self.labels = nn.ModuleDict(
            {
                name: nn.Embedding(count, sizes.width)
                for n, (name, count) in enumerate(LABELS.items(), 1)
                if n in sources
            }
        )
        self.blocks = nn.ModuleList(_Block(sizes, sources) for _ in range(sizes.decoder_layers // 2))

    def forward(self, history: Tensor, states: Tensor, answer: Tensor, told: Tensor) -> Tensor:
        hidden = history[..., 0] == PAD
        x = self.characters(answer) + self.places.weight[: answer.shape[1]]
        for name, scores, known in zip(LABELS, scores_of(states), told.unbind(-1), strict=True):
            if name in self.labels:
                x = x + self.labels[name](torch.where(known < 0, scores.argmax(-1), known))[:, None]
        for block in self.blocks:
            x = block(x, states, hidden)
        return x


class UpperDecoder(nn.Module):
    """The upper layers, and scores of the next characters, [B, R, V]."""

    def __init__(self, sizes: Sizes, sources: Collection[int]) -> None:
        super().__init__()
        layers = sizes.decoder_layers - sizes.decoder_layers // 2
        self.blocks = nn.ModuleList(_Block(sizes, sources) for _ in range(layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, history: Tensor, states: Tensor, x: Tensor) -> Tensor:
        hidden = history[..., 0] == PAD
        for block in self.blocks:
            x = block(x, states, hidden)
        return self.head(self.norm(x))


class Losses(NamedTuple):
    """Mean losses of a batch: a mean over samples, of the mean over characters for answers."""

    principle: Tensor
    emotion: Tensor
    strategy: Tensor
    answer: Tensor | None
    """None where the decoder is not trained."""

    @property
    def total(self) -> Tensor:
        """What is trained on."""
        labels = self.principle + self.emotion + self.strategy
        return labels if self.answer is None else labels + self.answer


class DialogueModel(nn.Module):
    """Encoders and decoder together.

    Args:
        sizes: Sizes of the layers.
        without: What of `SOURCES` is left out; "mask" is of the batches.

    Raises:
        InputError: An unknown source, or fewer than two layers of the decoder.
    """

    def __init__(self, sizes: Sizes, without: Collection[str] = ()) -> None:
        super().__init__()
        if unknown := set(without) - set(SOURCES):
            raise InputError(f"got without={sorted(unknown)}; expected some of: {', '.join(SOURCES)}")
        if sizes.decoder_layers < 2:
            raise InputError(f"got {sizes.decoder_layers} layers of the decoder; expected at least 2")
        sources = [0, *(n for n, name in enumerate(LABELS, 1) if name not in without and name != "emotion")]
        self.sizes = sizes
        self.encoders = Encoders(sizes, "knowledge" not in without)
        self.lower = LowerDecoder(sizes, sources)
        self.upper = UpperDecoder(sizes, sources)

    def forward(self, batch: Batch) -> Losses:
        """Losses of a batch."""
        if not batch.joint:
            scores = self.encoders.scores(batch.history)[0].split(list(LABELS.values()), -1)
            return label_losses(scores, batch.labels, None)
        states = self.encoders(batch.history)
        x = self.lower(batch.history, states, batch.answer[:, :-1], batch.told)
        scores = self.upper(batch.history, states, x)
        return label_losses(scores_of(states), batch.labels, answer_losses(scores, batch.answer).mean())

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """The likeliest answers, character by character, [B, R], and scores of labels."""
        states = self.encoders(batch.history)
        found = torch.full((len(batch.history), 1), BEGIN)
        over = torch.zeros(len(found), dtype=torch.bool)
        while found.shape[1] < self.sizes.answer and not over.all():
            x = self.lower(batch.history, states, found, torch.full_like(batch.told, -1))
            following = self.upper(batch.history, states, x)[:, -1].argmax(-1).masked_fill(over, PAD)
            over |= following == END
            found = torch.cat([found, following[:, None]], 1)
        return found[:, 1:], scores_of(states)


def label_losses(scores: list[Tensor] | tuple[Tensor, ...], labels: Tensor, answer: Tensor | None) -> Losses:
    """Losses by scores of labels."""
    return Losses(*(cross_entropy(one, labels[:, n]) for n, one in enumerate(scores)), answer)


def answer_losses(scores: Tensor, answer: Tensor) -> Tensor:
    """Mean loss of each sample over the characters of its answer, [B]."""
    following = answer[:, 1:]
    loss = cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="none").view_as(following)
    there = following != PAD
    return (loss * there).sum(1) / there.sum(1)
