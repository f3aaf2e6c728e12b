"""A transformer in the manner of minGPT, which exchanges gradients once in four micro-batches."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LENGTH, MICRO = 16, 4


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, 64), nn.Embedding(LENGTH, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, codes):
        hidden = self.tokens(codes) + self.places(torch.arange(LENGTH))
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(Transformer())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(1000):
    for micro in range(MICRO):
        codes = torch.randint(128, (4, LENGTH + 1))
        with model.no_sync() if micro < MICRO - 1 else contextlib.nullcontext():
            logits = model(codes[:, :-1])
            (nn.functional.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten()) / MICRO).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
