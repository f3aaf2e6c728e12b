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
