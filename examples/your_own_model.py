"""Train your own PyTorch Geometric model on a graph that is spread over ranks.

    wirewise data partition debian --parts 4 -o parts
    torchrun --nproc-per-node 4 examples/your_own_model.py --parts parts
    wirewise lab run --hosts 4 --link 200mbit -- examples/your_own_model.py --parts parts

The explanation is in docs/howto/your-own-model.md.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import SAGEConv

from wirewise.integrations import pyg


class Net(nn.Module):
    """Two convolutions, as you would write them for one process."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(features, 64), SAGEConv(64, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of the nodes."""
        return self.second(self.first(x, edge_index).relu(), edge_index)


def main() -> None:
    """Train for some steps and print what rank 0 sees."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", required=True, help="Folder written by `wirewise data partition`.")
    parser.add_argument("--mode", default="adaqp")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    job = pyg.Job(parts=options.parts, mode=options.mode)
    data = job.data
    torch.manual_seed(0)
    classes = job.tensors.part.num_classes
    model = job.distribute(Net(data.x.shape[1], classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(options.steps):
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)
        loss = cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss of rank 0's nodes {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        score = job.accuracy(model(data.x, data.edge_index), data.test_mask)
    if dist.get_rank() == 0:
        print(f"test accuracy over all ranks: {score:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
