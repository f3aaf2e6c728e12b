"""One rank: trains small models on real data under codecs, and writes what came of it."""

import importlib.util
import pydoc_data.topics
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from wirewise.files import atomic_file
from wirewise.plans import Bucket, FusionPlan
from wirewise.runtime.data_parallel import parallel
from wirewise.runtime.data_parallel.compression import Compression

LENGTH = 64
LAST = 25
"""Steps at the end whose loss counts."""
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


def text_data():
    """Bytes of the topics of Python's `help`, and those that follow them."""
    x = windows("".join(pydoc_data.topics.topics.values()).encode())
    return split(x[:, :-1], x[:, 1:])


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


class Transformer(nn.Module):
    def __init__(self, width=48, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.zeros(LENGTH - 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH - 1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, codes):
        hidden = self.tokens(codes) + self.places
        return self.head(self.norm(self.blocks(hidden, mask=self.mask, is_causal=True))).transpose(1, 2)


class Convolutions(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.tokens = nn.Embedding(256, 24)
        self.body = nn.Sequential(
            nn.Conv1d(24, width, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
            nn.Linear(width, len(MODULES)),
        )  # fmt: skip

    def forward(self, codes):
        return self.body(self.tokens(codes).transpose(1, 2))


def perceptron():
    return nn.Sequential(nn.LazyLinear(96), nn.ReLU(), nn.Linear(96, 58))


MODELS = {
    "transformer": (Transformer, text_data, 0.1, 8),
    "cnn": (Convolutions, module_data, 0.05, 16),
    "mlp": (perceptron, package_data, 0.2, 32),
}
"""Model, data, learning rate, and samples of a rank's batch."""


def plan_of(net, codec, groups):
    """All parameters in so many groups, in the reverse order of the model."""
    named = [(name, 4 * p.numel()) for name, p in reversed(list(net.named_parameters()))]
    parts = [named] if groups == 1 else [[one] for one in named]
    linear = codec in ("none", "fp16", "bf16", "randomk", "powersgd")
    buckets = tuple(
        Bucket(
            parameters=tuple(name for name, _ in part),
            size_bytes=sum(size for _, size in part),
            codec=codec,
            scheme="all_reduce" if linear else "all_gather",
        )
        for part in parts
    )
    return FusionPlan(world_size=dist.get_world_size(), planner="given", buckets=buckets)


def share_of_rate(step, steps):
    """Up in a tenth of the steps, then down to nothing."""
    rise = steps // 10
    return min((step + 1) / rise, (steps - step) / (steps - rise))


def train(data, model, codec, *, seed, steps, feedback=True, options=None, block=None, groups=1, rate=1.0):
    """Mean training loss of the last steps, and accuracy on what was not trained on."""
    make, _, learning_rate, batch = MODELS[model]
    (x, y), (test_x, test_y) = data
    torch.manual_seed(seed)
    net = make()
    net(test_x[:2])
    # Deep gradient compression keeps the momentum itself, where it has a memory.
    momentum = 0.0 if codec == "dgc" and feedback else 0.9
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate * rate, momentum=momentum)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(step, steps))
    compression = Compression(
        options={codec: options} if options else {}, feedback=feedback, block=block, seed=seed
    )
    wrapped = parallel(net, plan_of(net, codec, groups), optimizer, compression=compression)
    rank, losses = dist.get_rank(), []
    random = torch.Generator().manual_seed(1000 * seed + rank)
    for step in range(steps):
        index = torch.randint(len(x), (batch,), generator=random)
        loss = nn.functional.cross_entropy(wrapped(x[index]), y[index])
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step >= steps - LAST:
            losses.append(loss.item())
    wrapped.reducer.close()
    with torch.no_grad():
        right = (net(test_x[:2000]).argmax(dim=1) == test_y[:2000]).float().mean()
    mean = torch.tensor([sum(losses) / len(losses)])
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size(), float(right)


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    jobs = msgspec.json.decode((folder / "jobs.json").read_bytes())
    known = {}
    for number, job in enumerate(jobs):
        model = job["model"]
        if model not in known:
            known[model] = MODELS[model][1]()
        loss, accuracy = train(known[model], **job)
        if dist.get_rank() == 0:
            with atomic_file(folder / f"found-{number}.json") as file:
                file.write(msgspec.json.encode({"loss": loss, "accuracy": accuracy}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
