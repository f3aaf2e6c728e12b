"""Train GraphSAGE on Cora, spread over ranks: `torchrun --nproc-per-node 4 examples/planetoid.py`."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GraphSAGE

from wirewise.integrations import pyg

dist.init_process_group("gloo")  # started by torchrun
graph = Planetoid("data", "Cora")[0] if dist.get_rank() == 0 else None
job = pyg.Job(graph, mode="adaqp")  # rank 0 cuts the graph, every rank keeps its part
model = job.distribute(GraphSAGE(job.data.num_features, 64, num_layers=2, out_channels=7))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = job.data
for _ in range(100):
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)  # as on one process; rows of other ranks arrive underneath
    cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
dist.destroy_process_group()
