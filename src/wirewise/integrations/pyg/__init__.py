"""Train your own PyTorch Geometric model on a graph that is spread over ranks, in your own script.

    ...                                          # torch.distributed.init_process_group, as torchrun scripts do
    job = pyg.Job(data, mode="adaqp")            # partition once; keep this rank's part
    model = job.distribute(Net(...))             # halo exchange under every convolution
    data = job.data                              # own nodes: x, y, masks
    model(data.x, data.edge_index)               # as before

The model that `distribute` returns is a copy that shares its parameters with the user's; its convolutions exchange
boundary rows, its graph-wide norms take their moments over all ranks, and its first call proves that nothing else in
it looks at other nodes' rows. What one process would compute is computed, or refused by an error that names the module
and the reason.

After `loss.backward()` the gradients are those of the mean loss over the training nodes of all ranks, added to what
was there before, as on one process. `Job.mean` and `Job.sum` make any other loss.
"""

from wirewise.integrations.pyg.job import Job

__all__ = ["Job"]
