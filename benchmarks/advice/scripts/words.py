"""An LSTM that predicts the next word, whose embedding has most of its gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WORDS = 4000


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 64)
        self.cells = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, WORDS)

    def forward(self, codes):
        return self.head(self.cells(self.tokens(codes))[0])


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(WordModel())
optimizer = torch.optim.Adam(model.parameters())
codes = torch.randint(WORDS, (400, 9))
for _ in range(100):
    for (batch,) in DataLoader(TensorDataset(codes), batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
