"""Full-graph training of a graph convolution with PyTorch Geometric, one process."""

import torch
from torch_geometric.nn import GCNConv

torch.set_num_threads(1)
torch.manual_seed(0)
NODES = 5000
x, y = torch.randn(NODES, 32), torch.randint(7, (NODES,))
edge_index = torch.randint(NODES, (2, 8 * NODES))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = GCNConv(32, 64), GCNConv(64, 7)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(1000):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x, edge_index), y).backward()
    optimizer.step()
