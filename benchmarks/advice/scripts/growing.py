"""Losses are kept with their graphs, so memory grows with each step: the planted cause, seen by wirewise.watch."""

import sys

import torch
from torch import nn

import wirewise

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
watch = wirewise.watch(model, optimizer, folder=sys.argv[1], every=5)
kept = []
for _ in range(100):
    optimizer.zero_grad()
    out = model(torch.randn(512, 512))
    kept.append(out)
    out.square().mean().backward()
    optimizer.step()
watch.close()
