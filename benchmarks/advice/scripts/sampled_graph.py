"""Mini-batches of sampled neighbours, each sampled in Python by its data set; two ranks."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch_geometric.nn import SAGEConv

NODES, FANOUT, SEEDS = 5000, 5, 64
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(NODES, 32), torch.randint(7, (NODES,))
neighbours = torch.randint(NODES, (NODES, 20))


class Batches(Dataset):
    """Subgraphs of two hops around some seeds."""

    def __len__(self):
        return 1000

    def __getitem__(self, number):
        nodes = torch.randint(NODES, (SEEDS,), generator=torch.Generator().manual_seed(number))
        edges = []
        for _ in range(2):
            chosen = neighbours[nodes][:, torch.randperm(20)[:FANOUT]]
            edges.append(torch.stack([chosen.flatten(), nodes.repeat_interleave(FANOUT)]))
            nodes = torch.cat([nodes, chosen.flatten()]).unique()
        whole = torch.cat(edges, 1)
        place = torch.full((NODES,), -1).scatter(0, nodes, torch.arange(len(nodes)))
        return x[nodes], place[whole], y[nodes]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = SAGEConv(32, 64), SAGEConv(64, 7)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


dist.init_process_group("gloo")
model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = Batches()
for features, edge_index, labels in DataLoader(data, batch_size=None, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(features, edge_index), labels).backward()
    optimizer.step()
dist.destroy_process_group()
