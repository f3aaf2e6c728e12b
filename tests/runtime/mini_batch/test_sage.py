"""Convolutions on sampled layers are those of PyG."""

import pytest
import torch
from torch_geometric.nn import SAGEConv

from tests.runtime.mini_batch.machines import graph_of
from wirewise.errors import InputError
from wirewise.graph.sampling import NeighborSampler
from wirewise.runtime.mini_batch.sage import Sage, SageConvolution, mean_of_neighbours


def batch_of(seeds=(5, 17, 200), fanouts=(4, 3)):
    graph, _ = graph_of(1)
    batch = NeighborSampler(graph.in_edges, fanouts).sample(torch.tensor(seeds).numpy())
    return batch, torch.from_numpy(graph.x[batch.n_id])


def test_a_convolution_and_its_gradients_are_those_of_pyg():
    torch.manual_seed(0)
    batch, x = batch_of()
    layer, ours, theirs = batch.layers[0], SageConvolution(12, 8), SAGEConv(12, 8)
    theirs.load_state_dict(ours.state_dict())
    x, x_of_pyg = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = ours(x, layer)
    expected = theirs((x_of_pyg, x_of_pyg[: layer.num_targets]), torch.from_numpy(layer.edge_index()))
    assert torch.allclose(found, expected, atol=1e-6)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert torch.allclose(x.grad, x_of_pyg.grad, atol=1e-5)
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, atol=1e-5 * float(two.grad.abs().max()))


def test_torch_operations_and_the_kernels_agree():
    batch, x = batch_of()
    ways = []
    for implementation in ("numba", "torch"):
        rows = x.clone().requires_grad_()
        found = mean_of_neighbours(rows, batch.layers[0], implementation=implementation)
        found.square().sum().backward()
        ways.append((found.detach(), rows.grad))
    for one, two in zip(*ways, strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def test_targets_without_neighbours_get_zero():
    batch, x = batch_of(fanouts=(0,))
    assert torch.equal(mean_of_neighbours(x, batch.layers[0]), torch.zeros(3, 12))


def test_a_batch_without_seeds_goes_through():
    graph, _ = graph_of(1)
    batch = NeighborSampler(graph.in_edges, (4, 3)).empty_batch()
    net = Sage([12, 8, 4])
    out = net(torch.empty(0, 12), batch.layers)
    assert out.shape == (0, 4)
    out.sum().backward()
    assert all(not parameter.grad.any() for parameter in net.parameters())


def test_rows_that_do_not_fit_are_refused():
    batch, x = batch_of()
    with pytest.raises(InputError, match="expected float32 of the layer's"):
        mean_of_neighbours(x[:-1], batch.layers[0])
