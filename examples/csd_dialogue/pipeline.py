"""The dialogue model in three pipeline stages: encoders, lower decoder, upper decoder.

    torchrun --nproc-per-node 3 examples/csd_dialogue/pipeline.py

The states of the encoders go to both stages of the decoder, so that messages are no chain.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn

from csd.generator import LEXICON, generate
from csd.model import DialogueModel, Sizes, answer_losses, label_losses, scores_of
from csd.samples import Batch, Samples, Settings, Vocabulary, samples_of, split
from wirewise.plans import StagePlan
from wirewise.runtime.pipeline import INPUT, LayerGraph, Pipeline

SETTINGS = Settings()
_HISTORY = 5 * SETTINGS.history


class Stage(nn.Module):
    """A part of the model that takes its share of a batch from one tensor."""

    def __init__(self, part: nn.Module, takes: str) -> None:
        super().__init__()
        self.part, self.takes = part, takes

    def forward(self, packed: Tensor, *values: Tensor) -> Tensor:
        history, answer, _, told = unpacked(packed)
        return self.part(history, *values, *((answer[:, :-1], told) if self.takes == "answer" else ()))


class Upper(Stage):
    """The last stage, which hands the scores of labels on to the loss."""

    def forward(self, packed: Tensor, *values: Tensor) -> Tensor:
        scores = super().forward(packed, *values)
        return torch.cat([torch.cat(scores_of(values[0]), -1), scores.flatten(1)], -1)


def packed(batch: Batch) -> Tensor:
    """A batch as one tensor, a row a sample; numbers of characters are exact in float32."""
    parts = (batch.history.flatten(1), batch.answer, batch.labels, batch.told)
    return torch.cat([part.float() for part in parts], 1)


def unpacked(rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """History, answer, labels and what the decoder is told."""
    history, answer, labels, told = rows.split([_HISTORY, SETTINGS.answer, 3, 3], 1)
    return history.unflatten(1, (-1, 5)), answer.long(), labels.long(), told.long()


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Loss of the last stage's output; the target is the packed batch."""
    _, answer, labels, _ = unpacked(target)
    of_labels, scores = output[:, :22], output[:, 22:].unflatten(1, (SETTINGS.answer - 1, -1))
    return label_losses(of_labels.split([7, 8, 7], -1), labels, answer_losses(scores, answer).mean()).total


def layers_of(model: DialogueModel) -> LayerGraph:
    """The three parts, and what each takes."""
    return LayerGraph(
        {
            "encoders": Stage(model.encoders, "history"),
            "lower": Stage(model.lower, "answer"),
            "upper": Upper(model.upper, "history"),
        },
        sources={"lower": (INPUT, "encoders"), "upper": (INPUT, "encoders", "lower")},
    )


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialogues", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--style", default="1f1b")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    training, _ = split(generate(options.dialogues))
    vocabulary = Vocabulary(training)
    samples = Samples(
        samples_of(training, vocabulary, LEXICON, SETTINGS),
        SETTINGS, batch=8 * options.microbatches, encoder_steps=0, steps=options.steps, fixed=True,
    )  # fmt: skip
    torch.manual_seed(0)
    layers = layers_of(DialogueModel(Sizes(len(vocabulary), width=options.width, dropout=0.0)))
    cuts = [1, 2][: dist.get_world_size() - 1]
    plan = StagePlan.from_cuts(
        layers.names, cuts, style=options.style, microbatches=options.microbatches, microbatch_size=8,
        edges=layers.edges(cuts),
    )  # fmt: skip
    pipeline = Pipeline(
        layers, plan, loss=loss_of, optimizer=lambda own: torch.optim.AdamW(own, lr=1e-3), clip=1.0
    )
    batches = (packed(samples(step, 0)) for step in range(options.steps))
    losses = []
    for result in pipeline.train((rows, rows) for rows in batches):
        if result.loss is not None:
            losses.append(result.loss)
            print(f"update {result.update}: loss {result.loss:.6f}", flush=True)
    pipeline.close()
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
