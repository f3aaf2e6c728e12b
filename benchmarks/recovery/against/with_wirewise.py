"""The script under wirewise, with the three lines of protection."""

import sys

from common_job import BATCH, model_of, note, rows
from torch import nn, optim
from torch.utils.data import DataLoader

from wirewise.runtime import recovery

folder, steps = sys.argv[1], int(sys.argv[2])
model = model_of()
optimizer = optim.AdamW(model.parameters(), 0.001)
loader = DataLoader(rows(), BATCH, shuffle=True)
training = recovery.protect(model, optimizer, loader, steps=steps, sync=recovery.DDP())
for x, y in training:
    with training.step():
        nn.functional.cross_entropy(training.model(x), y).backward()
    note(folder, training.rank, training.position)
