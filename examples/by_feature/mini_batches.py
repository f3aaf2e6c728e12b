"""Train a graph network on mini-batches whose features lie on several ranks; remote rows travel in 8 bits.

torchrun --nproc-per-node 2 examples/by_feature/mini_batches.py
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

from wirewise import graph
from wirewise.graph.sampling import NeighborSampler
from wirewise.runtime.mini_batch import BatchLoader, Fetcher, RowStore
from wirewise.runtime.transport import Transport

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data = graph.load("block:nodes=2000,classes=4")
offsets = np.linspace(0, data.num_nodes, ranks + 1).astype(
    int
)  # rank k has the nodes offsets[k] to offsets[k + 1]
own = slice(offsets[rank], offsets[rank + 1])
store = RowStore(torch.from_numpy(data.x[own]), offsets, rank=rank, cached=None)
train = np.flatnonzero(data.split == 0)
loader = BatchLoader(
    Fetcher(store, Transport(dist.new_group()), ids=Transport(dist.new_group()), bits=8),
    NeighborSampler(data.in_edges, [10, 5], seed=0),
    torch.from_numpy(data.y).long(),
    [train[(train >= offsets[k]) & (train < offsets[k + 1])] for k in range(ranks)],
    batch_size=128,
)


class Net(torch.nn.Module):
    """Two convolutions over the two hops of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(data.num_features, 16), SAGEConv(16, data.num_classes)

    def forward(self, x: torch.Tensor, layers: list) -> torch.Tensor:
        """Logits of the seeds."""
        (one, size), (two, last) = layers
        x = self.first((x, x[: size[1]]), one).relu()
        return self.second((x, x[: last[1]]), two)


torch.manual_seed(0)
model = DistributedDataParallel(Net())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch, batches in loader.epochs(range(2)):
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(batch.x, batch.layers), batch.y, reduction="sum") * batch.scale
        loss.backward()
        optimizer.step()
    print(f"rank {rank}, epoch {epoch}: loss {loss.item():.2f}")
dist.destroy_process_group()
