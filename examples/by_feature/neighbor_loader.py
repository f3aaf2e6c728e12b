"""Train a PyTorch Geometric model on sampled mini-batches, whose seeds the ranks share.

torchrun --nproc-per-node 2 examples/by_feature/neighbor_loader.py
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from wirewise.integrations.pyg import NeighborLoader


def ring(nodes: int = 600) -> Data:
    """Nodes on a ring, whose label is the side of the ring on which they lie."""
    order, made = torch.arange(nodes), torch.Generator().manual_seed(0)
    y = (order < nodes // 2).long()
    x = torch.randn(nodes, 16, generator=made) + y[:, None]
    edges = torch.stack([torch.cat([order, order.roll(-1)]), torch.cat([order.roll(-1), order])])
    return Data(x=x, y=y, edge_index=edges, train_mask=order % 2 == 0, test_mask=order % 2 == 1)


dist.init_process_group("gloo")
torch.manual_seed(0)
data = ring()
model = DistributedDataParallel(GraphSAGE(16, 32, num_layers=2, out_channels=2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = NeighborLoader(data, num_neighbors=[5, 5], input_nodes=data.train_mask, batch_size=32, shuffle=True)
for _ in range(10):
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = cross_entropy(out, batch.y[: batch.batch_size], reduction="sum")
        (loss * batch.scale).backward()  # the mean over ranks is that over the seeds of all ranks
        optimizer.step()

counts = torch.zeros(2)
model.eval()
with torch.no_grad():
    for batch in NeighborLoader(data, [-1, -1], data.test_mask, batch_size=64):
        out = model.module(batch.x, batch.edge_index)[: batch.batch_size]
        hits = (out.argmax(1) == batch.y[: batch.batch_size]).sum()
        counts += torch.tensor([float(hits), batch.batch_size])
dist.all_reduce(counts)
if dist.get_rank() == 0:
    print(f"test accuracy {counts[0] / counts[1]:.2f} of {int(counts[1])} nodes")
dist.destroy_process_group()
