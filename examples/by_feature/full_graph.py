"""Train a PyTorch Geometric model on one graph that is spread over ranks, with quantized messages.

torchrun --nproc-per-node 2 examples/by_feature/full_graph.py
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from wirewise.integrations import pyg


def ring(nodes: int = 600) -> Data:
    """Nodes on a ring, whose label is the side of the ring on which they lie."""
    order = torch.arange(nodes)
    y = (order < nodes // 2).long()
    x = torch.randn(nodes, 16) + y[:, None]
    edges = torch.stack([torch.cat([order, order.roll(-1)]), torch.cat([order.roll(-1), order])])
    return Data(x=x, y=y, edge_index=edges, train_mask=order % 2 == 0, test_mask=order % 2 == 1)


dist.init_process_group("gloo")
torch.manual_seed(0)
job = pyg.Job(ring() if dist.get_rank() == 0 else None, mode="adaqp")  # rank 0 cuts the graph
model = job.distribute(
    GraphSAGE(16, 32, num_layers=2, out_channels=2)
)  # rows of other ranks arrive underneath
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = job.data
for _ in range(20):
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    accuracy = job.accuracy(model(data.x, data.edge_index), data.test_mask)  # over all ranks
if dist.get_rank() == 0:
    print(f"test accuracy {accuracy:.2f}")
dist.destroy_process_group()
