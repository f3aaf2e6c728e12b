"""Train your own PyTorch Geometric model on ranks that share a graph, in your own script.

    ...                                          # torch.distributed.init_process_group, as torchrun scripts do
    job = pyg.Job(data, mode="adaqp")            # partition once; keep this rank's part
    model = job.distribute(Net(...))             # halo exchange under every convolution
    data = job.data                              # own nodes: x, y, masks
    model(data.x, data.edge_index)               # as before

The model that `distribute` returns is a copy that shares its parameters with the user's; its convolutions exchange
boundary rows, its graph-wide norms take their moments over all ranks, and its first call proves that nothing else in
it reads other nodes' rows. The result equals that of one process, or an error names the module and the reason.

After `loss.backward()` the gradients are those of the mean loss over the training nodes of all ranks, added to what
was there before, as on one process. `Job.mean` and `Job.sum` make any other loss.

`NeighborLoader` and `LinkNeighborLoader` sample mini-batches, with the arguments and batches of PyG's loaders; ranks
share their seeds. `inference` computes the outputs of all nodes, a layer at a time.
"""

from wirewise.extras import import_extra

import_extra("torch_geometric", "gnn", "wirewise.integrations.pyg")

from wirewise.integrations.pyg.job import Job  # noqa: E402
from wirewise.integrations.pyg.layerwise import inference  # noqa: E402
from wirewise.integrations.pyg.link_neighbor_loader import LinkNeighborLoader  # noqa: E402
from wirewise.integrations.pyg.neighbor_loader import NeighborLoader  # noqa: E402

__all__ = ["Job", "LinkNeighborLoader", "NeighborLoader", "inference"]
