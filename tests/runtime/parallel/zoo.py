"""Models and single layers as users write them, each with a batch and a loss: what a plan has to compute or refuse."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """A layer, or a function, behind and in front of trained ones; all of its outputs count."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.linspace(0.5, 1.5, shape[-1]))

    def forward(self, x):
        found = self.function(x * self.scale)
        return found[0] if isinstance(found, tuple) else found


def layer(function, *shape, loss=lambda model, inputs: model(*inputs).square().sum()):
    """A case of a layer: model, inputs and loss."""
    torch.manual_seed(0)
    made = function() if isinstance(function, type) else function
    return Layer(made, *shape), (torch.randn(*shape),), loss


def bags(mode):
    """Bags of embeddings in front of a trained layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(16, 8, mode=mode), nn.Linear(8, 4))
    return model, (torch.randint(16, (8, 4)),), lambda model, inputs: model(*inputs).square().sum()


IMAGE, ROWS, TEXT = (8, 4, 6, 6), (8, 8), (8, 6, 8)

LAYERS = {
    "conv1d": lambda: layer(nn.Conv1d(4, 8, 3), 8, 4, 16),
    "conv2d in groups": lambda: layer(nn.Conv2d(4, 8, 3, groups=2), *IMAGE),
    "conv3d": lambda: layer(nn.Conv3d(2, 4, 3), 4, 2, 6, 6, 6),
    "transposed conv": lambda: layer(nn.ConvTranspose2d(4, 8, 2, 2), *IMAGE),
    "batch norm": lambda: layer(nn.BatchNorm2d(4), *IMAGE),
    "batch norm, evaluated": lambda: layer(nn.BatchNorm2d(4).eval(), *IMAGE),
    "batch norm of rows": lambda: layer(nn.BatchNorm1d(8), *ROWS),
    "group norm": lambda: layer(nn.GroupNorm(2, 4), *IMAGE),
    "instance norm": lambda: layer(nn.InstanceNorm2d(4, affine=True), *IMAGE),
    "instance norm, running": lambda: layer(nn.InstanceNorm2d(4, track_running_stats=True), *IMAGE),
    "layer norm": lambda: layer(nn.LayerNorm(8), *TEXT),
    "rms norm": lambda: layer(nn.RMSNorm(8), *TEXT),
    "local response norm": lambda: layer(nn.LocalResponseNorm(2), *IMAGE),
    "max pool": lambda: layer(nn.MaxPool2d(2), *IMAGE),
    "max pool 1d": lambda: layer(nn.MaxPool1d(2), 8, 4, 6),
    "max pool 3d": lambda: layer(nn.MaxPool3d(2), 4, 4, 6, 6, 6),
    "average pool 3d": lambda: layer(nn.AvgPool3d(2), 4, 4, 6, 6, 6),
    "adaptive average": lambda: layer(nn.AdaptiveAvgPool2d(3), *IMAGE),
    "adaptive maximum": lambda: layer(nn.AdaptiveMaxPool2d(3), *IMAGE),
    "nearest": lambda: layer(nn.Upsample(scale_factor=2), *IMAGE),
    "bilinear": lambda: layer(nn.Upsample(scale_factor=2, mode="bilinear"), *IMAGE),
    "bicubic": lambda: layer(nn.Upsample(scale_factor=2, mode="bicubic"), *IMAGE),
    "reflected": lambda: layer(nn.ReflectionPad2d(1), *IMAGE),
    "replicated": lambda: layer(nn.ReplicationPad2d(1), *IMAGE),
    "padded with zeros": lambda: layer(nn.ZeroPad2d(1), *IMAGE),
    "pixels shuffled": lambda: layer(nn.PixelShuffle(2), *IMAGE),
    "windows": lambda: layer(nn.Unfold(2), *IMAGE),
    "windows folded": lambda: layer(nn.Fold((6, 6), 2), 8, 16, 25),
    "gru": lambda: layer(nn.GRU(8, 8, batch_first=True), 8, 4, 8),
    "lstm": lambda: layer(nn.LSTM(8, 8, batch_first=True), 8, 4, 8),
    "rnn, time first": lambda: layer(nn.RNN(8, 8), 4, 8, 8),
    "encoder layer": lambda: layer(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), *TEXT),
    "bilinear form": lambda: layer(lambda x: functional.bilinear(x, x, torch.ones(4, 8, 8)), *ROWS),
    "prelu": lambda: layer(nn.PReLU(), *ROWS),
    "gated": lambda: layer(nn.GLU(), *ROWS),
    "activations": lambda: layer(
        nn.Sequential(
            nn.SELU(),
            nn.CELU(),
            nn.Mish(),
            nn.Hardswish(),
            nn.Hardsigmoid(),
            nn.Softplus(),
            nn.ELU(),
            nn.LeakyReLU(),
            nn.Softsign(),
            nn.Tanhshrink(),
            nn.LogSigmoid(),
            nn.ReLU6(),
        ),
        *ROWS,
    ),
    "thresholds": lambda: layer(
        nn.Sequential(nn.Softshrink(0.1), nn.Hardshrink(0.1), nn.Threshold(0.1, 0.2)), *ROWS
    ),
    "spectral norm": lambda: layer(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), *ROWS),
    "weight norm": lambda: layer(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), *ROWS),
    "orthogonal": lambda: layer(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), *ROWS),
    "running sums": lambda: layer(lambda x: x.cumsum(-1) + x.flip(-1).cumprod(-1), *ROWS),
    "sorted": lambda: layer(lambda x: x.sort(-1).values, *ROWS),
    "the largest": lambda: layer(lambda x: x.topk(2, -1).values, *ROWS),
    "extremes": lambda: layer(lambda x: x.amax(-1) + x.max(-1).values + x.median(-1).values, *ROWS),
    "moments": lambda: layer(lambda x: x.var(-1) + x.std(-1) + x.norm(dim=-1) + x.logsumexp(-1), *ROWS),
    "moments of the batch": lambda: layer(lambda x: (x - x.mean(0)) / (x.std(0) + 1), *ROWS),
    "normalised": lambda: layer(lambda x: functional.normalize(x, dim=-1), *ROWS),
    "cosines": lambda: layer(lambda x: functional.cosine_similarity(x, x.flip(-1), -1), *ROWS),
    "distances": lambda: layer(lambda x: torch.cdist(x, x.flip(1)), *TEXT),
    "triangles": lambda: layer(lambda x: x.tril() + x.triu(1), *TEXT),
    "rolled": lambda: layer(lambda x: x.roll(1, -1) * x.flip(1), *TEXT),
    "rolled over rows": lambda: layer(lambda x: x.roll(1, 0) * x.flip(0), *ROWS),
    "repeated": lambda: layer(lambda x: x.repeat(1, 2) * x.repeat_interleave(2, -1), *ROWS),
    "joined": lambda: layer(lambda x: torch.cat([torch.stack([x, x], 1).flatten(1), x], -1), *ROWS),
    "joined rows": lambda: layer(lambda x: torch.cat([x, x * 2]).view(2, -1, 8).sum(0), *ROWS),
    "parts": lambda: layer(
        lambda x: x.split([3, 5], -1)[0] * x.chunk(3, -1)[1] * x.unbind(1)[0][:, None], *ROWS
    ),
    "steps": lambda: layer(lambda x: x[:, ::2] * x[:, -4:], *ROWS),
    "masked": lambda: layer(lambda x: torch.where(x > 0, x, x * 2).masked_fill(x < -1, 0.0), *ROWS),
    "rounded": lambda: layer(lambda x: x + (x.round() - x).detach() + x.clamp(-1, 1), *ROWS),
    "pooled, channels last": lambda: layer(
        lambda x: nn.AdaptiveAvgPool2d(1)(x.contiguous(memory_format=torch.channels_last)), *IMAGE
    ),
    "distances to rows": lambda: layer(lambda x: torch.cdist(x, torch.ones(4, 8)), *ROWS),
    "log sigmoid": lambda: layer(nn.LogSigmoid(), *ROWS),
    "filtered spectrum": lambda: layer(lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), *ROWS),
    "inverse": lambda: layer(lambda x: torch.linalg.inv(x.mT @ x + torch.eye(8)), *TEXT),
    "solved": lambda: layer(lambda x: torch.linalg.solve(x.mT @ x + torch.eye(8), x.mT), *TEXT),
    "factors": lambda: layer(lambda x: torch.linalg.cholesky(x.mT @ x + torch.eye(8)), *TEXT),
    "orthogonal factors": lambda: layer(lambda x: torch.linalg.qr(x.mT)[1], *TEXT),
    "bags, summed": lambda: bags("sum"),
    "bags, averaged": lambda: bags("mean"),
    "bags, largest": lambda: bags("max"),
    "spectrum": lambda: layer(lambda x: torch.fft.rfft(x).abs(), *ROWS),
    "gathered": lambda: layer(lambda x: x.gather(1, x.argmax(-1, keepdim=True)), *ROWS),
    "columns": lambda: layer(
        lambda x: x[:, torch.tensor([1, 3, 5])] * x.index_select(1, torch.tensor([1, 3, 0])), *ROWS
    ),
    "in order": lambda: layer(lambda x: torch.take_along_dim(x, x.argsort(-1), -1), *ROWS),
    "products of batches": lambda: layer(lambda x: torch.baddbmm(x[:, :6, :6], x, x.transpose(1, 2)), *TEXT),
    "outer": lambda: layer(lambda x: x[:, :, None] * x[:, None], *ROWS),
    "attention": lambda: layer(
        lambda x: functional.scaled_dot_product_attention(*[x.view(-1, 2, 6, 4)] * 3, is_causal=True), *TEXT
    ),
    "sampled at places": lambda: layer(
        lambda x: functional.grid_sample(x, x.new_zeros(len(x), 3, 3, 2), align_corners=False), *IMAGE
    ),
    "diagonals": lambda: layer(lambda x: torch.diagonal(x, dim1=1, dim2=2), *TEXT),
    "sliding": lambda: layer(lambda x: x.unfold(1, 3, 1), *ROWS),
    "a column written": lambda: layer(lambda x: x.select_scatter(x.sum(1), 1, 0), *ROWS),
    "put": lambda: layer(lambda x: x.index_fill(1, torch.tensor([0]), 0.0), *ROWS),
    "blended": lambda: layer(lambda x: torch.lerp(x, x * 2, 0.3) + torch.addcmul(x, x, x) + x.erf(), *ROWS),
    "angles": lambda: layer(lambda x: torch.atan2(x, x + 3) + torch.hypot(x, x + 3) + torch.sinc(x), *ROWS),
    "in place": lambda: layer(lambda x: x.sin().mul_(2).add_(1).relu_(), *ROWS),
    "double": lambda: layer(lambda x: x.double().exp().float(), *ROWS),
    "half": lambda: layer(lambda x: x.bfloat16().relu().float(), *ROWS),
    "rows compared": lambda: layer(lambda x: (x @ x.T).softmax(-1), *ROWS),
    "nan": lambda: layer(lambda x: x.log().nan_to_num(), *ROWS),
    "penalty of a mean": lambda: layer(lambda x: x.mean().square() + x, *ROWS),
}
"""Layers by name, each a function that makes model, inputs and loss."""


class Attention(nn.Module):
    """Attention with fewer keys than queries, rotated by places."""

    def __init__(self, width=32, heads=4, keys=2):
        super().__init__()
        self.heads, self.keys, self.each = heads, keys, width // heads
        self.project = nn.Linear(width, (heads + 2 * keys) * self.each, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        angles = torch.arange(16).float()[:, None] / 100 ** (torch.arange(self.each // 2) / (self.each // 2))
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def rotated(self, x):
        first, second = x.chunk(2, -1)
        cosines, sines = self.cosines[: x.shape[2]], self.sines[: x.shape[2]]
        return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)

    def forward(self, x):
        batch, length, _ = x.shape
        sizes = [self.heads * self.each, self.keys * self.each, self.keys * self.each]
        q, k, v = (
            part.view(batch, length, -1, self.each).transpose(1, 2)
            for part in self.project(x).split(sizes, -1)
        )
        k, v = (one.repeat_interleave(self.heads // self.keys, 1) for one in (self.rotated(k), v))
        found = functional.scaled_dot_product_attention(self.rotated(q), k, v, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """A block of a language model with a gated network."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width)
        self.gate, self.down = nn.Linear(width, 2 * 64, bias=False), nn.Linear(64, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        gate, up = self.gate(self.second(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Language(nn.Module):
    """A language model whose first and last weights are one."""

    def __init__(self, words=48, width=32, blocks=2):
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_words(model, inputs):
    scores = model(inputs[0])[:, :-1]
    return functional.cross_entropy(scores.flatten(0, 1), inputs[1][:, 1:].flatten())


class Experts(nn.Module):
    """All experts of each row, weighted, and a loss that keeps their load even."""

    def __init__(self, width=16, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up, self.down = (nn.Parameter(torch.randn(experts, width, width) * 0.2) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        hidden = torch.einsum("bd,edh->ebh", x, self.up).relu()
        found = torch.einsum("be,ebd->bd", weights, torch.einsum("ebh,ehd->ebd", hidden, self.down))
        chosen = functional.one_hot(weights.argmax(-1), weights.shape[-1]).float().mean(0)
        return found, (chosen * weights.mean(0)).sum() * weights.shape[-1]


class Tower(nn.Module):
    """An image classifier with skip connections and norms of groups."""

    def __init__(self, norm=lambda: nn.GroupNorm(2, 8)):
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(8, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, 2)
        self.norm, self.last = norm(), nn.Conv2d(16, 2, 1)

    def forward(self, x):
        first = functional.silu(self.norm(self.first(x)))
        deep = self.up(functional.silu(self.middle(functional.silu(self.down(first)))))
        return self.last(torch.cat([first, deep], 1))


class Ranked(nn.Module):
    """Clicks of numbers and of categories that are looked up."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in (40, 24))
        self.dense, self.top = nn.Linear(6, 8), nn.Linear(8 + 3, 1)

    def forward(self, numbers, categories):
        parts = [self.dense(numbers), *(t(categories[:, i]).mean(1) for i, t in enumerate(self.tables))]
        crossed = torch.stack(parts, 1)
        pairs = (crossed @ crossed.transpose(1, 2))[:, [0, 0, 1], [1, 2, 2]]
        return self.top(torch.cat([parts[0], pairs], 1)).squeeze(-1)


class Adapted(nn.Module):
    """A frozen layer with a small trained one beside it."""

    def __init__(self, width=16):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.b(self.a(x))


class Branching(nn.Module):
    """Takes one of two layers by its input's values."""

    def __init__(self, width=16):
        super().__init__()
        self.positive, self.negative = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.positive(x) if x.mean() > 0 else self.negative(x)


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of a line between -1 and 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0].abs() < 1)


class Pair(nn.Module):
    """Two towers whose rows are compared with each other."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(16, 8), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, left, right):
        a, b = (functional.normalize(one, dim=-1) for one in (self.left(left), self.right(right)))
        scores, rows = self.scale.exp() * a @ b.T, torch.arange(len(left))
        return (functional.cross_entropy(scores, rows) + functional.cross_entropy(scores.T, rows)) / 2


def made(model, *inputs, loss=None):
    """A case of a model that returns its loss, or of a model and a loss."""
    return (model(), inputs) if loss is None else (model(), inputs, loss)


def rows(*shape):
    torch.manual_seed(1)
    return torch.randn(*shape)


def words(*shape, most=48):
    torch.manual_seed(2)
    return torch.randint(most, shape)


def checkpointed(model, inputs):
    return torch.utils.checkpoint.checkpoint(model, inputs[0], use_reentrant=False).square().mean()


def in_half(model, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(inputs[0])
    return functional.cross_entropy(scores.float(), inputs[1])


def balanced(model, inputs):
    found, aside = model(inputs[0])
    return functional.mse_loss(found, inputs[1]) + 0.1 * aside


def named(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"]) * 0.5


def seeded(model):
    def build():
        torch.manual_seed(0)
        return model()

    return build


def stack(*kinds):
    return seeded(lambda: nn.Sequential(*(kind() for kind in kinds)))


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


MODELS = {
    "language": lambda: made(seeded(Language), words(8, 12), words(8, 12), loss=next_words),
    "experts": lambda: made(seeded(Experts), rows(8, 16), rows(8, 16), loss=balanced),
    "segmented": lambda: made(
        seeded(Tower), rows(8, 3, 8, 8), words(8, 8, 8, most=2),
        loss=lambda m, i: functional.cross_entropy(m(i[0]), i[1]),
    ),
    "segmented with batch norm": lambda: made(
        seeded(lambda: Tower(lambda: nn.BatchNorm2d(8))), rows(8, 3, 8, 8), words(8, 8, 8, most=2),
        loss=lambda m, i: functional.cross_entropy(m(i[0]), i[1], ignore_index=1),
    ),
    "clicks": lambda: made(
        seeded(Ranked), rows(8, 6), words(8, 2, 3, most=24), rows(8).sigmoid(),
        loss=lambda m, i: functional.binary_cross_entropy_with_logits(m(i[0], i[1]), i[2]),
    ),
    "adapters": lambda: made(
        stack(Adapted, nn.ReLU, Adapted, lambda: nn.Linear(16, 8)), rows(8, 16), words(8, most=8),
        loss=lambda m, i: functional.cross_entropy(m(i[0]), i[1], label_smoothing=0.1),
    ),
    "a branch": lambda: made(
        stack(lambda: nn.Linear(16, 16), Branching, nn.ReLU, lambda: nn.Linear(16, 8)), rows(8, 16), words(8, most=8),
        loss=lambda m, i: functional.cross_entropy(m(i[0]), i[1]),
    ),
    "two towers": lambda: made(seeded(Pair), rows(8, 16), rows(8, 12)),
    "an autograd function": lambda: made(
        seeded(mlp), rows(8, 16), loss=lambda m, i: Rounded.apply(m(i[0])).square().mean() + m(i[0]).mean()
    ),
    "checkpointed": lambda: made(seeded(mlp), rows(8, 16), loss=checkpointed),
    "in half": lambda: made(seeded(mlp), rows(8, 16), words(8, most=8), loss=in_half),
    "double": lambda: made(
        seeded(lambda: mlp().double()), rows(8, 16).double(), loss=lambda m, i: m(i[0]).square().sum()
    ),
    "names": lambda: (seeded(mlp)(), {"y": words(8, most=8), "x": rows(8, 16)}, named),
    "seven rows": lambda: made(seeded(mlp), rows(7, 16), loss=lambda m, i: m(i[0]).square().mean()),
    "a penalty": lambda: made(
        seeded(mlp), rows(8, 16), words(8, most=8),
        loss=lambda m, i: functional.cross_entropy(m(i[0]), i[1]) + sum(p.square().sum() for p in m.parameters()),
    ),
    "scores that stay small": lambda: made(
        seeded(mlp), rows(8, 16), words(8, most=8),
        loss=lambda m, i: functional.cross_entropy(m(i[0]), i[1]) + 1e-2 * m(i[0]).logsumexp(-1).square().mean(),
    ),
    "translation": lambda: made(
        seeded(lambda: nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)), rows(8, 5, 16), rows(8, 4, 16),
        loss=lambda m, i: functional.mse_loss(m(i[0], i[1]), i[1]),
    ),
    "sums of neighbours": lambda: made(
        seeded(mlp), rows(8, 16), words(2, 20, most=8),
        loss=lambda m, i: m(torch.zeros_like(i[0]).index_add(0, i[1][0], i[0][i[1][1]])).square().mean(),
    ),
}  # fmt: skip
"""Models by name, each a function that makes model, inputs and loss."""
