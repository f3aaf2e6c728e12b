"""A small residual network on images."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, images):
        return torch.relu(images + self.layers(images))


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), Block(32), nn.MaxPool2d(2), Block(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(32, 10),
)  # fmt: skip
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(256, 3, 16, 16), torch.randint(10, (256,)))
sampler = DistributedSampler(data)
for epoch in range(100):
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
dist.destroy_process_group()
