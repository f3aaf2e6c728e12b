"""A small transformer learns to continue text that comes with Python; plain torch, started by torchrun.

    torchrun --nproc-per-node 2 examples/ddp_text/train.py

Prints the loss every ten steps.
"""

import argparse
import pydoc_data.topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LENGTH = 64


class Text(Dataset):
    """Windows of the topics of Python's `help`, as bytes."""

    def __init__(self):
        text = "".join(pydoc_data.topics.topics.values()).encode()
        self.codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self):
        return (len(self.codes) - 1) // LENGTH

    def __getitem__(self, index):
        window = self.codes[index * LENGTH : (index + 1) * LENGTH + 1]
        return window[:-1], window[1:]


class Transformer(nn.Module):
    def __init__(self, width, layers, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, codes):
        hidden = self.tokens(codes) + self.places
        return self.head(self.norm(self.blocks(hidden, mask=self.mask, is_causal=True)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Transformer(options.width, options.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loss_of = nn.CrossEntropyLoss()
    data = Text()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, drop_last=True)
    step = 0
    while step < options.steps:
        sampler.set_epoch(step)
        for codes, following in loader:
            optimizer.zero_grad()
            loss = loss_of(model(codes).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 and dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
            if step == options.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
