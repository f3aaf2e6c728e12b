"""Compress the gradients of a script that uses Hugging Face Accelerate, by one line behind `prepare`.

torchrun --nproc-per-node 2 examples/by_feature/accelerate_hook.py
"""

import torch
from accelerate import Accelerator
from torch import nn

from wirewise.integrations.accelerate import compress

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)
compress(accelerator, model, codec="efsign")
x = torch.randn(32, 64)
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x[:, :1])
    accelerator.backward(loss)
    optimizer.step()
accelerator.print(f"loss {loss.item():.3f}")
accelerator.end_training()
