"""Trains small models on real data under codecs, all ranks in one process, and writes what came of it."""

import importlib.util
import sys
from pathlib import Path

import msgspec
import torch
from torch import nn

from wirewise.codec.gradients import Segments, make
from wirewise.files import atomic_file

RANKS = 2
LENGTH = 32
WORDS = 8
"""Words of a description that the transformer reads; one package in two hundred has more."""
LAST = 100
"""Steps at the end whose loss counts."""
TESTED = 4000
RAMP = (0.25, 0.0625, 0.015625)
"""Ratios of deep gradient compression's warm-up (Lin et al., ICLR 2018, section 3.3)."""
MODULES = (
    "argparse",
    "ast",
    "datetime",
    "decimal",
    "difflib",
    "doctest",
    "inspect",
    "pickletools",
    "tarfile",
    "typing",
)


def windows(text):
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH)


def split(x, y):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    cut = len(x) * 4 // 5
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


def module_data():
    """Bytes of modules of the standard library, and the number of the module."""
    found = [windows(Path(importlib.util.find_spec(name).origin).read_bytes()) for name in MODULES]
    labels = torch.cat([torch.full((len(rows),), number) for number, rows in enumerate(found)])
    return split(torch.cat(found), labels)


def package_data():
    """Words of the descriptions of Debian packages, and the section of each."""
    from wirewise.graph import load

    graph = load("debian")
    return split(torch.from_numpy(graph.dense_x()), torch.from_numpy(graph.y).long())


def word_data():
    """Words of the descriptions of Debian packages as numbers, 0 where there are fewer, and the section of each."""
    from wirewise.graph import load

    graph = load("debian")
    features = torch.from_numpy(graph.dense_x())
    packages, words = torch.nonzero(features).unbind(dim=1)
    place = torch.arange(len(words)) - torch.searchsorted(packages, packages)
    read = place < WORDS
    x = torch.zeros(len(features), WORDS, dtype=torch.long)
    x[packages[read], place[read]] = words[read] + 1
    return split(x, torch.from_numpy(graph.y).long())


class Transformer(nn.Module):
    """Reads words as a set: without places, and with the mean of what it makes of them."""

    def __init__(self, width=32, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(1001, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 58)

    def forward(self, words):
        return self.head(self.norm(self.blocks(self.tokens(words))).mean(dim=1))


class Convolutions(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens = nn.Embedding(256, 16)
        self.body = nn.Sequential(
            nn.Conv1d(16, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
            nn.Linear(width, len(MODULES)),
        )  # fmt: skip

    def forward(self, codes):
        return self.body(self.tokens(codes).transpose(1, 2))


def perceptron():
    return nn.Sequential(nn.LazyLinear(96), nn.ReLU(), nn.Linear(96, 58))


MODELS = {
    "transformer": (Transformer, word_data, 16),
    "cnn": (Convolutions, module_data, 16),
    "mlp": (perceptron, package_data, 32),
}
"""Model, data, and samples of a rank's batch."""


class Exchange:
    """Gradients of ranks in one process: coded, added up and decoded as on the wire, in groups of tensors.

    Args:
        named: Name and tensor of each parameter, in the order of back-propagation.
        codec: Name, or "none".
        options: Options of the codec.
        feedback: Whether there is a residual.
        alone: Whether there is nothing but a residual, where a codec keeps more.
        block: Elements of a segment.
        groups: 1, or 0 for a group for each tensor.
        ramp: Steps in which the ratio of a sparse codec falls to its own, in the stages of `RAMP`; 0: none.
        seed: Seed of the draws.
    """

    def __init__(
        self, named, codec, *, options=None, feedback=True, alone=False, block=None, groups=1, ramp=0, seed=0
    ):
        self._codec = None if codec == "none" else make(codec, **(options or {}))
        self._stages = dict(zip(range(0, ramp, max(1, ramp // len(RAMP))), RAMP, strict=False))
        self._stages |= {ramp: self._codec.ratio} if ramp else {}
        self._seed = seed
        sizes = [tensor.numel() for _, tensor in named]
        ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        parts = [range(len(named))] if groups == 1 else [range(i, i + 1) for i in range(len(named))]
        kept = self._codec is not None and (feedback or self._codec.memory != "residual")
        self._groups = [
            (
                slice(ends[part[0]], ends[part[-1] + 1]),
                Segments(
                    [sizes[i] for i in part],
                    ids=list(part),
                    block=block,
                    shapes=[named[i][1].shape for i in part],
                ),
            )
            for part in parts
        ]
        count = (1 if alone else len(self._codec.memories)) if kept else 0
        self._memories = [torch.zeros(count, ends[-1]) for _ in range(RANKS)]

    def mean(self, gradients, step):
        """Mean gradient of the ranks as they all decode it, float32 [d]; gradients are one [d] of each rank."""
        if step in self._stages:
            self._codec.ratio = self._stages[step]
        if self._codec is None:
            return torch.stack(gradients).mean(dim=0)
        out = torch.empty_like(gradients[0])
        for part, segments in self._groups:
            own = [self._memory(memory, part) for memory in self._memories]
            self._group([one[part] for one in gradients], own, segments, out[part], step)
        return out

    def _memory(self, memory, part):
        """Buffers of a group: views, which the codec writes."""
        views = [row[part] for row in memory]
        return views if len(views) > 1 else views[0] if views else None

    def _group(self, gradients, memories, segments, out, step):
        codec, size = self._codec, self._codec.size_bytes(segments)
        payloads = torch.empty(RANKS, size, dtype=torch.uint8)
        for rank, (gradient, memory) in enumerate(zip(gradients, memories, strict=True)):
            codec.encode(gradient, memory, segments, payloads[rank], seed=self._seed, step=step, rank=rank)
        if codec.linear:
            self._all_reduce(gradients, memories, segments, payloads)
            payloads = payloads[:1]
        codec.decode_sum(payloads, segments, out, scale=1 / RANKS, seed=self._seed, step=step)

    def _all_reduce(self, gradients, memories, segments, payloads):
        codec = self._codec
        for number, part in enumerate(codec.parts(segments)):
            rows = [payload[part].view(codec.wire_dtype) for payload in payloads]
            total = torch.stack(rows).sum(dim=0)
            for rank, row in enumerate(rows):
                row.copy_(total)
                codec.advance(number, payloads[rank], gradients[rank], memories[rank], segments)


def share_of_rate(step, steps):
    """Up in a tenth of the steps, then down to nothing."""
    rise = steps // 10
    return min((step + 1) / rise, (steps - step) / (steps - rise))


def train(data, model, codec, *, seed, steps, rate, feedback=True, alone=False, **exchange):
    """Mean training loss of the last steps, and accuracy on what was not trained on."""
    make_net, _, batch = MODELS[model]
    (x, y), (test_x, test_y) = data
    torch.manual_seed(seed)
    net = make_net()
    net(test_x[:2])
    # Deep gradient compression keeps the momentum itself, where it has a memory.
    corrected = codec == "dgc" and feedback and not alone
    momentum = 0.0 if corrected else 0.9
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(step, steps))
    named = list(reversed(list(net.named_parameters())))
    ramp = steps // 5 if corrected else 0
    wire = Exchange(named, codec, feedback=feedback, alone=alone, ramp=ramp, seed=seed, **exchange)
    random = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(RANKS)]
    losses = []
    for step in range(steps):
        found = [gradient_of(net, named, x, y, torch.randint(len(x), (batch,), generator=r)) for r in random]
        losses.append(sum(loss for loss, _ in found) / RANKS)
        mean = wire.mean([gradient for _, gradient in found], step)
        for (_, tensor), part in zip(named, mean.split([t.numel() for _, t in named]), strict=True):
            tensor.grad = part.view_as(tensor)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = (net(test_x[:TESTED]).argmax(dim=1) == test_y[:TESTED]).float().mean()
    return sum(losses[-LAST:]) / len(losses[-LAST:]), float(right)


def gradient_of(net, named, x, y, index):
    """Loss of a batch, and its gradient, flat."""
    loss = nn.functional.cross_entropy(net(x[index]), y[index])
    found = torch.autograd.grad(loss, [tensor for _, tensor in named])
    return loss.item(), torch.cat([part.flatten() for part in found])


def main():
    """Carry out the jobs of a file, each into a file of its own."""
    folder, share = Path(sys.argv[1]), slice(int(sys.argv[2]), None, int(sys.argv[3]))
    torch.set_num_threads(1)
    jobs = msgspec.json.decode((folder / "jobs.json").read_bytes())
    known = {}
    for number, job in list(enumerate(jobs))[share]:
        model = job["model"]
        if model not in known:
            known[model] = MODELS[model][1]()
        loss, accuracy = train(known[model], **job)
        with atomic_file(folder / f"found-{number}.json") as file:
            file.write(msgspec.json.encode({"loss": loss, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
